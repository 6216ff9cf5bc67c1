"""Serving the API on the controller's own event loop: uvicorn's protocol, embedded and bounded.

Slow or hostile callers cost a connection each and no more: heads, bodies and readers that stall are
cut off, and above the limit the connection that was idle longest makes room for the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

#: Open connections of one controller.
CONNECTIONS_MAX: Final = 1_024
#: Seconds a connection may stay open without a request on it.
KEEP_ALIVE_S: Final = 30
#: Seconds for the head of a request, for its body, and without progress of a reader.
HEAD_S: Final = 10.0
BODY_S: Final = 60.0
STALL_S: Final = 60.0
TLS_HANDSHAKE_S: Final = 5.0
TLS_SHUTDOWN_S: Final = 2.0
#: Seconds that requests under way get at the end.
GRACE_S: Final = 3.0
BACKLOG: Final = 512


class _Protocol(HttpToolsProtocol):
    """uvicorn's, with limits in time and number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self.idle_since = 0.0

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._allow(HEAD_S)
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._allow(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self.is_idle:
            self._allow(HEAD_S)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._allow(BODY_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._allow(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().resume_writing()

    def _allow(self, seconds: float | None) -> None:
        """Cut the connection off unless this is called again within `seconds`; None: no limit."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _make_room(self) -> None:
        others = [one for one in self.connections if isinstance(one, _Protocol) and one is not self]
        idle = [one for one in others if one.is_idle]
        # All busy: the newcomer is the one to go, and tries elsewhere or again.
        oldest = min(idle, key=lambda one: one.idle_since, default=self)
        oldest.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises OSError, whose text names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return found


@contextlib.asynccontextmanager
async def serve(
    app: ASGIApp, listener: socket.socket, *, cert: Path | None, key: Path | None
) -> AsyncIterator[None]:
    """Serve `app` on `listener` while the context lasts; then end it within GRACE_S.

    Without `cert` and `key` it is plain HTTP. Must run in the event loop that owns the service.
    Signals are left to the process. Raises OSError or ssl.SSLError for an unusable certificate.
    """
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    # It warns of every request that is none: a stranger could fill the disk with that.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    state = ServerState()
    tls = None if cert is None else _tls_context(cert, key)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Protocol(config=config, server_state=state, app_state={}, _loop=loop),
        sock=listener,
        ssl=tls,
        backlog=BACKLOG,
        ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_S,
        ssl_shutdown_timeout=None if tls is None else TLS_SHUTDOWN_S,
    )
    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(_tick(state))
        try:
            yield
        finally:
            ticking.cancel()
            server.close()
            await _end(state)


async def _tick(state: ServerState) -> None:
    """Keep the Date header of all answers current."""
    while True:
        state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
        await asyncio.sleep(1)


async def _end(state: ServerState) -> None:
    """Close idle connections, let requests under way finish, then cut off what is left."""
    for connection in list(state.connections):
        connection.shutdown()
    if state.tasks:
        _, late = await asyncio.wait(set(state.tasks), timeout=GRACE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    for connection in list(state.connections):
        connection.transport.abort()


def _tls_context(cert: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    return context
