"""What the replicated state is made of: frozen values, replaced on every change.

Each record is encoded as an array in snapshots and in the state digest: fields are appended with a
default, never moved (`STATE_VERSION` names the set that digests are compared over). `*_ms` is log
time and decides; `*wall*` is a wall-clock label (Unix ms) and is only shown.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler.protocol.messages import Capacity, FinishFacts, Report, StartFacts
from scheduler.protocol.spec import JobSpec, Resources

#: Raised when a field is added: replicas compare digests over the highest version all know.
STATE_VERSION: Final = 1

#: (job, task, index) and (job, task, index, number).
WorkerKey = tuple[int, str, int]
AttemptKey = tuple[int, str, int, int]

#: `fence_until_ms` of an attempt that only proof releases (specification 1.4).
NO_TIME_RELEASES: Final = -1


class Record(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Base. No record can be part of a cycle, so none is tracked by the collector."""


class Stamp(Record, frozen=True):
    """When something happened: position in the log, log time and wall-clock label."""

    index: int
    log_ms: int
    wall_ms: int


class KillDecision(Record, frozen=True):
    """A committed decision to end something; the first one stays."""

    cause: str
    by: str
    why: str
    at: Stamp


class TaskRow(Record, frozen=True):
    """One task of a job: its workers counted by phase. Part of the job's record."""

    name: str
    kind: str
    replicas: int
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    killed: int = 0
    ready: int = 0


class Job(Record, frozen=True):
    """What a user submitted and what became of it."""

    id: int
    spec: JobSpec
    user: str
    phase: str
    #: Index of the last entry that changed it; `If-Match` compares with it.
    version: int
    created: Stamp
    tasks: tuple[TaskRow, ...]
    #: First Running of any attempt.
    started: Stamp | None = None
    ended: Stamp | None = None
    cause: str = ""
    by: str = ""
    why: str = ""
    #: A kill of the whole job; it decides the end (specification 1.5, line 1).
    kill: KillDecision | None = None
    #: When its end was decided while something still ran.
    ending_since: Stamp | None = None
    clone_of: int | None = None
    retry_of: int | None = None
    #: Principal and idempotency key it was submitted under; empty for none.
    principal: str = ""
    key: str = ""
    #: Attempt that decided its end, as text.
    decided_by: str = ""


class Worker(Record, frozen=True):
    """One replica of a task."""

    job: int
    task: str
    index: int
    version: int
    #: Phase of its newest attempt.
    phase: str
    #: Number of its newest attempt, and of its oldest one kept.
    attempt: int = 1
    oldest: int = 1
    #: Budget used (specification 1.4).
    task_failures: int = 0
    node_failures: int = 0
    #: A kill of this worker, or of one of its attempts: no successor any more.
    kill: KillDecision | None = None
    #: Numbers of ended attempts whose tree was not proven gone.
    fences: tuple[int, ...] = ()
    #: Node that the next attempt avoids if it can (`avoid_failed_node`).
    avoid: str = ""

    @property
    def key(self) -> WorkerKey:
        return (self.job, self.task, self.index)

    def __str__(self) -> str:
        return f"{self.job}/{self.task}/{self.index}"


class PlacedFacts(Record, frozen=True):
    """Where an attempt was placed, and which incarnation of that node it was."""

    token: str
    node: str
    node_uuid: str
    store_id: str
    boot_id: str
    at: Stamp
    resources: Resources
    gpu_indices: tuple[int, ...] = ()


class Started(Record, frozen=True):
    """The start as applied; `facts` as the node reported it."""

    at: Stamp
    facts: StartFacts


class Ended(Record, frozen=True):
    """The end as applied."""

    at: Stamp
    cause: str
    evidence: str
    by: str = ""
    why: str = ""
    #: As the node reported it; None for a declared end.
    finish: FinishFacts | None = None
    #: Nothing of it runs any more, proven. Until then its resources stay allocated.
    is_tree_gone: bool = True
    #: Log time from which a successor may be placed without proof; 0: needs none;
    #: NO_TIME_RELEASES: only proof.
    fence_until_ms: int = 0


class LateTruth(Record, frozen=True):
    """What its node said after the attempt had been declared lost; it decides nothing here."""

    at: Stamp
    finish: FinishFacts
    #: Attempt that took it over, as text; empty when nobody could.
    adopted_by: str = ""


class UnknownMark(Record, frozen=True):
    """Contact lost: since when, and why. `since` never moves while it stays lost.

    `window_ms` is the transient_timeout that counted then: fixed, so that no later change of a
    setting moves a deadline that was shown.
    """

    cause: str
    since: Stamp
    window_ms: int
    #: Of an attempt's own mark: until when a lease of its old node can run.
    lease_until_ms: int = 0


class Attempt(Record, frozen=True):
    """One execution of a worker on one node."""

    job: int
    task: str
    index: int
    number: int
    phase: str
    created: Stamp
    placed: PlacedFacts | None = None
    started: Started | None = None
    ended: Ended | None = None
    #: The first committed decision to end it; it wins over whatever is reported later.
    kill: KillDecision | None = None
    replaces: int | None = None
    replaced_by: int | None = None
    #: Attempt whose outcome this one took over, as text (specification 4, A8).
    adopts: str = ""
    late: LateTruth | None = None
    #: Backoff: not placed before.
    not_before_ms: int = 0
    #: Own mark, for an attempt whose node name came back as another node or store.
    mark: UnknownMark | None = None
    progress: str = ""
    is_ready: bool = False
    #: A start was reported after its end: a kill is ordered until it is gone.
    is_unwanted: bool = False

    @property
    def key(self) -> AttemptKey:
        return (self.job, self.task, self.index, self.number)

    @property
    def worker(self) -> WorkerKey:
        return (self.job, self.task, self.index)

    def __str__(self) -> str:
        return f"{self.job}/{self.task}/{self.index}#{self.number}"


class Node(Record, frozen=True):
    """A compute host as last heard of."""

    name: str
    uuid: str
    start_number: int
    nonce: str
    store_id: str
    boot_id: str
    agent_version: str
    capacity: Capacity
    #: Index of the NodeJoined entry of its present session.
    session: int
    joined: Stamp
    phase: str = "Offline"
    offline_reason: str = "never_joined"
    addresses: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    limits: str = ""
    is_unschedulable: bool = False
    unschedulable_why: str = ""
    #: Session whose whole inventory was applied, and when. Placed on and ordered only then.
    claimed_session: int = 0
    claimed: Stamp | None = None
    #: Log time until which leases on it can run, as last written.
    lease_until_ms: int = 0
    mark: UnknownMark | None = None
    #: Tokens claimed by the parts of an inventory that is not complete yet.
    claiming: tuple[str, ...] = ()
    changed: int = 0
    #: Labels set by command; they win over those the agent tells.
    own_labels: dict[str, str] = {}
    #: A decided disconnect whose records are still being written (specification 1.6).
    disconnect: Stamp | None = None


class IdempotencyKey(Record, frozen=True):
    """What one key of one principal gave."""

    principal: str
    key: str
    body_digest: str
    job_ids: tuple[int, ...]
    #: Jobs of it that are not final.
    open_count: int
    #: Log time when the last became final; 0 before.
    final_ms: int = 0


class RegisteredReport(Record, frozen=True):
    """A report that came before its attempt."""

    report: Report
    at: Stamp


class RegistryQueue(Record, frozen=True):
    """What one node reported of one attempt that is not materialised, in order."""

    token: str
    node: str
    reports: tuple[RegisteredReport, ...]

    @property
    def key(self) -> tuple[str, str]:
        return (self.token, self.node)


class Tombstone(Record, frozen=True):
    """What is left of a collected attempt."""

    token: str
    attempt: str
    node: str
    phase: str
    cause: str
    at: Stamp
    is_tree_gone: bool = True


class JobTombstone(Record, frozen=True):
    """What is left of a collected job."""

    job: int
    phase: str
    cause: str
    at: Stamp


class Orphan(Record, frozen=True):
    """Something that runs on a node and that the state knows no attempt for."""

    token: str
    node: str
    worker: str
    since: Stamp
    start: StartFacts | None = None


class Event(Record, frozen=True):
    """One change of one object (specification 1.7)."""

    index: int
    log_ms: int
    wall_ms: int
    #: `42`, `42/main/0#1`, `node:a1`, `cluster`.
    object: str
    kind: str
    from_phase: str = ""
    to_phase: str = ""
    cause: str = ""
    by: str = ""
    why: str = ""
    details: dict[str, int | str] = {}


class EventLog(Record, frozen=True):
    """The stored events of one object: its first and last ones, the gap counted.

    Creation, placement, start and end are not stored: they follow from the object's record.
    """

    object: str
    first: tuple[Event, ...] = ()
    last: tuple[Event, ...] = ()
    dropped: int = 0


class Incident(Record, frozen=True):
    """Something an operator should see: an expired finish, a refused call."""

    number: int
    at: Stamp
    kind: str
    object: str
    node: str
    details: dict[str, int | str] = {}


class Takeover(Record, frozen=True):
    """A change of leader: from here on every node is unheard until it rejoins."""

    at: Stamp
    term: int
    leader: str
    #: Longest lease that can have been given before it, and the rejoin_grace that counted.
    lease_ms: int
    grace_ms: int


class Meta(Record, frozen=True):
    """The cluster as a whole."""

    cluster_id: str = ""
    incarnation: str = ""
    founded: Stamp | None = None
    next_job: int = 1
    next_incident: int = 1
    clock_ms: int = 0
    wall_ms: int = 0
    index: int = 0
    term: int = 0
    leader: str = ""
    takeovers: tuple[Takeover, ...] = ()
    settings: dict[str, int | str] = {}
    counters: dict[str, int] = {}
    #: A lowered transient_timeout counts only from then on; before, the old one does.
    old_lease_ms: int = 0
    old_lease_until_ms: int = 0


# ---- what an attempt is to its node --------------------------------------------------------------


def holds_place(attempt: Attempt) -> bool:
    """Whether it keeps resources: placed, and not proven gone."""
    ended = attempt.ended
    return attempt.placed is not None and (ended is None or not ended.is_tree_gone)


def needs_orders(attempt: Attempt) -> bool:
    """Whether its node may have to be told something about it."""
    if attempt.placed is None:
        return False
    ended = attempt.ended
    if ended is None:
        return attempt.phase == "Pending" or attempt.kill is not None
    return attempt.is_unwanted or not ended.is_tree_gone


def is_waiting(attempt: Attempt) -> bool:
    """Whether it wants a node."""
    return attempt.placed is None and attempt.phase == "Pending"
