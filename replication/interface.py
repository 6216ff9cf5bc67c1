"""What the scheduler sees of replication: an ordered stream of committed byte strings.

Two implementations: `replication.node.RaftLog` (PySyncObj elects and replicates, `wal` stores) and
`replication.memory.MemoryLog` (in process, for tests). Everything here runs on one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """A member's part in the current term."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Applied:
    """A proposal that was committed and applied here."""

    index: int
    term: int
    #: What `StateMachine.apply` returned for it.
    result: object


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads, as this member knows it."""

    term: int
    role: Role
    #: Name of the leader; None while unknown.
    leader: str | None


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member as the asked member knows it."""

    name: str
    role: Role
    #: Heard within the last election timeout and, seen from the leader, less than a batch behind.
    is_healthy: bool
    commit_index: int
    applied_index: int
    #: Entries it lacks of the leader's log.
    lag_entries: int
    #: The software version it runs; None while never heard.
    version: str | None


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The log on this member's disk."""

    first_index: int
    last_index: int
    durable_index: int
    size_bytes: int
    snapshot_index: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Answered locally, with `has_quorum` false when there is none."""

    cluster_id: str
    name: str
    leadership: Leadership
    has_quorum: bool
    members: tuple[MemberStatus, ...]
    log: LogStatus
    commit_index: int
    applied_index: int
    #: Measured time from commit to apply of the newest applied entry, in ms (specification 4, A4).
    apply_lag_ms: float


class SnapshotView(Protocol):
    """An immutable view of the state at one index; `chunks` may run in a worker thread."""

    def chunks(self) -> Iterator[bytes]:
        """The canonical bytes of the state, in pieces of at most 1 MiB."""
        ...


class StateMachine(Protocol):
    """What committed entries are given to, in order, once each.

    An exception is a bug: the member stops.
    """

    def apply(self, index: int, term: int, command: bytes) -> object:
        """Apply one entry and return what its proposer is told. Event loop only; must be quick."""
        ...

    def snapshot_view(self) -> SnapshotView:
        """A view that later applies do not change. Event loop; costs at most a few ms."""
        ...

    def restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> None:
        """Replace the state by a snapshot's. Raises ValueError for bytes that are no snapshot."""
        ...


class ReplicatedLog(Protocol):
    """One member's door to the replicated log. All methods on the event loop."""

    @property
    def name(self) -> str: ...

    @property
    def leadership(self) -> Leadership: ...

    @property
    def is_leader(self) -> bool:
        """Leader of the current term. It may still be deposed unknowingly: use `read_barrier`."""
        ...

    @property
    def commit_index(self) -> int: ...

    @property
    def applied_index(self) -> int: ...

    async def start(self) -> None:
        """Recover, listen, dial the peers and begin to take part. Raises ReplicationError."""
        ...

    async def close(self) -> None:
        """Stop taking part; pending proposals end as outcome_unknown. Idempotent."""
        ...

    async def propose(self, command: bytes, *, is_urgent: bool = False) -> Applied:
        """Append `command` on the leader; returns once it is committed and applied here.

        Urgent is what frees work: on a full disk it is taken while the reserve lasts. Raises
        ProposalError: NotLeader, Overloaded and DiskFull are not_applied; LeadershipLost and
        OutcomeUnknown (deadline) may still commit. Cancelling does not undo the proposal.
        """
        ...

    def propose_nowait(
        self,
        command: bytes,
        done: Callable[[Applied | Exception], None],
        *,
        is_urgent: bool = False,
    ) -> None:
        """As `propose`, with a callback on the loop instead of a future: for hot paths."""
        ...

    async def read_barrier(self, *, timeout_s: float | None = None) -> int:
        """Linearizable read point: returns an index that is applied here and that includes every
        write acknowledged anywhere before the call.

        On the leader: one ReadIndex round (waiting reads share it). On a follower: asks the leader
        for a confirmed commit index, then waits until it is applied here. Raises NotLeader (no
        leader known), LeadershipLost or OutcomeUnknown (deadline).
        """
        ...

    async def wait_applied(self, index: int, *, timeout_s: float) -> int:
        """Wait until `index` is applied here; returns the applied index. Raises TimeoutError."""
        ...

    async def transfer_leadership(self, *, timeout_s: float) -> bool:
        """Hand leadership to the most caught-up peer; False when it did not happen in time."""
        ...

    def on_leadership(self, callback: Callable[[Leadership], None]) -> None:
        """Call back on every change of role, term or leader. Called on the loop, in order."""
        ...

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        """Call back when this member must stop (fsync failed, apply raised). Called once."""
        ...

    def status(self) -> ClusterStatus: ...

    def members(self) -> Sequence[str]:
        """Names of all configured members, this one included, sorted."""
        ...


#: Answers a member's request: (asking member, body) to the answer. Runs on the event loop; what it
#: raises reaches the asker as RequestFailed with the text.
RequestHandler = Callable[[str, bytes], Awaitable[bytes]]


class MemberRequests(Protocol):
    """A small side channel between members, over the same connections as the log."""

    async def request(self, member: str, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        """Ask `member` (or this one) and return its answer.

        Raises TimeoutError, MemberUnreachable (not connected, or the connection ended meanwhile),
        RequestFailed (it answered with an error) and Overloaded (too many are waiting).
        """
        ...

    def on_request(self, kind: str, handler: RequestHandler) -> None:
        """Answer requests of `kind`; one handler a kind."""
        ...
