"""What the API may ask of the state. Read only; event loop; every answer is JSON-ready.

Ids that name nothing give None. Lists come with the cursor of their next page, or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from scheduler.core import decisions, views
from scheduler.core.decisions import View
from scheduler.core.lifecycle import JOB_PHASES, TERMINAL
from scheduler.core.records import Attempt, Event, Job, Worker
from scheduler.core.turn import attempt_events, job_events
from scheduler.core.views import event_view
from scheduler.protocol.ids import BadId, Target

if TYPE_CHECKING:
    from scheduler.core.state import ClusterState

__all__ = [
    "as_of",
    "attempt_view",
    "attempts_view",
    "cluster_view",
    "count_overdue",
    "event_view",
    "find_attempt",
    "history_view",
    "incidents_view",
    "job_view",
    "jobs_by_phase",
    "jobs_page",
    "newest_named",
    "node_view",
    "nodes_view",
    "orphans_view",
    "registry_view",
    "settings_view",
    "workers_view",
]

#: Largest page of a list.
PAGE_MAX: Final = 1000
#: Final jobs looked at for one page: a rare filter gives short pages with a cursor, not a stall.
SCAN_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which jobs a list shows; what is empty filters nothing."""

    phases: frozenset[str]
    user: str
    queue: str
    #: Glob.
    name: str

    def takes(self, job: Job) -> bool:
        spec = job.spec
        return (
            (not self.phases or job.phase in self.phases)
            and (not self.user or job.user == self.user)
            and (not self.queue or spec.queue == self.queue)
            and (not self.name or fnmatchcase(spec.name, self.name))
        )


# ---- jobs --------------------------------------------------------------------------------------


def job_view(state: ClusterState, job_id: int) -> View | None:
    """One job with its workers."""
    job = state.jobs.get(job_id)
    return None if job is None else views.job_view(state, job)


def jobs_page(
    state: ClusterState,
    *,
    states: Iterable[str] = (),
    user: str | None = None,
    queue: str | None = None,
    name: str | None = None,
    is_overdue: bool = False,
    after: str | int | None = None,
    limit: int = 100,
    now_ms: int | None = None,
) -> tuple[list[View], str | None]:
    """Jobs, newest first, below the cursor `after`; and the cursor of the next page.

    `name` is a glob. A rare filter can give a short page with a cursor (`SCAN_MAX`).
    """
    filters = _Filter(frozenset(states), user or "", queue or "", name or "")
    limit = max(1, min(limit, PAGE_MAX))
    found: list[View] = []
    seen, last = 0, 0
    for job_id in _candidate_ids(state, filters, after, is_overdue=is_overdue):
        if len(found) == limit or seen == SCAN_MAX:
            return found, str(last)
        seen += 1
        last = job_id
        job = state.jobs.get(job_id)
        if job is None or not filters.takes(job):
            continue
        if is_overdue and not is_job_overdue(state, job, now_ms=now_ms):
            continue
        found.append(views.job_view(state, job))
    return found, None


def _candidate_ids(
    state: ClusterState, filters: _Filter, after: str | int | None, *, is_overdue: bool
) -> Iterable[int]:
    top = state.next_job
    if after is not None:
        top = min(top, int(after))
    is_live = is_overdue or (filters.phases and not filters.phases & TERMINAL)
    if is_live:
        return (job_id for job_id in sorted(state.live_jobs, reverse=True) if job_id < top)
    return range(top - 1, 0, -1)


def is_job_overdue(state: ClusterState, job: Job, *, now_ms: int | None = None) -> bool:
    """Whether an attempt of it is past the instant that decides it."""
    now = state.clock_ms if now_ms is None else max(now_ms, state.clock_ms)
    return job.phase not in TERMINAL and any(
        decisions.is_overdue(state, attempt, now_ms=now)
        for attempt in views.current_attempts(state, job)
    )


def count_overdue(state: ClusterState, *, now_ms: int | None = None) -> int:
    """Jobs with an overdue attempt; must be 0. Costs O(live jobs)."""
    return sum(
        is_job_overdue(state, state.jobs[job_id], now_ms=now_ms) for job_id in state.live_jobs
    )


def jobs_by_phase(state: ClusterState) -> dict[str, int]:
    """How many jobs are in each phase; phases without any included."""
    return {phase: state.jobs_by_phase.get(phase, 0) for phase in JOB_PHASES}


def newest_named(state: ClusterState, name: str) -> int | None:
    """Id of the newest job of that name, for `name:X`."""
    for job_id in range(state.next_job - 1, 0, -1):
        job = state.jobs.get(job_id)
        if job is not None and job.spec.name == name:
            return job_id
    return None


# ---- workers and attempts ----------------------------------------------------------------------


def workers_view(state: ClusterState, target: str | int) -> list[View] | None:
    """The workers that an id names, by task and index."""
    found = find_workers(state, str(target))
    return None if found is None else [views.worker_view(state, worker) for worker in found]


def find_workers(state: ClusterState, target: str) -> list[Worker] | None:
    """The workers that a job, task, worker or attempt id names; None when it names nothing."""
    try:
        parsed = Target.parse(target)
    except BadId:
        return None
    job = state.jobs.get(parsed.job)
    if job is None:
        return None
    found = [
        worker
        for worker in views.workers_of(state, job)
        if parsed.task in (None, worker.task) and parsed.index in (None, worker.index)
    ]
    return found or None


def find_attempts(state: ClusterState, target: str) -> list[Attempt] | None:
    """The attempts that an id names, by worker and number; None when it names nothing."""
    workers = find_workers(state, target)
    if workers is None:
        return None
    number = Target.parse(target).number
    found = [
        attempt
        for worker in workers
        for attempt in _attempts_of(state, worker)
        if number in (None, attempt.number)
    ]
    return found or None


def _attempts_of(state: ClusterState, worker: Worker) -> Iterator[Attempt]:
    for number in range(1, worker.attempt + 1):
        attempt = state.attempts.get((*worker.key, number))
        if attempt is not None:
            yield attempt


def attempts_view(
    state: ClusterState, target: str, *, now_ms: int | None = None
) -> list[View] | None:
    """Views of all attempts that an id names, numbers ascending."""
    found = find_attempts(state, target)
    if found is None:
        return None
    return [views.attempt_view(state, attempt, now_ms=now_ms) for attempt in found]


def attempt_view(state: ClusterState, target: str) -> View | None:
    """The attempt an id names, or the newest of the only worker it names."""
    attempt = find_attempt(state, target)
    return None if attempt is None else views.attempt_view(state, attempt)


def find_attempt(state: ClusterState, target: str) -> Attempt | None:
    """As `attempt_view`, as the record."""
    workers = find_workers(state, target)
    if workers is None or len(workers) != 1:
        return None
    number = Target.parse(target).number
    worker = workers[0]
    return state.attempts.get((*worker.key, worker.attempt if number is None else number))


# ---- history -----------------------------------------------------------------------------------


def history_view(state: ClusterState, target: str) -> list[View] | None:
    """The timeline of a job, worker or attempt, of `node:NAME`, or of `cluster`.

    Where events were dropped from the middle, one of kind `gap` says how many.
    """
    if target == "cluster" or target.startswith("node:"):
        if target != "cluster" and target.removeprefix("node:") not in state.nodes:
            return None
        return [event_view(event) for event in _stored(state, target)]
    attempts = find_attempts(state, target)
    if attempts is None:
        return None
    parsed = Target.parse(target)
    events: list[Event] = []
    if parsed.task is None and parsed.number is None:
        events += job_events(state.jobs[parsed.job])
        events += _stored(state, str(parsed.job))
    for attempt in attempts:
        events += attempt_events(attempt)
        events += _stored(state, str(attempt))
    events.sort(key=_event_order)
    return [event_view(event) for event in events]


#: Order of events of one entry: what begins, before what it leads to.
_RANKS: Final = {"submitted": 0, "unknown": 1, "claimed": 2, "started": 4, "ended": 5, "created": 6}


def _event_order(event: Event) -> tuple[int, int, int]:
    is_job = "/" not in event.object
    rank = _RANKS.get(event.kind, 3)
    if is_job and event.kind in ("phase", "ended"):
        rank = 4 if event.to_phase == "Running" else 7
    return event.index, rank, 0 if is_job else 1


def _stored(state: ClusterState, name: str) -> list[Event]:
    log = state.event_logs.get(name)
    if log is None:
        return []
    if not log.dropped:
        return [*log.first, *log.last]
    at = log.last[0]
    gap = Event(
        index=at.index,
        log_ms=at.log_ms,
        wall_ms=at.wall_ms,
        object=name,
        kind="gap",
        details={"dropped": log.dropped},
    )
    return [*log.first, gap, *log.last]


# ---- nodes and the cluster ---------------------------------------------------------------------


def node_view(state: ClusterState, name: str) -> View | None:
    node = state.nodes.get(name)
    return None if node is None else views.node_view(state, node)


def nodes_view(state: ClusterState) -> list[View]:
    """All nodes, by name."""
    return [views.node_view(state, state.nodes[name]) for name in state.node_names]


def registry_view(state: ClusterState) -> View:
    """The unknown-report registry: size, by node, and what became of reports."""
    counters = state.counters
    return {
        "size": state.registry_size,
        "by_node": dict(sorted(state.registry_by_node.items())),
        "expired": counters.get("registry_expired", 0),
        "refused": counters.get("registry_refused", 0),
    }


def incidents_view(state: ClusterState) -> list[View]:
    """Incidents, newest first."""
    rows = [
        {
            "number": incident.number,
            "index": incident.at.index,
            "time": decisions.time_of(incident.at),
            "kind": incident.kind,
            "object": incident.object,
            "node": incident.node,
            "details": incident.details,
        }
        for incident in state.incidents.sorted_rows()
    ]
    rows.reverse()
    return rows


def orphans_view(state: ClusterState) -> list[View]:
    """What runs on nodes without an attempt of ours, by token."""
    return [
        {
            "token": orphan.token,
            "node": orphan.node,
            "worker": orphan.worker or None,
            "since": decisions.time_of(orphan.since),
            "pid": None if orphan.start is None else orphan.start.pid,
        }
        for orphan in state.orphans.sorted_rows()
    ]


def settings_view(state: ClusterState) -> dict[str, int | str]:
    """The settings in force; durations in milliseconds, as `core.settings` names them."""
    return dict(sorted(state.settings.items()))


def cluster_view(state: ClusterState) -> View:
    """What the state knows for `cluster status`; the rest is the replication's."""
    return {
        "cluster_id": state.cluster_id,
        "incarnation": state.incarnation,
        "founded_at": decisions.time_of(state.founded),
        "term": state.term,
        "registry": registry_view(state),
        "jobs_by_phase": jobs_by_phase(state),
        "counters": dict(sorted(state.counters.items())),
        "settings": settings_view(state),
    }


def as_of(state: ClusterState) -> dict[str, Any]:
    """`{index, time}` of the newest applied entry."""
    return {"index": state.index, "time": decisions.rfc3339(state.wall_ms)}
