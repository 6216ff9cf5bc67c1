"""A `ReplicatedLog` in one process and without a disk, for the unit tests of the layers above.

It keeps the promises of the interface (order, one apply per entry, every proposal resolves) and
lets a test play the cluster: change the leader, hold commits back, fail it. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from replication.entries import COMMAND_BYTES_MAX
from replication.errors import (
    CommandTooLarge,
    DiskFull,
    LeadershipLost,
    NotLeader,
    OutcomeUnknown,
)
from replication.interface import (
    Applied,
    ClusterStatus,
    Leadership,
    LogStatus,
    MemberStatus,
    RequestHandler,
    Role,
    StateMachine,
)

#: What `read_barrier` waits when it is given no limit.
BARRIER_TIMEOUT_S: Final = 10.0


class MemoryLog:
    """One member that believes in its cluster: leads from `start`, commits at once.

    `entries` holds the committed commands; entry `i` has index `first_index + i` (index 1 is the
    leader's no-op, as in the real log).
    """

    def __init__(
        self,
        state_machine: StateMachine,
        *,
        name: str = "a",
        members: Sequence[str] = ("a",),
        cluster_id: str = "memory",
    ) -> None:
        assert name in members
        self._name = name
        self._members = tuple(sorted(members))
        self._cluster_id = cluster_id
        self._machine = state_machine
        self._leadership = Leadership(term=0, role=Role.FOLLOWER, leader=None)
        self._queue: list[tuple[bytes, Callable[[Applied | Exception], None]]] = []
        self._is_held = False
        self._is_full = False
        self._is_closed = False
        self._is_scheduled = False
        self._applied_index = 0
        self._applied_event = asyncio.Event()
        self._leadership_callbacks: list[Callable[[Leadership], None]] = []
        self._fatal_callbacks: list[Callable[[BaseException], None]] = []
        self._fatal: BaseException | None = None
        self._handlers: dict[str, RequestHandler] = {}
        #: What other members answer, set by a test: (member, kind, body) to the answer.
        self.peer: Callable[[str, str, bytes], Awaitable[bytes]] | None = None
        self.entries: list[tuple[int, int, bytes]] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def leadership(self) -> Leadership:
        return self._leadership

    @property
    def is_leader(self) -> bool:
        return self._leadership.role is Role.LEADER

    @property
    def commit_index(self) -> int:
        return self._applied_index

    @property
    def applied_index(self) -> int:
        return self._applied_index

    async def start(self) -> None:
        """Become leader of the next term."""
        self.set_leader(self._name)

    async def close(self) -> None:
        """Stop; what is pending ends as outcome_unknown. Idempotent."""
        self._is_closed = True
        self._fail_pending(OutcomeUnknown("the member closed"))

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
        loop = asyncio.get_running_loop()
        if self._is_closed or self._fatal is not None:
            loop.call_soon(done, OutcomeUnknown("the member closed"))
        elif not self.is_leader:
            loop.call_soon(done, NotLeader(self._leadership.leader))
        elif len(command) > COMMAND_BYTES_MAX:
            loop.call_soon(done, CommandTooLarge(f"{len(command)} bytes"))
        elif self._is_full and not is_urgent:
            loop.call_soon(done, DiskFull("the disk is full", retry_after_s=1.0))
        else:
            self._queue.append((command, done))
            self._schedule()

    async def read_barrier(self, *, timeout_s: float | None = None) -> int:
        """As `ReplicatedLog.read_barrier`: earlier proposals are applied after it."""
        if self._leadership.leader is None:
            raise NotLeader(None)
        limit_s = BARRIER_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            return await self.wait_applied(
                self._applied_index + len(self._queue), timeout_s=limit_s
            )
        except TimeoutError:
            raise OutcomeUnknown("the read barrier was not confirmed in time") from None

    async def wait_applied(self, index: int, *, timeout_s: float) -> int:
        """As `ReplicatedLog.wait_applied`."""
        async with asyncio.timeout(timeout_s):
            while self._applied_index < index:
                event = self._applied_event
                await event.wait()
        return self._applied_index

    async def transfer_leadership(self, *, timeout_s: float) -> bool:
        """Make the next other member the leader; False when there is none or this does not lead."""
        del timeout_s
        others = [member for member in self._members if member != self._name]
        if not others or not self.is_leader:
            return False
        self.set_leader(others[0])
        return True

    def on_leadership(self, callback: Callable[[Leadership], None]) -> None:
        self._leadership_callbacks.append(callback)

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        self._fatal_callbacks.append(callback)

    def members(self) -> Sequence[str]:
        return self._members

    def status(self) -> ClusterStatus:
        leadership = self._leadership
        return ClusterStatus(
            cluster_id=self._cluster_id,
            name=self._name,
            leadership=leadership,
            has_quorum=leadership.leader is not None,
            members=tuple(
                MemberStatus(
                    name=member,
                    role=Role.LEADER if member == leadership.leader else Role.FOLLOWER,
                    is_healthy=True,
                    commit_index=self._applied_index,
                    applied_index=self._applied_index,
                    lag_entries=0,
                    version=None,
                )
                for member in self._members
            ),
            log=LogStatus(
                first_index=1,
                last_index=self._applied_index,
                durable_index=self._applied_index,
                size_bytes=sum(len(command) for _, _, command in self.entries),
                snapshot_index=0,
            ),
            commit_index=self._applied_index,
            applied_index=self._applied_index,
            apply_lag_ms=0.0,
        )

    async def request(self, member: str, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        """As `MemberRequests.request`; other members answer through `peer`."""
        async with asyncio.timeout(timeout_s):
            if member == self._name:
                return await self._handlers[kind](member, body)
            if self.peer is None:
                raise TimeoutError(f"no peer plays {member}")
            return await self.peer(member, kind, body)

    def on_request(self, kind: str, handler: RequestHandler) -> None:
        self._handlers[kind] = handler

    # Played by a test.

    def set_leader(self, leader: str | None) -> None:
        """Change the leader, in a new term; a deposed leader's proposals become unknown."""
        was_leader = self.is_leader
        role = Role.LEADER if leader == self._name else Role.FOLLOWER
        self._leadership = Leadership(term=self._leadership.term + 1, role=role, leader=leader)
        if was_leader:
            self._fail_pending(LeadershipLost("the leader changed"))
        if role is Role.LEADER:
            self._advance()
        for callback in self._leadership_callbacks:
            callback(self._leadership)

    def hold(self) -> None:
        """Commit nothing until `release`: a leader that has lost its quorum."""
        self._is_held = True

    def release(self) -> None:
        """Commit what was held back, and again at once from now on."""
        self._is_held = False
        self._schedule()

    def set_full(self, *, is_full: bool) -> None:
        """Play a full disk: only what is urgent is taken."""
        self._is_full = is_full

    def apply_from_leader(self, command: bytes) -> object:
        """Apply an entry that another member led; returns what the state machine said."""
        return self._apply(command).result

    def fail(self, error: BaseException) -> None:
        """Play a disk that failed: this member must stop."""
        if self._fatal is None:
            self._fatal = error
            self._fail_pending(OutcomeUnknown("the member failed"))
            for callback in self._fatal_callbacks:
                callback(error)

    def _schedule(self) -> None:
        if not self._is_scheduled and self._queue:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._commit_queued)

    def _commit_queued(self) -> None:
        self._is_scheduled = False
        while self._queue and not self._is_held:
            command, done = self._queue.pop(0)
            try:
                applied = self._apply(command)
            except Exception as error:  # noqa: BLE001 - what an apply raises is a bug: fail-stop
                done(OutcomeUnknown("the member failed"))
                self.fail(error)
                return
            done(applied)

    def _apply(self, command: bytes) -> Applied:
        index = self._applied_index + 1
        term = self._leadership.term
        result = self._machine.apply(index, term, command)
        self.entries.append((index, term, command))
        self._advance()
        return Applied(index=index, term=term, result=result)

    def _advance(self) -> None:
        self._applied_index += 1
        event, self._applied_event = self._applied_event, asyncio.Event()
        event.set()

    def _fail_pending(self, error: Exception) -> None:
        pending, self._queue = self._queue, []
        for _, done in pending:
            done(error)
