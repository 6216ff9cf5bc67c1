"""Connections between the members: who listens, who dials, and that there is one session per peer.

Of two members the one with the smaller name dials. A session belongs to the peer that both its
certificate and its greeting name; a newer session of the same peer replaces the older, whose
messages count no more. A broken connection is dialled again at once, then ever more patiently.

Servers use asyncio's own TLS, never `start_tls`: that loses bytes on uvloop when reading is paused.
Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
import time
from collections.abc import Callable
from typing import Final

from replication.config import ReplicationConfig
from replication.errors import MemberUnreachable, RequestFailed
from replication.interface import RequestHandler
from replication.messages import (
    PROTOCOL_VERSION,
    Hello,
    Message,
    RaftMessage,
    Vitals,
)
from replication.session import Session
from replication.tls import TlsContexts, peer_names

logger = logging.getLogger(__name__)

RAFT_CHANNEL: Final = "raft"
#: Snapshots have their own connection: entries and heartbeats never queue behind them.
BULK_CHANNEL: Final = "bulk"

DIAL_TIMEOUT_S: Final = 3.0
REDIAL_MIN_S: Final = 0.05
REDIAL_MAX_S: Final = 0.5
#: Connections that have not said who they are; over it new ones are closed at once.
STRANGERS_MAX: Final = 64
#: Bulk connections of one peer.
BULK_SESSIONS_MAX: Final = 4
#: Everybody tells everybody how far it is this often; half-open connections are found by it.
VITALS_PERIOD_S: Final = 0.25
#: Silence of a peer after which its connection is given up, seen twice in a row.
SILENCE_S: Final = 6.0


class Transport:
    """See the module. Callbacks are set by the owner before `start`."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._config = config
        self._tls = TlsContexts.load(config.tls) if config.tls is not None else None
        self._epoch = secrets.randbits(62)
        self._sessions: dict[str, Session] = {}
        self._bulk: set[Session] = set()
        self._strangers: set[Session] = set()
        self._silent: set[str] = set()
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._handlers: dict[str, RequestHandler] = {}
        self._is_closed = False
        #: Versions the peers told, kept after their connection ended.
        self.versions: dict[str, str] = {}
        self.vitals: dict[str, Vitals] = {}
        self.heard_at: dict[str, float] = {}
        self.on_message: Callable[[str, RaftMessage], None] = lambda _member, _message: None
        self.on_connected: Callable[[str, bool], None] = lambda _member, _is_connected: None
        self.own_vitals: Callable[[], Vitals | None] = lambda: None

    async def start(self) -> None:
        """Listen and begin to dial. Raises OSError when the address is taken."""
        loop = asyncio.get_running_loop()
        host, port = self._config.listen
        server_tls = None if self._tls is None else self._tls.server
        self._server = await loop.create_server(
            self._accept,
            host,
            port,
            ssl=server_tls,
            ssl_handshake_timeout=None if server_tls is None else DIAL_TIMEOUT_S,
        )
        for peer in self._config.peers:
            if self._config.name < peer:
                self._tasks.append(loop.create_task(self._keep_dialling(peer)))
        self._tasks.append(loop.create_task(self._keep_telling()))

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        assert isinstance(port, int)
        return port

    async def close(self) -> None:
        """Close every connection and wait for the dialling to end. Idempotent."""
        tasks = self._tasks
        self.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> None:
        """Close every connection now. Idempotent."""
        self._is_closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        for session in [*self._sessions.values(), *self._bulk, *self._strangers]:
            session.close("this member stops")

    def reload_tls(self) -> None:
        """Use renewed certificate files for new connections."""
        if self._tls is not None:
            self._tls.reload()

    # Link

    def send(self, member: str, message: RaftMessage) -> bool:
        """Queue a message; False when there is no connection."""
        session = self._sessions.get(member)
        return session is not None and session.send(message)

    def is_congested(self, member: str) -> bool:
        session = self._sessions.get(member)
        return session is not None and session.is_congested

    # Requests

    def on_request(self, kind: str, handler: RequestHandler) -> None:
        assert kind not in self._handlers, f"two handlers for {kind}"
        self._handlers[kind] = handler

    async def request(self, member: str, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        """As `MemberRequests.request`."""
        if member == self._config.name:
            async with asyncio.timeout(timeout_s):
                return await self.answer(member, kind, body)
        session = self._sessions.get(member)
        if session is None:
            raise MemberUnreachable(member)
        return await session.request(kind, body, timeout_s=timeout_s)

    async def open_bulk(self, member: str) -> Session:
        """A separate connection to `member`, for large transfers; the caller closes it.

        Raises OSError or TimeoutError.
        """
        return await self._dial(member, BULK_CHANNEL)

    # SessionOwner

    def check_hello(self, session: Session, hello: Hello) -> str | None:
        config = self._config
        if hello.protocol != PROTOCOL_VERSION:
            return f"speaks protocol {hello.protocol}, not {PROTOCOL_VERSION}"
        if hello.cluster_id != config.cluster_id:
            return f"belongs to cluster {hello.cluster_id!r}, not {config.cluster_id!r}"
        if hello.incarnation != config.incarnation:
            return f"is of incarnation {hello.incarnation}, not {config.incarnation}"
        if hello.member not in config.peers:
            return f"member {hello.member!r} is not configured here"
        if hello.channel not in (RAFT_CHANNEL, BULK_CHANNEL):
            return f"channel {hello.channel!r} is unknown"
        if config.tls is None:
            return None
        certificate = session.peer_certificate()
        if certificate is None:
            return "has no certificate"
        names, units = peer_names(certificate)
        if names != {config.tls.name_prefix + hello.member}:
            return f"says it is {hello.member!r}, but its certificate is for {sorted(names)}"
        if config.tls.peer_unit is not None and config.tls.peer_unit not in units:
            return f"has a certificate of unit {sorted(units)}, not {config.tls.peer_unit!r}"
        return None

    def session_opened(self, session: Session) -> None:
        self._strangers.discard(session)
        hello = session.hello
        assert hello is not None
        if hello.channel == BULK_CHANNEL:
            self._bulk.add(session)
            if sum(1 for other in self._bulk if other.member == hello.member) > BULK_SESSIONS_MAX:
                session.close("too many bulk connections")
            return
        member = hello.member
        older = self._sessions.pop(member, None)
        if older is not None:
            self.on_connected(member, False)
            older.close("replaced by a newer connection")
        self._sessions[member] = session
        self.versions[member] = hello.version
        self.heard_at[member] = time.monotonic()
        logger.info("peer_connected peer=%s version=%s", member, hello.version)
        self.on_connected(member, True)
        self._tell(session)

    def session_closed(self, session: Session) -> None:
        self._strangers.discard(session)
        self._bulk.discard(session)
        if session.hello is None:
            return
        member = session.member
        if self._sessions.get(member) is session:
            del self._sessions[member]
            logger.info("peer_disconnected peer=%s", member)
            self.on_connected(member, False)

    def message_received(self, session: Session, message: Message) -> None:
        member = session.member
        if self._sessions.get(member) is not session:
            return
        self.heard_at[member] = session.received_at
        if isinstance(message, Vitals):
            self.vitals[member] = message
            return
        assert not isinstance(message, Hello)
        self.on_message(member, message)  # type: ignore[arg-type]

    async def answer(self, member: str, kind: str, body: bytes) -> bytes:
        handler = self._handlers.get(kind)
        if handler is None:
            raise RequestFailed(f"nobody answers {kind!r} here")
        return await handler(member, body)

    # Connections

    def _hello(self, channel: str) -> Hello:
        config = self._config
        return Hello(
            PROTOCOL_VERSION,
            config.cluster_id,
            config.incarnation,
            config.name,
            self._epoch,
            channel,
            config.version,
        )

    def _accept(self) -> Session:
        session = Session(self, self._hello(RAFT_CHANNEL), is_dialer=False)
        if self._is_closed or len(self._strangers) >= STRANGERS_MAX:
            asyncio.get_running_loop().call_soon(session.close, "too many strangers")
        self._strangers.add(session)
        return session

    async def _keep_dialling(self, peer: str) -> None:
        wait_s = REDIAL_MIN_S
        while True:
            if peer not in self._sessions:
                try:
                    await self._dial(peer, RAFT_CHANNEL)
                    wait_s = REDIAL_MIN_S
                except (OSError, TimeoutError, ssl.SSLError) as error:
                    logger.debug("dial_failed peer=%s error=%r", peer, error)
                    wait_s = min(REDIAL_MAX_S, wait_s * 2)
            # A dialled session needs no waiting for: the next look is soon, and cheap.
            await asyncio.sleep(wait_s * (0.5 + random.random()))

    async def _dial(self, peer: str, channel: str) -> Session:
        loop = asyncio.get_running_loop()
        host, port = self._config.members[peer]
        tls = None if self._tls is None else self._tls.client
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            _, session = await loop.create_connection(
                lambda: Session(self, self._hello(channel), is_dialer=True), host, port, ssl=tls
            )
            try:
                await session.opened
            except BaseException:
                session.close("no greeting")
                raise
        if session.member != peer:
            session.close(f"{session.member} answered where {peer} was dialled")
            raise ConnectionError(f"{session.member} answered where {peer} was dialled")
        return session

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(VITALS_PERIOD_S)
            silent = set()
            now = time.monotonic()
            for member, session in list(self._sessions.items()):
                self._tell(session)
                if now - session.received_at > SILENCE_S:
                    silent.add(member)
                    # Twice: after a stall of this process the first look comes before its data.
                    if member in self._silent:
                        session.close("silent for too long")
            self._silent = silent

    def _tell(self, session: Session) -> None:
        vitals = self.own_vitals()
        if vitals is not None:
            session.send(vitals)
