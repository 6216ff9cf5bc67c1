"""The agent process at work: events to the core, the core's actions to sockets and disk.

All on one event loop; only durable writes run in a worker thread, one at a time, and while one
runs the next ones gather: a burst of a thousand orders costs a few syncs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from agent.bulk import BulkStreams
from agent.config import AgentConfig
from agent.core import EXIT_UNCOMMITTED, AgentState
from agent.custody import Custody
from agent.events import (
    Action,
    AskKeeper,
    CloseSession,
    CloseStream,
    Event,
    Exit,
    LeaveRequested,
    Note,
    OpenStream,
    OutboxWritten,
    QueryLeader,
    ReleaseKeeper,
    RestartRequested,
    SaveSeen,
    Send,
    Tick,
)
from agent.logs import EventLog
from agent.membership import lease_margin_ms
from agent.node import NodeCell
from agent.outbox import Outbox, OutboxDisk
from agent.places import Places, make_passable
from agent.resources import find_addresses, find_capacity, sample_usage
from agent.session import Sessions
from scheduler.protocol.messages import PROTOCOL_VERSION, Hello, Refused, Seen
from wal.errors import OutOfSpace

TICK_S: Final = 0.1
USAGE_S: Final = 5.0
#: The newest point shown is written at most this often: each write costs two syncs.
SAVE_SEEN_S: Final = 1.0
#: A full disk is tried again after this long.
DISK_FULL_RETRY_S: Final = 1.0
#: Exit code when the cluster refuses this agent for good.
EXIT_REFUSED: Final = 4


def boottime_ms() -> int:
    """CLOCK_BOOTTIME in ms: it counts suspend, and nobody can set it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Agent:
    """Wires everything together. Loop thread only."""

    def __init__(
        self, config: AgentConfig, *, node: NodeCell, outbox: OutboxDisk, log: EventLog
    ) -> None:
        self._config = config
        self._places = Places(config.data_dir)
        self._node = node
        self._disk = outbox
        self._log = log
        rng = random.Random()
        reports, last_sequence = outbox.load()
        self.core = AgentState(
            outbox=Outbox.restore(reports, last_sequence=last_sequence),
            seen=node.record.seen,
            rng=rng,
        )
        self._nonce = os.urandom(8).hex()
        self._capacity = find_capacity(config.capacity, config.data_dir)
        self._custody = Custody(
            directory=self._places.keeper,
            socket_path=self._places.socket(),
            log=log,
            feed=self.feed,
            attach_fields=self._attach_fields,
            is_lease_over=self._is_lease_over,
        )
        self._sessions = Sessions(
            config,
            log=log,
            feed=self.feed,
            make_hello=self._make_hello,
            refuse=self._refused,
            rng=rng,
        )
        self._bulk = BulkStreams(
            config,
            node_uuid=node.record.node_uuid,
            attempts=self._places.keeper / "attempts",
            is_live=self._is_live,
            log=log,
        )
        self._is_keeper_known = asyncio.Event()
        self._has_writes = asyncio.Event()
        self._failure: Exception | None = None
        self._has_failed = asyncio.Event()
        self._seen_to_save: Seen | None = None
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: asyncio.TaskGroup | None = None
        self._is_querying = False
        self._status: dict[str, Any] = {}

    async def run(self) -> int:
        """Work until a signal or the cluster ends it; return the exit code."""
        self._log.info("agent_started", name=self._config.name, pid=os.getpid())
        work = asyncio.create_task(self._work())
        ends: list[asyncio.Future[Any]] = [work, self._exit]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not self._exit.done():
            # A failed sync, or a bug: said goodbye to, for the jobs go on without this process.
            await self._sessions.leave()
            work.result()
        await self._sessions.leave()
        await self._bulk.close_all()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await self._write_last()
        code = self._exit.result()
        self._log.info("agent_ended", code=code)
        self._write_status(exit_code=code)
        return code

    def stop(self, *, is_leave: bool, why: str) -> None:
        """A signal: leave (end all jobs first), or go while they go on."""
        self._log.info("agent_stopping", is_leave=is_leave, why=why)
        if not is_leave:
            self.feed([RestartRequested()])
            return
        self.feed([LeaveRequested(why)])
        timeout_s = self._config.leave_timeout_ms / 1000
        asyncio.get_running_loop().call_later(timeout_s, self._give_up_leaving)

    def feed(self, events: list[Event]) -> None:
        """Hand `events` to the core and carry out what it decides."""
        if self._failure is not None:
            return
        try:
            self._handle(events)
        except Exception as error:  # noqa: BLE001  called by the loop: nobody else would see it
            # The core's state can be half changed: nothing more may be decided from it.
            self._failure = error
            self._has_failed.set()

    def _handle(self, events: list[Event]) -> None:
        now_ms, wall_ms = boottime_ms(), time.time_ns() // 1_000_000
        for event in events:
            for action in self.core.handle(event, now_ms=now_ms, wall_ms=wall_ms):
                self._act(action)
        session = self.core.session
        if session is not None and session.is_joined:
            self._sessions.is_joined = True
        if self.core.is_keeper_attached:
            self._is_keeper_known.set()
        if self.core.outbox.has_changes:
            self._has_writes.set()
        self._write_status()

    def _act(self, action: Action) -> None:
        match action:
            case AskKeeper():
                self._custody.ask(action.request)
            case Send():
                self._sessions.send(action.message)
            case Note():
                (self._log.warning if action.is_warning else self._log.info)(
                    action.event, **action.fields
                )
            case CloseSession():
                self._sessions.close(action.reason, address=action.address)
            case QueryLeader():
                self._query_leader()
            case SaveSeen():
                self._seen_to_save = action.seen
            case OpenStream():
                self._bulk.open(action.request, self._sessions.address)
            case CloseStream():
                self._bulk.close(action.request)
            case ReleaseKeeper():
                self._custody.release()
            case Exit():
                self._end(action.code, action.reason)

    # ---- tasks -----------------------------------------------------------------------------------

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._custody.run())
            tasks.create_task(self._join())
            tasks.create_task(self._write_outbox())
            tasks.create_task(self._save_seen())
            tasks.create_task(self._sample())
            tasks.create_task(self._tick())
            tasks.create_task(self._fail())

    async def _fail(self) -> None:
        await self._has_failed.wait()
        assert self._failure is not None
        raise self._failure

    async def _join(self) -> None:
        # A hello says which store and boot the keeper has: nothing is dialled before it answered.
        await self._is_keeper_known.wait()
        await self._sessions.run()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.feed([Tick()])

    async def _sample(self) -> None:
        while True:
            usage = sample_usage(self._config.data_dir, disk_low_bytes=self._config.disk_low_bytes)
            self.feed([usage])
            await asyncio.sleep(USAGE_S)

    async def _write_outbox(self) -> None:
        while True:
            await self._has_writes.wait()
            self._has_writes.clear()
            writes = self.core.outbox.take_writes()
            while writes is not None:
                try:
                    await asyncio.to_thread(self._disk.write, writes)
                except OutOfSpace as error:
                    # Reports stay in memory and unsent until they are durable.
                    self._log.warning("disk_full", reason=str(error))
                    await asyncio.sleep(DISK_FULL_RETRY_S)
                    continue
                self.feed([OutboxWritten(writes.last_sequence)])
                writes = self.core.outbox.take_writes()

    async def _save_seen(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SEEN_S)
            await self._save_seen_once()

    async def _save_seen_once(self) -> None:
        seen, self._seen_to_save = self._seen_to_save, None
        if seen is None:
            return
        try:
            await asyncio.to_thread(self._node.save_seen, seen)
        except OSError as error:
            self._log.warning("seen_not_saved", reason=str(error))

    async def _write_last(self) -> None:
        await self._save_seen_once()
        writes = self.core.outbox.take_writes()
        if writes is not None:
            try:
                await asyncio.to_thread(self._disk.write, writes)
            except OutOfSpace as error:
                self._log.warning("disk_full", reason=str(error))
        self._disk.close()

    # ---- for the parts ---------------------------------------------------------------------------

    def _attach_fields(self) -> dict[str, Any]:
        session = self.core.session
        return {
            "cluster_id": self._config.cluster_id,
            "node": self._config.name,
            "session": 0 if session is None else session.number,
        }

    def _make_hello(self) -> Hello:
        return Hello(
            protocol_min=PROTOCOL_VERSION,
            protocol_max=PROTOCOL_VERSION,
            cluster_id=self._config.cluster_id,
            name=self._config.name,
            node_uuid=self._node.record.node_uuid,
            start_number=self._node.record.start_number,
            nonce=self._nonce,
            store_id=self.core.store_id,
            boot_id=self.core.boot_id,
            agent_version=_version(),
            capacity=self._capacity,
            addresses=self._config.addresses or find_addresses(),
            labels=self._config.labels,
            seen=self.core.seen,
            sent_boottime_ms=boottime_ms(),
            limits=self.core.limits,
        )

    def _is_lease_over(self) -> bool:
        end_ms = self.core.attempts.lease_end_ms()
        session = self.core.session
        margin_ms = lease_margin_ms(session.lease_ms if session is not None else 0)
        return end_ms is not None and boottime_ms() >= end_ms - margin_ms

    def _is_live(self, token: str) -> bool:
        attempt = self.core.attempts.get(token)
        return attempt is not None and attempt.is_live

    def _query_leader(self) -> None:
        if self._tasks is not None and not self._is_querying:
            self._is_querying = True
            self._tasks.create_task(self._query())

    async def _query(self) -> None:
        try:
            await self._sessions.query()
        finally:
            self._is_querying = False

    def _refused(self, answer: Refused) -> None:
        # Running jobs are the keeper's and their leases'; without a cluster nothing is left to do.
        self._end(EXIT_REFUSED, f"{answer.code}: {answer.message}")

    def _give_up_leaving(self) -> None:
        waiting = len(self.core.outbox)
        self._end(EXIT_UNCOMMITTED, f"leave_timeout passed; {waiting} reports stay in the outbox")

    def _end(self, code: int, reason: str) -> None:
        if not self._exit.done():
            self._log.info("agent_ending", code=code, reason=reason)
            self._exit.set_result(code)

    def _write_status(self, **more: Any) -> None:
        """Replace status.json when what it says has changed; who starts agents reads it."""
        session = self.core.session
        status = {
            "pid": os.getpid(),
            "keeper_pid": self._custody.pid,
            "session": session.number if session is not None and session.is_joined else None,
            "leader": self._sessions.address or None,
            **more,
        }
        if status == self._status:
            return
        self._status = status
        aside = self._places.status.with_suffix(".tmp")
        try:
            aside.write_text(json.dumps(status))
            aside.replace(self._places.status)
        except OSError as error:
            self._log.warning("status_not_written", reason=str(error))


def _version() -> str:
    try:
        return version("pertinax")
    except PackageNotFoundError:
        return "0"


def open_agent(config: AgentConfig, log: EventLog) -> Agent:
    """The agent of `config`, its stores opened; the caller holds the directory's lock.

    Blocking. Raises wal errors and ValueError for stores that cannot be used.
    """
    places = Places(config.data_dir)
    make_passable(places.keeper, is_root=os.geteuid() == 0)
    node = NodeCell.open(config.data_dir)
    outbox = OutboxDisk(places.outbox, cluster_id=config.cluster_id, name=config.name)
    if outbox.damaged:
        log.warning("outbox_damaged", records=outbox.damaged)
    return Agent(config, node=node, outbox=outbox, log=log)


def data_directory(config: AgentConfig) -> Path:
    """The data directory, made if it is missing; only its owner may look inside. OSError."""
    make_passable(config.data_dir, is_root=os.geteuid() == 0)
    return config.data_dir
