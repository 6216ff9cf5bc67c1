"""The fields of the answers (specification 6.3): what OpenAPI shows and tests hold views to.

Views are dictionaries made by `scheduler.core.queries`; these structs describe them and are never
built while serving. A field may be added; none may be renamed or removed.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Killed"]
JobPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Killed", "Stopped"]
Json = dict[str, Any]


class AsOfView(msgspec.Struct):
    """The point in the log that an answer shows."""

    index: int
    time: str


class PendingReason(msgspec.Struct):
    code: str
    message: str
    count: int


class Unknown(msgspec.Struct):
    """Contact lost, outcome open."""

    cause: Literal["heartbeat_lost", "disconnected", "agent_restarting", "leader_changed"]
    transient_since: str
    deadline: str | None


class Progress(msgspec.Struct):
    done: float | None
    total: float | None
    text: str | None
    rate: float | None
    eta_s: float | None


class Output(msgspec.Struct):
    """What is known of one stream of an attempt."""

    bytes: int
    sha256: str | None
    truncated: bool


class DecidedBy(msgspec.Struct):
    at: str | None
    rule: str | None


class LogIndex(msgspec.Struct):
    """Log indexes of an attempt's transitions."""

    created: int | None
    started: int | None
    ended: int | None


class Attempt(msgspec.Struct, kw_only=True):
    """One execution of a worker on one node."""

    id: str
    uid: str | None
    number: int
    phase: Phase
    cause: str | None
    by: str | None
    why: str | None
    evidence: str | None
    node: str | None
    ip: str | None
    pid: int | None
    created_at: str | None
    assigned_at: str | None
    started_at: str | None
    ended_at: str | None
    exit_code: int | None
    signal: str | None
    core_dumped: bool | None
    peak_rss_bytes: int | None
    cpu_s: float | None
    stdout: Output | None
    stderr: Output | None
    replaces: str | None
    replaced_by: str | None
    unknown: Unknown | None
    decided_by: DecidedBy | None
    late_truth: Any
    cleanup: Any
    log_index: LogIndex
    adopts: Any
    accepted: Any
    exited_before_kill: bool | None
    frozen_s: float | None
    token: str | None


class Worker(msgspec.Struct, kw_only=True):
    """One replica of a task."""

    id: str
    task: str
    index: int
    version: int
    phase: Phase
    attempt: int | None
    attempts: int
    node: str | None
    ip: str | None
    progress: Progress | None
    ready: bool | None
    pending_reasons: list[PendingReason]


class Task(msgspec.Struct, kw_only=True):
    """One role in a job."""

    id: str
    name: str
    kind: str
    phase: JobPhase
    replicas: int
    up: int
    ready: int | None
    succeeded: int
    failed: int
    message: str


class Job(msgspec.Struct, kw_only=True):
    """What a user submitted."""

    id: int
    name: str
    phase: JobPhase
    cause: str | None
    by: str | None
    why: str | None
    spec: Json
    user: str
    queue: str
    priority: int
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    version: int
    conditions: list[Any]
    message: str
    clone_of: int | None
    retry_of: int | None
    unknown: int
    ready: int | None
    replicas: int
    tasks: list[Task]
    workers: list[Worker]
    workflow: Any
    pending_reasons: list[PendingReason]
    exit_code: int | None
    ending: Any
    late_truth: Any
    adopts: Any
    accepted: Any
    exited_before_kill: Any
    frozen_s: Any
    token: Any


class Event(msgspec.Struct, kw_only=True):
    """One change of one thing."""

    index: int
    time: str
    object: str
    kind: str
    from_: str | None = msgspec.field(name="from")
    to: str | None
    cause: str | None
    by: str | None
    why: str | None
    details: Any


class Node(msgspec.Struct, kw_only=True):
    """A compute host with one agent."""

    name: str
    uid: str | None
    phase: Literal["Online", "Offline"]
    offline_reason: str | None
    unschedulable: bool
    unschedulable_reason: str | None
    last_heard_s: float | None
    capacity: Json
    allocated: Json
    labels: dict[str, str]
    addons: Any
    boot_id: str | None
    agent_version: str | None
    attempts: int


class Member(msgspec.Struct, kw_only=True):
    name: str
    role: str
    healthy: bool
    commit_index: int
    applied_index: int
    lag_entries: int
    version: str | None


class LogView(msgspec.Struct, kw_only=True):
    first_index: int
    last_index: int
    bytes: int
    snapshot_index: int


class Registry(msgspec.Struct, kw_only=True):
    """Reports of attempts that are not materialised yet."""

    size: int
    by_node: dict[str, int]
    expired: int
    refused: int


class ClusterStatus(msgspec.Struct, kw_only=True):
    """The cluster as the asked controller sees it."""

    cluster_id: str
    leader: str | None
    term: int
    quorum: bool
    members: list[Member]
    log: LogView
    registry: Registry
    jobs_by_phase: dict[str, int]
    as_of: AsOfView


class JobPage(msgspec.Struct):
    jobs: list[Job]
    next: str | None
    as_of: AsOfView


class Workers(msgspec.Struct):
    workers: list[Worker]
    as_of: AsOfView


class Attempts(msgspec.Struct):
    attempts: list[Attempt]
    as_of: AsOfView


class Events(msgspec.Struct):
    events: list[Event]
    as_of: AsOfView


class Nodes(msgspec.Struct):
    nodes: list[Node]
    as_of: AsOfView


class Killed(msgspec.Struct):
    """`is_done`: nothing is left to end."""

    job: int
    is_done: bool
    message: str
    as_of: AsOfView


class Settings(msgspec.Struct):
    """Cluster-wide settings in force; durations in milliseconds."""

    settings: dict[str, int | str]
    as_of: AsOfView


class Mistake(msgspec.Struct):
    path: str
    message: str
    hint: str


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An error (RFC 9457). `outcome_unknown`: a change may still commit."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
    outcome_unknown: bool = False
    mistakes: list[Mistake] = []


class Why(msgspec.Struct, kw_only=True):
    """Why a job, worker or attempt is as it is."""

    id: int | str
    phase: str
    cause: str | None = None
    by: str | None = None
    why: str | None = None
    message: str = ""
    pending_reasons: list[PendingReason] = []
    ending: Any = None
    unknown: Any = None
    as_of: AsOfView


#: What `fields=` may name.
JOB_FIELDS: Final = tuple(one.encode_name for one in msgspec.structs.fields(Job))
#: What /why shows of a job, worker or attempt.
WHY_FIELDS: Final = (
    "id", "phase", "cause", "by", "why", "message", "pending_reasons", "ending", "unknown",
    "evidence", "decided_by", "conditions",
)  # fmt: skip

#: Answers by the name that operations use for them.
ANSWERS: Final[dict[str, type]] = {
    "JobPage": JobPage,
    "Job": Job,
    "Workers": Workers,
    "Attempts": Attempts,
    "Events": Events,
    "WhyAnswer": Why,
    "Nodes": Nodes,
    "Node": Node,
    "Killed": Killed,
    "ClusterStatus": ClusterStatus,
    "Settings": Settings,
    "Problem": Problem,
}
