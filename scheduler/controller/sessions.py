"""The agents' port: hello, rejoin, heartbeats and reports, goodbye (specification 1.6, 3.5).

    hello ──► NotLeader | Refused | ComeBack            (closed)
      │ NodeJoined applied
      ▼
    Welcome ──► Inventory parts ──► NodeInventory applied ──► Verdicts: the session is live
                                                                │ heartbeats, reports, orders
                                                                ▼
                                             goodbye | close by the peer | silence | superseded

Nothing here outlives a leadership: a new leader starts from the state and hears everybody anew.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from dataclasses import dataclass
from typing import Final

from replication.interface import Applied, ReplicatedLog
from scheduler.controller import logs
from scheduler.controller.admission import Admission
from scheduler.controller.bulk import BulkStreams
from scheduler.controller.config import ControllerConfig
from scheduler.controller.contacts import Contact
from scheduler.controller.duties import Duties
from scheduler.controller.hellos import check_hello, join_entry, knows_newer_leader, welcome
from scheduler.controller.metrics import Metrics
from scheduler.controller.rejoin import Rejoin
from scheduler.controller.wire import AgentLink, Close
from scheduler.core.results import Joined, Rejected
from scheduler.protocol.errors import DecodeError
from scheduler.protocol.messages import (
    AgentMessage,
    BulkHello,
    ComeBack,
    Goodbye,
    Heartbeat,
    Hello,
    Inventory,
    LeaderQuery,
    NotLeader,
    OrderRefused,
    Refused,
    Reports,
)

#: Connections at once, strangers included: 2,000 nodes, their redials and their streams.
CONNECTIONS_MAX: Final = 6_000
TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
TLS_SHUTDOWN_TIMEOUT_S: Final = 2.0
BACKLOG: Final = 2_048

GOODBYE_REASONS: Final = {
    "restart": "agent_restarting",
    "reconnect": "agent_restarting",
    "leave": "left",
}


@dataclass(slots=True, eq=False)
class Session:
    """A connection whose hello was believed, until it closes. Event loop."""

    hello: Hello
    duties: Duties
    received_log_ms: int
    #: None until NodeJoined is applied.
    contact: Contact | None = None
    rejoin: Rejoin | None = None


class AgentPort:
    """Accepts agents; `LinkOwner` of every connection. Event loop."""

    def __init__(self, config: ControllerConfig, log: ReplicatedLog, metrics: Metrics) -> None:
        self._config = config
        self._log = log
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._links: set[AgentLink] = set()
        self._duties: Duties | None = None
        #: Hellos that came between the election and the applied takeover: a matter of milliseconds,
        #: and an agent that is sent away dials everybody else before it comes back.
        self._waiting: dict[AgentLink, Hello] = {}
        self._admission = Admission()
        self.streams = BulkStreams()

    async def listen(self, context: ssl.SSLContext | None) -> None:
        """Open the port. Raises OSError when it is taken."""
        loop = asyncio.get_running_loop()
        host, port = self._config.member.agents
        is_tls = context is not None
        self._server = await loop.create_server(
            lambda: AgentLink(self, is_named_by_tls=is_tls),
            host,
            port,
            ssl=context,
            backlog=BACKLOG,
            ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S if is_tls else None,
            ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S if is_tls else None,
        )

    @property
    def port(self) -> int:
        """The port listened on, for tests that asked for any."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        self.end_leadership()
        for link in list(self._links):
            link.abort()
        if self._server is not None:
            await self._server.wait_closed()

    def begin_leadership(self, duties: Duties) -> None:
        """The takeover is applied: agents are taken in from now on."""
        self._duties = duties
        self._admission = Admission()
        self.streams = BulkStreams()
        self._answer_waiting()

    def end_leadership(self) -> None:
        """This controller leads no longer: every agent is sent to the leader, if there is one."""
        self._answer_waiting()
        if self._duties is None:
            return
        self._duties = None
        self.streams.close()
        answer = self._where_to_go()
        for link in list(self._links):
            if link.session is not None:
                link.close(answer)

    def _answer_waiting(self) -> None:
        """Whoever said hello to a leader that was still taking over gets an answer now."""
        waiting, self._waiting = self._waiting, {}
        for link, hello in waiting.items():
            if link.is_open:
                self._on_hello(link, hello)

    # LinkOwner.

    def on_open(self, link: AgentLink) -> bool:
        if len(self._links) >= CONNECTIONS_MAX:
            logs.warning("too_many_connections", peer=link.peer, limit=CONNECTIONS_MAX)
            return False
        self._links.add(link)
        self._metrics.connections.set(len(self._links))
        return True

    def on_message(self, link: AgentLink, message: AgentMessage) -> None:
        session = link.session
        if session is None:
            self._on_first(link, message)
            return
        assert isinstance(session, Session)
        contact = session.contact
        if contact is None or session.rejoin is None:
            self._refuse(link, "bad_order", "the answer to the hello was not awaited")
            return
        duties = session.duties
        duties.hear(contact)
        match message:
            case Heartbeat():
                duties.heartbeats.receive(contact, message)
                duties.reports.receive_progress(contact, message.progress)
            case Reports():
                duties.reports.receive(contact, message.reports)
            case Inventory():
                session.rejoin.take(message)
            case OrderRefused():
                duties.on_order_refused(contact, message)
            case Goodbye():
                self._on_goodbye(link, session, contact, message)
            case _:
                self._refuse(link, "bad_order", f"no {type(message).__name__} is expected here")

    def on_writable(self, link: AgentLink) -> None:
        session = link.session
        if isinstance(session, Session) and session.contact is not None:
            session.duties.orders.touch(session.contact.name)

    def on_closed(self, link: AgentLink, how: Close) -> None:
        self._links.discard(link)
        self._waiting.pop(link, None)
        self._metrics.connections.set(len(self._links))
        session = link.session
        if not isinstance(session, Session) or session.contact is None:
            return
        contact = session.contact
        session.duties.reports.flush(contact)
        session.duties.reports.forget(contact)
        if session.duties is self._duties and contact.link is link:
            contact.link = None
            self.streams.lose_node(contact.name, f"its connection closed ({how.value})")
            session.duties.on_link_lost(contact, how)

    def on_garbage(self, link: AgentLink, error: DecodeError) -> None:
        self._metrics.garbage.inc()
        logs.warning("agent_link_garbage", peer=link.peer, name=link.certificate_name, error=error)

    # The first message.

    def _on_first(self, link: AgentLink, message: AgentMessage) -> None:
        match message:
            case Hello():
                self._on_hello(link, message)
            case BulkHello():
                self._on_bulk_hello(link, message)
            case LeaderQuery():
                link.close(self._where_to_go())
            case _:
                self._refuse(link, "bad_hello", "the first message must be a hello")

    def _on_bulk_hello(self, link: AgentLink, hello: BulkHello) -> None:
        is_named = self._config.tls is None or link.certificate_name == f"agent:{hello.name}"
        if not is_named or not self.streams.on_hello(link, hello):
            link.close()
            return
        link.named()

    def _on_hello(self, link: AgentLink, hello: Hello) -> None:
        duties = self._duties
        if duties is None and self._log.is_leader and link not in self._waiting:
            self._waiting[link] = hello
            return
        if duties is None or not self._log.is_leader:
            self._metrics.hellos.add("not_leader")
            link.close(self._where_to_go())
            return
        certificate_name = link.certificate_name if self._config.tls is not None else None
        refusal = check_hello(hello, duties.lead, certificate_name=certificate_name)
        if refusal is not None:
            self._metrics.hellos.add(refusal.code)
            logs.warning("agent_refused", node=hello.name, peer=link.peer, code=refusal.code)
            link.close(refusal)
            return
        if knows_newer_leader(hello, duties.lead):
            link.close(NotLeader(term=duties.lead.term))
            return
        # Any hello of the node's own certificate and UUID shows that its agent lives.
        duties.note_hello(hello)
        wait_ms = self._admission.ask(hello.name, duties.now_ms())
        if wait_ms:
            self._metrics.hellos.add("come_back")
            link.close(ComeBack(after_ms=wait_ms))
            return
        self._join(link, hello, duties)

    # Joining.

    def _join(self, link: AgentLink, hello: Hello, duties: Duties) -> None:
        session = Session(hello, duties, received_log_ms=duties.lead.log_time.now_ms())
        link.session = session
        link.named()
        self._admission.in_flight += 1
        admission = self._admission
        entry = join_entry(hello, is_old_session_heard=duties.is_heard(hello.name))

        def done(outcome: Applied | Exception) -> None:
            admission.in_flight -= 1
            duties.end_join(hello.name)
            self._on_joined(link, session, outcome)

        duties.begin_join(hello.name)
        duties.propose_nowait(entry, done, actor=f"agent:{hello.name}")

    def _on_joined(self, link: AgentLink, session: Session, outcome: Applied | Exception) -> None:
        duties = session.duties
        if isinstance(outcome, Exception) or duties is not self._duties:
            link.close(self._where_to_go())
            return
        if isinstance(outcome.result, Rejected):
            rejected = outcome.result
            self._metrics.hellos.add(rejected.code)
            logs.warning(
                "agent_refused", node=session.hello.name, peer=link.peer, code=rejected.code
            )
            link.close(Refused(code=rejected.code, message=rejected.message))
            return
        assert isinstance(outcome.result, Joined)
        self._metrics.hellos.add("welcome")
        hello = session.hello
        contact = duties.join(
            Contact(
                name=hello.name,
                node_uuid=hello.node_uuid,
                session=outcome.result.session,
                link=link if link.is_open else None,
                heard_at_ms=duties.now_ms(),
                acknowledged_at_ms=duties.now_ms(),
            )
        )
        session.contact = contact
        session.rejoin = Rejoin(
            link,
            contact,
            duties,
            hello=hello,
            received_log_ms=session.received_log_ms,
            refuse=functools.partial(self._refuse, link),
            redirect=lambda: link.close(self._where_to_go()),
        )
        if contact.link is None:
            # It closed while the entry was in flight, which says what any close says.
            duties.on_link_lost(contact, link.how_closed or Close.FAILED)
            return
        link.send(welcome(duties.lead, contact.session))

    # Leaving.

    def _on_goodbye(
        self, link: AgentLink, session: Session, contact: Contact, goodbye: Goodbye
    ) -> None:
        reason = GOODBYE_REASONS.get(goodbye.mode)
        if reason is None:
            self._refuse(link, "bad_goodbye", f"{goodbye.mode!r} is no way to leave")
            return
        session.duties.reports.flush(contact)
        logs.info("agent_goodbye", node=contact.name, mode=goodbye.mode)
        session.duties.declare_offline(contact, reason)
        link.close()

    def _refuse(self, link: AgentLink, code: str, message: str) -> None:
        logs.warning("agent_link_refused", peer=link.peer, code=code, message=message)
        link.close(Refused(code=code, message=message))

    def _where_to_go(self) -> NotLeader:
        leadership = self._log.leadership
        leader = leadership.leader
        if leader is None or (leader == self._config.name and self._duties is None):
            # Leading but not open yet: nothing to go to, the agent asks again in a moment.
            return NotLeader(term=leadership.term)
        member = self._config.members.get(leader)
        if member is None:
            return NotLeader(leader=leader, term=leadership.term)
        host, port = member.agents
        return NotLeader(leader=leader, address=f"{host}:{port}", term=leadership.term)
