"""A scripted controller and a scripted keeper, in this process, over real sockets."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent.config import AgentConfig, ControllerAddress
from agent.daemon import open_agent
from agent.keeper import wire
from agent.logs import EventLog
from agent.places import Places
from scheduler.protocol.framing import FrameReader, encode_frame
from scheduler.protocol.ids import make_token
from scheduler.protocol.messages import (
    AgentMessage,
    BulkData,
    BulkEnd,
    BulkHello,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Inventory,
    LeaderQuery,
    Message,
    NotLeader,
    Report,
    Reports,
    ReportsCommitted,
    Seen,
    Start,
    Verdict,
    Verdicts,
    Welcome,
    Work,
    decode_agent_message,
    encode_message,
)

INCARNATION = "0123abcd0000"
#: Longest wait for something that must come; the machines may be slow and loaded.
DEADLINE_S = 60.0


def token(number: int) -> str:
    return make_token(INCARNATION, number, 0)


async def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Poll `condition` until it holds; fail with `what` after DEADLINE_S."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, f"never came: {what}"
        await asyncio.sleep(0.02)


class Controller:
    """Listens like a controller's agent port and answers like a leader, unless told otherwise."""

    def __init__(self) -> None:
        self.address = ""
        self.term = 1
        self.session = 0
        self.orders = 0
        #: Set: every hello and query is answered with this redirect.
        self.leader_address: str | None = None
        self.is_silent = False
        self.received: list[AgentMessage] = []
        self.reports: dict[int, Report] = {}
        self.items: list[Report] = []
        self.streams: dict[str, bytearray] = {}
        self.stream_ends: dict[str, BulkEnd] = {}
        self.hellos: list[Hello] = []
        self.writer: asyncio.StreamWriter | None = None
        self.is_joined = False
        #: Cleared: bulk connections are not read, as by a slow reader.
        self.reads_streams = asyncio.Event()
        self.reads_streams.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def of(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.received if isinstance(message, kind)]

    def kinds(self, number: int) -> list[str]:
        """Kinds of the reports of one attempt, in order of their sequences."""
        found = sorted(self.reports.items())
        return [report.kind for _, report in found if report.token == token(number)]

    def finish(self, number: int) -> Any:
        reports = [*self.reports.values(), *self.items]
        found = [r.finish for r in reports if r.kind == "finished" and r.token == token(number)]
        return found[-1] if found else None

    def seen(self) -> Seen:
        return Seen(incarnation=INCARNATION, term=self.term, index=1)

    def send(self, message: Message) -> None:
        assert self.writer is not None
        self.writer.write(encode_frame(encode_message(message)))

    def start(self, number: int, *argv: str, **work: Any) -> None:
        self.orders += 1
        self.send(
            Start(
                order_sequence=self.orders,
                session=self.session,
                seen=self.seen(),
                token=token(number),
                work=Work(attempt=f"{number}/main/0#1", argv=argv, **work),
            )
        )

    def cut(self) -> None:
        """Drop every connection, as a dying controller does."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        self._writers.add(writer)
        try:
            request = ""
            while data := await reader.read(65_536):
                for body in frames.feed(data):
                    message = decode_agent_message(body)
                    self.received.append(message)
                    if isinstance(message, BulkHello):
                        request = message.request
                        self.streams[request] = bytearray()
                        await self.reads_streams.wait()
                    elif isinstance(message, BulkData):
                        self.streams[request] += message.data
                    elif isinstance(message, BulkEnd):
                        self.stream_ends[request] = message
                    elif not self.is_silent:
                        self._answer(message, writer)
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, message: AgentMessage, writer: asyncio.StreamWriter) -> None:
        def send(answer: Message) -> None:
            writer.write(encode_frame(encode_message(answer)))

        match message:
            case Hello() | LeaderQuery() if self.leader_address is not None:
                send(NotLeader(leader="c", address=self.leader_address, term=self.term))
            case LeaderQuery():
                send(NotLeader(leader="c", address=self.address, term=self.term))
            case Hello():
                self._welcome(message, writer)
            case Inventory():
                self.items.extend(message.items)
                if message.is_last:
                    send(self._verdicts())
                    self.is_joined = True
            case Heartbeat():
                send(
                    HeartbeatAck(
                        sequence=message.sequence,
                        sent_boottime_ms=message.sent_boottime_ms,
                        seen=self.seen(),
                        lease_ms=300_000,
                    )
                )
            case Reports():
                self.reports.update({report.sequence: report for report in message.reports})
                sequences = tuple(report.sequence for report in message.reports)
                send(ReportsCommitted(sequences=sequences, index=2))

    def _welcome(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        self.hellos.append(hello)
        self.writer = writer
        self.session += 1
        self.orders = 0
        self.items = []
        self.send(
            Welcome(
                session=self.session,
                cluster_id="c",
                incarnation=INCARNATION,
                term=self.term,
                heartbeat_interval_ms=100,
                heartbeat_timeout_ms=60_000,
                ack_timeout_ms=1_000,
                lease_ms=300_000,
                seen=self.seen(),
            )
        )

    def _verdicts(self) -> Verdicts:
        verdicts = tuple(
            Verdict(
                token=item.token,
                verdict="acknowledged" if item.kind == "finished" else "keep",
            )
            for item in self.items
        )
        return Verdicts(
            session=self.session,
            verdicts=verdicts,
            is_last=True,
            seen=self.seen(),
            lease_ms=300_000,
            hello_boottime_ms=self.hellos[-1].sent_boottime_ms,
        )


@asynccontextmanager
async def controllers(
    count: int, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[list[Controller]]:
    """That many controllers on loopback; the first answers as leader, the others point to it."""
    members = [Controller() for _ in range(count)]
    servers = []
    for member in members:
        server = await asyncio.start_server(member.serve, "127.0.0.1", 0, ssl=tls)
        servers.append(server)
        member.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for member in members[1:]:
        member.leader_address = members[0].address
    try:
        yield members
    finally:
        for member, server in zip(members, servers, strict=True):
            server.close()
            member.cut()


def config_for(directory: Path, members: list[Controller], **fields: Any) -> AgentConfig:
    addresses = []
    for number, member in enumerate(members):
        host, _, port = member.address.rpartition(":")
        addresses.append(ControllerAddress(f"c{number}", host, int(port)))
    return AgentConfig(
        name="a1", data_dir=directory, cluster_id="c", controllers=tuple(addresses), **fields
    )


class FakeKeeper:
    """Answers on the keeper's socket; tests decide what has become of the attempts."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.attempts: dict[str, dict[str, Any]] = {}
        self.writer: asyncio.StreamWriter | None = None

    def did(self, do: str) -> list[dict[str, Any]]:
        return [request for request in self.asked if request["do"] == do]

    def tell(self, event: dict[str, Any]) -> None:
        assert self.writer is not None
        self.writer.write(wire.encode(event))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = wire.Reader()
        self.writer = writer
        try:
            while data := await reader.read(65_536):
                for request in frames.feed(data):
                    self.asked.append(request)
                    answer = {"is": "answer", "id": request["id"], "ok": True}
                    writer.write(wire.encode(answer | self._facts(request)))
        except OSError:
            pass
        finally:
            writer.close()

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "attach":
                return {"store_id": "s", "boot_id": "b", "pid": 1, "limits": "sampled"}
            case "void":
                return {"voided": []}
            case "list":
                return {"attempts": list(self.attempts.values())}
            case "start":
                self.attempts[request["token"]] = {"token": request["token"], "state": "running"}
                return {"state": "intent"}
            case "stop":
                return {"finishes": {}}
        return {}


@asynccontextmanager
async def fake_keeper(directory: Path) -> AsyncIterator[FakeKeeper]:
    """A scripted keeper where the agent of `directory` looks for its own."""
    keeper = FakeKeeper()
    server = await asyncio.start_unix_server(keeper.serve, str(Places(directory).socket()))
    try:
        yield keeper
    finally:
        server.close()
        if keeper.writer is not None:
            keeper.writer.close()


class RunningAgent:
    """An agent in this process, and its task."""

    def __init__(self, config: AgentConfig) -> None:
        self.log = io.StringIO()
        self._agent = open_agent(config, EventLog(self.log, is_json=False))
        self.core = self._agent.core
        self.task = asyncio.create_task(self._agent.run())

    async def end(self, *, is_leave: bool) -> int:
        """Tell it to go and wait for it; the exit code."""
        self._agent.stop(is_leave=is_leave, why="test")
        async with asyncio.timeout(DEADLINE_S):
            return await self.task


@asynccontextmanager
async def running_agent(config: AgentConfig) -> AsyncIterator[RunningAgent]:
    """An agent that is gone at the end of the block; its keeper stays."""
    one = RunningAgent(config)
    try:
        yield one
    finally:
        if not one.task.done():
            await one.end(is_leave=False)
