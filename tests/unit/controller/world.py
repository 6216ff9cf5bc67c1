"""One controller in virtual time: the real duties, sessions and core over an in-process log.

No sockets and no sleeping: agents are played over transports in memory, and the event loop's clock
jumps to the next timer whenever nothing else is to do. One scenario runs the same every time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from replication.memory import MemoryLog
from scheduler.controller.config import ControllerConfig, parse_config
from scheduler.controller.founding import Founding
from scheduler.controller.leader import Leader
from scheduler.controller.metrics import Metrics
from scheduler.controller.service import Service
from scheduler.controller.sessions import AgentPort
from scheduler.controller.state_machine import ClusterMachine
from scheduler.controller.watch import EventHub
from scheduler.controller.wire import AgentLink
from scheduler.core.views import event_view
from scheduler.protocol.framing import FrameReader, encode_frame
from scheduler.protocol.messages import (
    Capacity,
    ControllerMessage,
    FinishFacts,
    Goodbye,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Inventory,
    Message,
    Report,
    Reports,
    Seen,
    Start,
    StartFacts,
    Verdicts,
    Welcome,
    decode_controller_message,
    encode_message,
)
from scheduler.protocol.spec import JobSpec, Resources, Retry, TaskSpec

INCARNATION = "0123abcd0000"
CONFIG = """
name = "c1"
data_dir = "data"
insecure = true
[members.c1]
raft = "127.0.0.1:7001"
agents = "127.0.0.1:7002"
http = "http://127.0.0.1:7003"
[members.c2]
raft = "127.0.0.2:7001"
agents = "127.0.0.2:7002"
http = "http://127.0.0.2:7003"
[members.c3]
raft = "127.0.0.3:7001"
agents = "127.0.0.3:7002"
http = "http://127.0.0.3:7003"
"""
#: Virtual seconds after which a scenario is hanging.
SCENARIO_S_MAX = 4_000


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = 1_000.0

    def time(self) -> float:
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        """Let time pass without running anything: the host stood still."""
        self._virtual_s += seconds

    def _run_once(self) -> None:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not self._ready:  # type: ignore[attr-defined]
            assert scheduled, "nothing can happen any more: the scenario waits for ever"
            self._virtual_s = max(self._virtual_s, scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]


def play(scenario: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """Run one scenario in a world of its own, from election to orderly end."""

    async def whole() -> None:
        world = World(**options)
        async with asyncio.timeout(SCENARIO_S_MAX):
            await world.run(scenario)

    run_virtual(whole())


def run_virtual(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in virtual time."""
    loop = VirtualLoop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    try:
        loop.run_until_complete(work)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    # What a callback raises reaches nobody else.
    assert not faults, faults


class LoopClock:
    """The virtual loop's time as the host's clocks."""

    def boottime_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.boottime_ms()


class World:
    """The controller c1, leading a cluster of three whose others are silent."""

    def __init__(self, *, settings: dict[str, int | str] | None = None, leads: bool = True) -> None:
        self.metrics, self.hub, self.clock = Metrics(), EventHub(render=event_view), LoopClock()
        self.config: ControllerConfig = parse_config(CONFIG, Path("/nowhere/c1.toml"))
        self.machine = ClusterMachine(self.hub, self.metrics)
        self.log = MemoryLog(
            self.machine, name="c1", members=("c1", "c2", "c3"), cluster_id="cluster"
        )
        self.port = AgentPort(self.config, self.log, self.metrics)
        self.leader = Leader(
            config=self.config,
            founding=Founding("cluster", INCARNATION, dict(settings or {})),
            log=self.log,
            machine=self.machine,
            clock=self.clock,
            metrics=self.metrics,
            port=self.port,
        )
        self.service = Service(
            config=self.config,
            log=self.log,
            machine=self.machine,
            leader=self.leader,
            port=self.port,
            hub=self.hub,
            metrics=self.metrics,
        )
        self._leads = leads

    async def run(self, scenario: Callable[[World], Awaitable[None]]) -> None:
        leading = asyncio.create_task(self.leader.run())
        try:
            if self._leads:
                await self.log.start()
                await self.led()
            await scenario(self)
            if leading.done():
                leading.result()
        finally:
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            await self.log.close()

    @property
    def loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    async def until(self, condition: Callable[[], Any], *, within_s: float = 60) -> Any:
        """Virtual time passes until `condition` holds; returns its value."""
        deadline, step_s = self.loop.time() + within_s, 0.001
        while not (found := condition()):
            assert self.loop.time() < deadline, "the condition did not come true"
            await asyncio.sleep(step_s)
            step_s = min(0.1, step_s * 1.2)
        return found

    async def led(self) -> None:
        """The controller's takeover is applied and its duties are done."""
        await self.until(lambda: self.leader.duties is not None)

    async def wait(self, seconds: float) -> None:
        """Virtual time passes."""
        await asyncio.sleep(seconds)

    async def submit(self, **options: Any) -> int:
        submitted, _ = await self.service.submit(
            [job_spec(**options)], user="ana", key="", body_digest=""
        )
        return submitted.job_ids[0]

    def attempt(self, job: int, number: int = 1) -> dict[str, Any]:
        found = self.service.attempts(str(job))
        assert found is not None
        return found[number - 1]

    def phase(self, job: int) -> str:
        view = self.service.job(job)
        assert view is not None
        return str(view["phase"])

    def node(self, name: str) -> dict[str, Any]:
        view = self.service.node(name)
        assert view is not None
        return view

    async def joined(self, name: str = "a1", **options: Any) -> PlayedAgent:
        """An agent that has come all the way in."""
        agent = PlayedAgent(self, name, **options)
        await agent.join()
        return agent

    async def running(self, agent: PlayedAgent, **options: Any) -> tuple[int, Start]:
        """A job whose process the agent reported as started."""
        job = await self.submit(**options)
        order = await agent.next(Start)
        agent.report_started(order)
        await self.until(lambda: self.phase(job) == "Running")
        return job, order


def job_spec(*, node_limit: int = 0, cpu_millis: int = 1000, on_disconnect: str | None = None,
             node: str | None = None, retries: int = 0) -> JobSpec:  # fmt: skip
    task = TaskSpec(
        command=("true",),
        resources=Resources(cpu_millis=cpu_millis),
        retry=Retry(limit=retries, node_limit=node_limit),
        on_disconnect=on_disconnect,
        on_lease_end="freeze",
    )
    return JobSpec(tasks={"main": task}, node=node)


class MemoryTransport(asyncio.Transport):
    """What a link writes goes to the played agent in the next turn of the loop."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        super().__init__()
        self._take = take
        self.protocol: asyncio.Protocol | None = None
        self.is_cut = False
        self.is_reading_paused = False
        self._is_closing = False
        self._is_lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("memory", 0) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        if not self._is_closing and not self.is_cut:
            asyncio.get_running_loop().call_soon(self._take, bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self.is_reading_paused

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def close(self) -> None:
        self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def end(self, error: Exception | None) -> None:
        """The peer or the network ended the connection."""
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        self._is_closing = True
        if not self._is_lost and self.protocol is not None:
            self._is_lost = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, error)


class PlayedAgent:
    """An agent as its controller sees it; a test says what it does."""

    def __init__(
        self,
        world: World,
        name: str = "a1",
        *,
        uuid: str = "",
        start_number: int = 1,
        nonce: str = "n1",
        boot_id: str = "boot-1",
        cpu_millis: int = 8000,
        port: AgentPort | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.uuid = uuid or f"uuid-{name}"
        self.start_number = start_number
        self.nonce = nonce
        self.boot_id = boot_id
        self.cpu_millis = cpu_millis
        self.seen = Seen()
        self.received: list[ControllerMessage] = []
        self.history: list[ControllerMessage] = []
        self.is_closed = False
        self.session = 0
        self.sequence = 0
        self.beats = 0
        self._port = port or world.port
        self._reader = FrameReader()
        self._beating: asyncio.Task[None] | None = None
        self.transport: MemoryTransport
        self.link: AgentLink
        self.dial()

    def dial(self) -> None:
        """A new connection; what the old one brought is forgotten."""
        self.received, self._reader, self.is_closed = [], FrameReader(), False
        self.transport = MemoryTransport(self._take)
        self.link = AgentLink(self._port, is_named_by_tls=False)
        self.transport.protocol = self.link
        self.link.connection_made(self.transport)

    def hello(self, **changes: Any) -> Hello:
        fields: dict[str, Any] = {
            "protocol_min": 1,
            "protocol_max": 1,
            "cluster_id": "cluster",
            "name": self.name,
            "node_uuid": self.uuid,
            "start_number": self.start_number,
            "nonce": self.nonce,
            "store_id": f"store-{self.uuid}",
            "boot_id": self.boot_id,
            "agent_version": "0",
            "capacity": Capacity(cpu_millis=self.cpu_millis, memory_bytes=1 << 30),
            "seen": self.seen,
            "sent_boottime_ms": self.world.clock.boottime_ms(),
        }
        return Hello(**{**fields, **changes})

    async def join(self, *items: Report) -> Verdicts:
        """Hello, inventory, verdicts."""
        self.send(self.hello())
        welcome = await self.next(Welcome)
        self.session = welcome.session
        self.send(Inventory(session=welcome.session, items=items))
        return await self.next(Verdicts)

    def send(self, *messages: Message) -> None:
        """The controller gets these frames in one piece."""
        data = b"".join(encode_frame(encode_message(message)) for message in messages)
        self.send_raw(data)

    def send_raw(self, data: bytes) -> None:
        if not self.transport.is_closing() and not self.transport.is_cut:
            self.link.data_received(data)

    async def next(self, kind: type[Any], *, within_s: float = 60) -> Any:
        """The next message of this kind; earlier ones of other kinds stay."""

        def find() -> Any:
            for message in self.received:
                if isinstance(message, kind):
                    self.received.remove(message)
                    return message
            return None

        return await self.world.until(find, within_s=within_s)

    def all(self, kind: type[Any]) -> list[Any]:
        """Everything of this kind that ever came."""
        return [message for message in self.history if isinstance(message, kind)]

    def beat(self, **changes: Any) -> Heartbeat:
        self.beats += 1
        fields: dict[str, Any] = {
            "sequence": self.beats,
            "sent_boottime_ms": self.world.clock.boottime_ms(),
            "acknowledged": max((ack.sequence for ack in self.all(HeartbeatAck)), default=0),
        }
        heartbeat = Heartbeat(**{**fields, **changes})
        self.send(heartbeat)
        return heartbeat

    async def beat_for(self, seconds: float, *, interval_s: float = 1.0) -> list[HeartbeatAck]:
        """Heartbeats for so long; returns the acknowledgements that came meanwhile."""
        before = len(self.all(HeartbeatAck))
        end = self.world.loop.time() + seconds
        while self.world.loop.time() < end:
            self.beat()
            await asyncio.sleep(interval_s)
        return self.all(HeartbeatAck)[before:]

    def report(self, kind: str, token: str, **facts: Any) -> Report:
        self.sequence += 1
        report = Report(kind=kind, token=token, sequence=self.sequence, **facts)
        self.send(Reports(reports=(report,)))
        return report

    def start_facts(self, order: Start) -> StartFacts:
        worker = order.work.attempt.partition("#")[0]
        return StartFacts(started_at_ms=5, pid=77, boot_id=self.boot_id, worker=worker)

    def report_started(self, order: Start) -> Report:
        return self.report("started", order.token, start=self.start_facts(order))

    def finish_facts(self, order: Start, *, exit_code: int = 0, **changes: Any) -> FinishFacts:
        fields: dict[str, Any] = {
            "cause": "exit_zero" if exit_code == 0 else "exit_nonzero",
            "ended_at_ms": 6,
            "exit_code": exit_code,
            "start": self.start_facts(order),
        }
        return FinishFacts(**{**fields, **changes})

    def report_finished(self, order: Start, **changes: Any) -> Report:
        return self.report("finished", order.token, finish=self.finish_facts(order, **changes))

    def running_item(self, order: Start) -> Report:
        """What an inventory says of a live process."""
        return Report(kind="started", token=order.token, start=self.start_facts(order))

    def goodbye(self, mode: str) -> None:
        self.send(Goodbye(mode=mode))

    def die(self, error: Exception | None = None) -> None:
        """The connection is closed by this side: its process is gone."""
        self.transport.end(error)

    def cut(self) -> None:
        """Nothing passes any more, in neither direction, and nobody is told."""
        self.transport.is_cut = True

    def _take(self, data: bytes) -> None:
        for body in self._reader.feed(data):
            message = decode_controller_message(body)
            self.received.append(message)
            self.history.append(message)
            seen = getattr(message, "seen", None)
            if isinstance(seen, Seen):
                self.seen = max(self.seen, seen)
