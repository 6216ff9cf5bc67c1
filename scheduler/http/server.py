"""Serving the API on the controller's own event loop: uvicorn, embedded and bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

#: Open connections of one controller; above it the oldest idle ones are closed.
CONNECTIONS_MAX: Final = 1_024
#: Seconds a connection may stay open without a request on it.
KEEP_ALIVE_S: Final = 30
#: Seconds that open requests get at the end.
GRACE_S: Final = 3
BACKLOG: Final = 512


class _Server(uvicorn.Server):
    """Signals belong to the process, not to its HTTP server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
    Raises OSError or ssl.SSLError for a certificate that cannot be used.
    """
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving
