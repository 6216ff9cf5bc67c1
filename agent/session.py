"""The control connection: dial until the leader is found, say hello, carry messages both ways.

Decides nothing about jobs: what comes in becomes events, what the core wants said goes out. A
living agent never closes a session without a goodbye (specification 1.6): a bare FIN means death.
Loop thread only.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from typing import Final, cast

from agent.config import AgentConfig, split_address
from agent.dialing import Dialer
from agent.errors import ConnectFailed
from agent.events import Event, LeaderLearned, Received, SessionClosed, Welcomed
from agent.logs import EventLog
from agent.tls import check_peer, client_context
from scheduler.protocol.errors import DecodeError
from scheduler.protocol.framing import FrameReader, encode_frame
from scheduler.protocol.messages import (
    ComeBack,
    ControllerMessage,
    Goodbye,
    Hello,
    LeaderQuery,
    Message,
    NotLeader,
    Refused,
    Welcome,
    decode_controller_message,
    encode_message,
)

#: A connection, with its TLS handshake, must stand within this time.
CONNECT_S: Final = 5.0
#: An unanswered hello or query makes the agent ask the other controllers after this time (the
#: default of `ack_timeout`; the leader's own value is known only after its welcome).
ANSWER_S: Final = 2.0
#: The answer to a hello, which waits for a commit, must come within this time all in all; then the
#: next controller is tried.
HELLO_S: Final = 10.0
#: A closed connection may still send what was queued (the goodbye) for this long.
CLOSE_S: Final = 2.0
#: Bytes waiting for the controller; more means that it does not read, and the session is left.
SEND_BYTES_MAX: Final = 16 * 1024 * 1024
#: Messages in one event batch: bounds how long other work waits while a burst is handled.
BATCH_MAX: Final = 1_000


class ControlLink(asyncio.Protocol):
    """One connection to a controller: frames in, messages out."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        #: The first message: the answer to a hello or a query.
        self.first: asyncio.Future[ControllerMessage] = loop.create_future()
        self.closed: asyncio.Future[str] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        #: Takes the messages after the first.
        self.take: Callable[[list[ControllerMessage]], None] | None = None
        self._early: list[ControllerMessage] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's, so this cannot be asserted.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.closed.done():
            return  # What comes after our close belongs to no session any more.
        messages: list[ControllerMessage] = []
        try:
            for body in self._reader.feed(data):
                messages.append(decode_controller_message(body))
        except DecodeError as error:
            # What came before the garbage is whole; what comes after it cannot be told apart.
            self._deliver(messages)
            self.send(Goodbye(mode="reconnect"))
            self.close(f"the controller sent no message: {error}")
            return
        self._deliver(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(str(exc or "closed by the controller"))
        self._transport = None
        if not self._gone.done():
            self._gone.set_result(None)

    def send(self, message: Message) -> None:
        """Queue one message; dropped once the link is closed."""
        transport = self._transport
        if transport is None or transport.is_closing() or self.closed.done():
            return
        transport.write(encode_frame(encode_message(message)))
        if transport.get_write_buffer_size() > SEND_BYTES_MAX:
            self._finish("the controller does not read")
            transport.abort()

    def begin(self, take: Callable[[list[ControllerMessage]], None]) -> None:
        """Hand everything after the first message to `take`, what came already first."""
        self.take = take
        early, self._early = self._early, []
        if early:
            take(early)

    def close(self, reason: str) -> None:
        """Send what is queued, then close; abort when that takes longer than CLOSE_S."""
        self._finish(reason)
        transport = self._transport
        if transport is not None:
            transport.close()
            asyncio.get_running_loop().call_later(CLOSE_S, transport.abort)

    async def wait_gone(self) -> None:
        """Return once nothing queued is left to send, at most after CLOSE_S."""
        await asyncio.wait([self._gone], timeout=CLOSE_S)

    def _deliver(self, messages: list[ControllerMessage]) -> None:
        if messages and not self.first.done():
            self.first.set_result(messages.pop(0))
        if self.take is None:
            self._early.extend(messages)
            return
        for at in range(0, len(messages), BATCH_MAX):
            self.take(messages[at : at + BATCH_MAX])

    def _finish(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        if not self.first.done():
            self.first.cancel()


async def open_link(address: str, config: AgentConfig) -> ControlLink:
    """A connection to the controller at `address`, its certificate checked.

    Raises ConnectFailed.
    """
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        context = client_context(config.tls) if config.tls is not None else None
        async with asyncio.timeout(CONNECT_S):
            transport, link = await loop.create_connection(ControlLink, host, port, ssl=context)
    except (OSError, ValueError, TimeoutError, ssl.SSLError) as error:
        raise ConnectFailed(f"{address}: {error or 'no answer'}") from None
    if context is not None:
        try:
            check_peer(transport)
        except ConnectFailed:
            transport.abort()
            raise
    return link


class Sessions:
    """Keeps one session with the leader, as far as there is one."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        log: EventLog,
        feed: Callable[[list[Event]], None],
        make_hello: Callable[[], Hello],
        refuse: Callable[[Refused], None],
        rng: random.Random,
    ) -> None:
        self._config = config
        self._log = log
        self._feed = feed
        self._make_hello = make_hello
        #: Told of a refusal that trying again cannot help.
        self._refuse = refuse
        self._dialer = Dialer(tuple(c.text for c in config.controllers), rng)
        self._link: ControlLink | None = None
        #: The link of the last session, which may still have to send its goodbye.
        self._ending: ControlLink | None = None
        self._is_closing = False
        self.address = ""
        #: Highest term that a controller has spoken of.
        self._term = 0
        #: Set by the owner once this session is joined: then its loss is no miss of the dialling.
        self.is_joined = False

    def send(self, message: Message) -> None:
        """Send in the current session; dropped without one: every rejoin says all again."""
        if self._link is not None:
            self._link.send(message)

    def close(self, reason: str, *, address: str = "") -> None:
        """End the session; `address` is dialled next, if given."""
        if address:
            self._dialer.prefer(address)
        if self._link is not None:
            self._link.close(reason)

    async def leave(self) -> None:
        """Dial no more, and wait until what was said last is sent."""
        self._is_closing = True
        for link in (self._link, self._ending):
            if link is not None:
                link.close("leaving")
                await link.wait_gone()

    async def run(self) -> None:
        """Dial and serve sessions until `leave`. Network errors are logged and tried again."""
        while not self._is_closing:
            address, delay_ms = self._dialer.next()
            await asyncio.sleep(delay_ms / 1000)
            try:
                link = await open_link(address, self._config)
            except ConnectFailed as error:
                self._log.info("dial_failed", reason=str(error))
                self._dialer.miss()
                continue
            try:
                await self._say_hello(link, address)
            finally:
                link.close("left")

    async def query(self) -> None:
        """Ask every other controller who leads; each answer is fed as LeaderLearned."""
        for answer in await self._ask_others(self.address):
            self._feed([LeaderLearned(term=answer.term, address=answer.address)])

    async def _ask_others(self, address: str) -> list[NotLeader]:
        """Who leads, in the words of all controllers but the one at `address`."""
        async with asyncio.TaskGroup() as group:
            others = self._dialer.others(address)
            tasks = [group.create_task(self._ask_one(other)) for other in others]
        return [answer for task in tasks if (answer := task.result()) is not None]

    async def _ask_one(self, address: str) -> NotLeader | None:
        try:
            link = await open_link(address, self._config)
        except ConnectFailed as error:
            self._log.info("query_failed", reason=str(error))
            return None
        try:
            link.send(LeaderQuery(cluster_id=self._config.cluster_id, name=self._config.name))
            answer = await _first(link, ANSWER_S)
        finally:
            link.close("answered")
        return answer if isinstance(answer, NotLeader) else None

    async def _wait_for_answer(self, link: ControlLink, address: str) -> ControllerMessage | None:
        """The answer to a hello; None when it does not come, or another leads by now."""
        answer = await _first(link, ANSWER_S)
        if answer is not None or link.closed.done():
            return answer
        for other in await self._ask_others(address):
            if other.term > self._term and other.address not in ("", address):
                self._term = other.term
                self._dialer.prefer(other.address)
        if self._dialer.is_directed:
            return None
        return await _first(link, HELLO_S - ANSWER_S)

    async def _say_hello(self, link: ControlLink, address: str) -> None:
        hello = self._make_hello()
        link.send(hello)
        answer = await self._wait_for_answer(link, address)
        match answer:
            case Welcome():
                self._term = max(self._term, answer.term)
                await self._serve(link, answer, hello, address)
            case NotLeader():
                self._term = max(self._term, answer.term)
                self._dialer.redirect(answer.address if answer.address != address else "")
            case ComeBack():
                self._dialer.come_back(address, answer.after_ms)
            case Refused():
                self._log.warning("refused", code=answer.code, message=answer.message)
                self._dialer.miss()
                if answer.is_final:
                    self._refuse(answer)
            case None:
                # It may have taken the hello in: a bare close would look like our death.
                link.send(Goodbye(mode="reconnect"))
                self._log.info("hello_unanswered", address=address)
                if not self._dialer.is_directed:
                    self._dialer.miss()
            case _:
                link.send(Goodbye(mode="reconnect"))
                self._log.warning("hello_misanswered", kind=type(answer).__name__)
                self._dialer.miss()

    async def _serve(self, link: ControlLink, welcome: Welcome, hello: Hello, address: str) -> None:
        if welcome.cluster_id != self._config.cluster_id:
            self._log.warning("wrong_cluster", found=welcome.cluster_id, address=address)
            self._dialer.miss()
            return
        self._dialer.welcomed(address)
        self._link, self.address, self.is_joined = link, address, False
        self._feed([Welcomed(welcome, hello.sent_boottime_ms, address)])
        link.begin(lambda messages: self._feed([Received(message) for message in messages]))
        try:
            # Not awaited itself: a cancelled waiter would cancel it, and it would look closed.
            await asyncio.wait([link.closed])
            reason = link.closed.result()
            if self.is_joined:
                self._dialer.lost()
            else:
                self._dialer.miss()
        finally:
            if not link.closed.done():
                # Cancelled: the agent ends by a failure, and its jobs go on.
                link.send(Goodbye(mode="restart"))
            self._link, self.address, self._ending = None, "", link
        self._feed([SessionClosed(reason)])


async def _first(link: ControlLink, timeout_s: float) -> ControllerMessage | None:
    """The first message on `link`; None when none comes in time."""
    await asyncio.wait([link.first], timeout=timeout_s)
    return link.first.result() if link.first.done() and not link.first.cancelled() else None
