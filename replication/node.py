"""`RaftLog`: one member of the replicated log, put together from its parts.

    transport -> pump -> guard -> core (PySyncObj) -> journal -> wal
                   |-> state machine      snapshot engine -> wal snapshots

A data directory belongs to one member of one cluster incarnation: `found_member` makes it, once;
opening any other directory is refused. A member that lost its disk comes back through
`found_member(..., is_replacement=True)`: until it has caught up it neither votes nor counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from replication import contract
from replication.config import ReplicationConfig
from replication.core import CoreSettings, RaftCore
from replication.entries import COMMAND_BYTES_MAX
from replication.errors import (
    LeadershipLost,
    MemberUnreachable,
    NotLeader,
    OutcomeUnknown,
    RequestFailed,
)
from replication.guard import Guard
from replication.interface import (
    Applied,
    ClusterStatus,
    Leadership,
    RequestHandler,
    Role,
    StateMachine,
)
from replication.journal import WalJournal
from replication.messages import RaftMessage, Vitals
from replication.pump import Pump
from replication.runtime import AsyncioRuntime
from replication.snapshot import SnapshotEngine, recover
from replication.status import StatusDesk, empty_status
from replication.transport import Transport
from wal.identity import Identity, create_directory
from wal.log import WriteAheadLog
from wal.settings import WalSettings
from wal.snapshots import SnapshotInfo, SnapshotStore

logger = logging.getLogger(__name__)

SNAPSHOTS_DIRECTORY: Final = "snapshots"
#: Its presence means: this member came back with an empty disk and does not count yet.
JOINING_NAME: Final = "joining"
READ_INDEX_KIND: Final = "read_index"
#: What `read_barrier` waits when it is given no limit.
BARRIER_TIMEOUT_S: Final = 10.0
#: Room for the largest command and its prefix in the log.
RECORD_BYTES_MAX: Final = COMMAND_BYTES_MAX + 4_096
#: How often a handover looks whether its target has caught up.
HANDOVER_PERIOD_S: Final = 0.01


def identity_of(config: ReplicationConfig) -> Identity:
    """Whose directory `config.data_dir` must be."""
    return Identity(config.cluster_id, config.name, config.incarnation)


def found_member(config: ReplicationConfig, *, is_replacement: bool = False) -> None:
    """Make `config.data_dir` this member's, durably. Idempotent; blocks.

    `is_replacement` for a member that lost its disk. Without it the member may vote at once, which
    is right only when the whole cluster is founded. Raises wal.errors.WrongIdentity.
    """
    if is_replacement:
        config.data_dir.mkdir(parents=True, exist_ok=True)
        (config.data_dir / JOINING_NAME).touch()
        sync_directory(config.data_dir)
    create_directory(config.data_dir, identity_of(config))


def sync_directory(path: Path) -> None:
    """Make names created or removed in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RaftLog:
    """A `ReplicatedLog` and `MemberRequests`. All methods on the event loop that ran `start`."""

    def __init__(self, config: ReplicationConfig, state_machine: StateMachine) -> None:
        self._config = config
        self._machine = state_machine
        self._transport = Transport(config)
        self._store = SnapshotStore(config.data_dir / SNAPSHOTS_DIRECTORY)
        self._log: WriteAheadLog | None = None
        self._runtime: AsyncioRuntime | None = None
        self._core: RaftCore | None = None
        self._guard: Guard | None = None
        self._pump: Pump | None = None
        self._snapshots: SnapshotEngine | None = None
        self._desk: StatusDesk | None = None
        self._leadership_callbacks: list[Callable[[Leadership], None]] = []
        self._fatal_callbacks: list[Callable[[BaseException], None]] = []
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._last_leadership = Leadership(term=0, role=Role.FOLLOWER, leader=None)
        #: Set, and replaced, at each change.
        self._leadership_changed = asyncio.Event()
        self._is_closed = False

    # ReplicatedLog

    @property
    def name(self) -> str:
        return self._config.name

    @property
    def leadership(self) -> Leadership:
        return self._last_leadership

    @property
    def is_leader(self) -> bool:
        return self._last_leadership.role is Role.LEADER

    @property
    def commit_index(self) -> int:
        return 0 if self._core is None else self._core.commit_index

    @property
    def applied_index(self) -> int:
        return 0 if self._pump is None else self._pump.applied_index

    @property
    def apply_lag_ms(self) -> float:
        """Time from commit to apply of the newest applied entry, in ms."""
        return 0.0 if self._pump is None else self._pump.apply_lag_ms

    @property
    def port(self) -> int:
        """The port this member listens on."""
        return self._transport.port

    async def start(self) -> None:
        """Recover, listen, dial the peers and begin to take part.

        Raises ReplicationError, wal.errors.WalError (damage, wrong identity, in use) and OSError.
        """
        contract.check_library()
        loop = asyncio.get_running_loop()
        settings = None
        if self._config.segment_bytes is not None:
            settings = WalSettings(
                segment_bytes=self._config.segment_bytes,
                reserve_bytes=max(2 * RECORD_BYTES_MAX, self._config.segment_bytes // 4),
                record_bytes_max=RECORD_BYTES_MAX,
            )
        identity = identity_of(self._config)
        log = await loop.run_in_executor(
            None,
            lambda: WriteAheadLog.open(self._config.data_dir, identity=identity, settings=settings),
        )
        self._log = log
        try:
            await loop.run_in_executor(None, self._store.open)
            applied_index, applied_term, newest = recover(self._store, log, self._machine)
            self._assemble(log, loop, applied_index, applied_term, newest)
            await self._transport.start()
        except BaseException:
            await self.close()
            raise
        assert self._pump is not None
        self._pump.start()

    def _assemble(
        self,
        log: WriteAheadLog,
        loop: asyncio.AbstractEventLoop,
        applied_index: int,
        applied_term: int,
        newest: SnapshotInfo | None,
    ) -> None:
        config = self._config
        runtime = AsyncioRuntime(loop)
        core = RaftCore(core_settings(config), WalJournal(log), self._transport)
        is_joining = (config.data_dir / JOINING_NAME).exists()
        guard = Guard(core, is_joining=is_joining)
        pump = Pump(
            config,
            core,
            guard,
            self._machine,
            runtime,
            applied_index=applied_index,
            applied_term=applied_term,
            on_applied=self._note_applied,
            on_leadership=self._note_leadership,
            on_fatal=self._note_fatal,
        )
        snapshots = SnapshotEngine(
            config,
            self._store,
            self._machine,
            core=core,
            pump=pump,
            transport=self._transport,
            newest=newest,
        )
        guard.on_echo = pump.reads.note_echo
        guard.on_offer = snapshots.receive_offer
        guard.on_admitted = self._forget_joining
        self._runtime, self._core, self._guard = runtime, core, guard
        self._pump, self._snapshots = pump, snapshots
        self._desk = StatusDesk(
            config, self._transport, log=log, core=core, pump=pump, snapshots=snapshots
        )
        self._transport.on_message = self._receive
        self._transport.on_connected = lambda member, is_connected: pump.set_connected(
            member, is_connected=is_connected
        )
        self._transport.own_vitals = self._vitals
        self._transport.on_request(READ_INDEX_KIND, self._answer_read_index)
        if is_joining:
            logger.warning("member_is_joining: it does not vote or count before it caught up")

    async def close(self) -> None:
        """Stop taking part; pending proposals end as outcome_unknown. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pump is not None:
            self._pump.stop("this member stops")
        await self._transport.close()
        if self._snapshots is not None:
            await self._snapshots.close()
        loop = asyncio.get_running_loop()
        if self._runtime is not None:
            await loop.run_in_executor(None, self._runtime.close)
        if self._log is not None:
            await loop.run_in_executor(None, self._log.close)
        for _, future in self._applied_waiters:
            future.cancel()

    async def propose(self, command: bytes, *, is_urgent: bool = False) -> Applied:
        """As `ReplicatedLog.propose`."""
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()

        def resolve(outcome: Applied | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.propose_nowait(command, resolve, is_urgent=is_urgent)
        return await future

    def propose_nowait(
        self,
        command: bytes,
        done: Callable[[Applied | Exception], None],
        *,
        is_urgent: bool = False,
    ) -> None:
        """As `ReplicatedLog.propose_nowait`; `done` is never called from within this call."""
        if self._pump is None:
            asyncio.get_running_loop().call_soon(done, NotLeader(None))
        else:
            self._pump.propose(command, done, is_urgent=is_urgent)

    async def read_barrier(self, *, timeout_s: float | None = None) -> int:
        """As `ReplicatedLog.read_barrier`."""
        limit_s = BARRIER_TIMEOUT_S if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        index = await self._confirmed_index(limit_s)
        try:
            return await self.wait_applied(index, timeout_s=max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise OutcomeUnknown(f"entry {index} was not applied here in time") from None

    async def _confirmed_index(self, timeout_s: float) -> int:
        leader = self._last_leadership.leader
        if leader is None:
            raise NotLeader(None)
        if leader == self.name:
            return await self._read_index(timeout_s)
        try:
            body = str(int(timeout_s * 1000)).encode()
            answer = await self.request(leader, READ_INDEX_KIND, body, timeout_s=timeout_s)
            return int(answer)
        except TimeoutError:
            raise OutcomeUnknown("the leader did not confirm the read in time") from None
        except (MemberUnreachable, RequestFailed, ValueError) as error:
            raise LeadershipLost(f"leader {leader} did not confirm the read: {error}") from error

    async def _read_index(self, timeout_s: float) -> int:
        pump = self._pump
        if pump is None or pump.is_stopped:
            raise NotLeader(None)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def resolve(outcome: int | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        assert self._runtime is not None
        pump.reads.request(
            resolve, leader=self._last_leadership.leader, deadline=self._runtime.now() + timeout_s
        )
        pump.wake()
        return await future

    async def _answer_read_index(self, member: str, body: bytes) -> bytes:
        del member
        timeout_ms = min(int(body), int(BARRIER_TIMEOUT_S * 1000))
        return str(await self._read_index(timeout_ms / 1000)).encode()

    async def wait_applied(self, index: int, *, timeout_s: float) -> int:
        """As `ReplicatedLog.wait_applied`."""
        if self.applied_index < index:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiter = (index, future)
            self._applied_waiters.append(waiter)
            try:
                async with asyncio.timeout(timeout_s):
                    await future
            finally:
                with suppress(ValueError):
                    self._applied_waiters.remove(waiter)
        return self.applied_index

    async def transfer_leadership(self, *, timeout_s: float) -> bool:
        """As `ReplicatedLog.transfer_leadership`; new proposals wait meanwhile."""
        pump, core = self._pump, self._core
        if pump is None or core is None or not core.is_leading or not self._config.peers:
            return False
        term = core.term
        pump.is_paused = True
        try:
            async with asyncio.timeout(timeout_s):
                while core.is_leading and core.term == term:
                    # Asked again when nothing came of it: the message or the election may fail.
                    target = max(
                        core.connected_peers(),
                        key=lambda member: (core.match_index(member), member),
                        default=None,
                    )
                    if target is not None and core.hand_over(target):
                        logger.info("leadership_handed_over target=%s", target)
                        await self._wait_deposed(self._config.election_timeout_min_ms / 1000)
                    else:
                        await asyncio.sleep(HANDOVER_PERIOD_S)
                return not pump.is_stopped
        except TimeoutError:
            return False
        finally:
            pump.is_paused = False
            pump.wake()

    async def _wait_deposed(self, timeout_s: float) -> None:
        """Wait until this member no longer leads, or for `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.is_leader:
                    await self._leadership_changed.wait()

    def on_leadership(self, callback: Callable[[Leadership], None]) -> None:
        self._leadership_callbacks.append(callback)

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        self._fatal_callbacks.append(callback)

    def members(self) -> Sequence[str]:
        return tuple(sorted(self._config.members))

    # MemberRequests

    async def request(self, member: str, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        """As `MemberRequests.request`."""
        return await self._transport.request(member, kind, body, timeout_s=timeout_s)

    def on_request(self, kind: str, handler: RequestHandler) -> None:
        self._transport.on_request(kind, handler)

    # Beyond the protocols

    async def take_snapshot(self) -> int:
        """Take a snapshot now; returns the index of the newest one."""
        assert self._snapshots is not None
        await self._snapshots.begin()
        return self._snapshots.newest_index

    def step_down(self) -> None:
        """Give up leadership without a successor: this host was suspended, or is not well.

        The others elect after their timeout; this member may be elected again.
        """
        if self._core is not None and self._pump is not None and self._core.is_leading:
            self._core.step_down(self._core.term)
            self._pump.wake()

    def reload_tls(self) -> None:
        """Use renewed certificate files for new connections. Raises OSError, ssl.SSLError."""
        self._transport.reload_tls()

    @property
    def is_joining(self) -> bool:
        """Whether this member came back with an empty disk and does not count yet."""
        return self._guard is not None and self._guard.is_joining

    # Inside

    def _receive(self, member: str, message: RaftMessage) -> None:
        assert self._pump is not None
        self._pump.receive(member, message)

    def _note_applied(self, index: int) -> None:
        if self._applied_waiters:
            for waited, future in self._applied_waiters:
                if waited <= index and not future.done():
                    future.set_result(None)
        if self._snapshots is not None:
            self._snapshots.note_applied()

    def _note_leadership(self, leadership: Leadership) -> None:
        self._last_leadership = leadership
        event, self._leadership_changed = self._leadership_changed, asyncio.Event()
        event.set()
        for callback in self._leadership_callbacks:
            callback(leadership)

    def _note_fatal(self, error: BaseException) -> None:
        # The others must not wait for a member that does nothing any more.
        self._transport.abort()
        if self.is_leader:
            self._note_leadership(
                Leadership(term=self._last_leadership.term, role=Role.FOLLOWER, leader=None)
            )
        for callback in self._fatal_callbacks:
            callback(error)

    def _forget_joining(self) -> None:
        (self._config.data_dir / JOINING_NAME).unlink(missing_ok=True)
        sync_directory(self._config.data_dir)

    def _vitals(self) -> Vitals | None:
        core, pump = self._core, self._pump
        if core is None or pump is None:
            return None
        return Vitals(
            core.term,
            core.is_leading,
            core.commit_index,
            pump.applied_index,
            core.journal.last_index,
        )

    def status(self) -> ClusterStatus:
        """As `ReplicatedLog.status`; before `start` everything is zero."""
        if self._desk is None:
            return empty_status(self._config, self._last_leadership)
        return self._desk.answer(self._last_leadership)


def core_settings(config: ReplicationConfig) -> CoreSettings:
    """The core's part of the configuration."""
    return CoreSettings(
        name=config.name,
        peers=config.peers,
        election_timeout_min_s=config.election_timeout_min_ms / 1000,
        election_timeout_max_s=config.election_timeout_max_ms / 1000,
        append_period_s=config.append_period_ms / 1000,
        fallback_s=config.fallback_ms / 1000,
    )
