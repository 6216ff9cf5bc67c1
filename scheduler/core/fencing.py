"""When a successor may be placed: no two attempts of one worker at a time (specification 1.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.core import contact
from scheduler.core.records import NO_TIME_RELEASES, Attempt, Job, Worker
from scheduler.protocol.spec import TaskSpec

if TYPE_CHECKING:
    from scheduler.core.state import ClusterState


def on_lease_end(spec: TaskSpec) -> str:
    """What the keeper does at the lease's end: freeze, kill or run (specification 3.5)."""
    if spec.on_lease_end is not None:
        return spec.on_lease_end
    return "run" if spec.retry.node_limit == 0 else "freeze"


def fence_until_ms(state: ClusterState, attempt: Attempt, *, cleanup: str) -> int:
    """Log time from which an attempt that ends now, its tree not seen gone, is surely still.

    NO_TIME_RELEASES when only proof can tell.
    """
    placed = attempt.placed
    assert placed is not None
    if cleanup == "stuck" or on_lease_end(state.task_spec(attempt)) == "run":
        return NO_TIME_RELEASES
    if attempt.mark is not None:
        return attempt.mark.lease_until_ms
    node = state.nodes.get(placed.node)
    if node is None:
        return state.clock_ms + state.lease_ms()
    return contact.lease_until_ms(state, node)


def blocking(state: ClusterState, worker: Worker) -> Attempt | None:
    """The earlier attempt that keeps the worker's next one back longest, if one can."""
    found: Attempt | None = None
    latest = -1
    for number in worker.fences:
        attempt = state.attempts.get((worker.job, worker.task, worker.index, number))
        if attempt is None or attempt.ended is None:
            continue
        until = attempt.ended.fence_until_ms
        if attempt.is_unwanted or until == NO_TIME_RELEASES:
            return attempt
        if until > latest:
            found, latest = attempt, until
    return found


def ready_ms(state: ClusterState, attempt: Attempt, worker: Worker) -> int | None:
    """Log time from which the waiting attempt may be placed; None: only proof can tell."""
    if not worker.fences:
        return attempt.not_before_ms
    fence = blocking(state, worker)
    if fence is None or fence.ended is None:
        return attempt.not_before_ms
    if fence.is_unwanted or fence.ended.fence_until_ms == NO_TIME_RELEASES:
        return None
    return max(attempt.not_before_ms, fence.ended.fence_until_ms)


def is_job_held(state: ClusterState, job: Job) -> bool:
    """Whether something of a final job may still live: its record is kept for that long."""
    for row in job.tasks:
        for index in range(row.replicas):
            worker = state.workers.get((job.id, row.name, index))
            if worker is not None and worker.fences:
                return True
    return False


def start_due_ms(state: ClusterState, attempt: Attempt) -> int:
    """Log time at which the start of an assigned attempt is overdue.

    The clock stands while its node is unheard, and begins again with the rejoin (4, B3).
    """
    placed = attempt.placed
    assert placed is not None
    since_ms = placed.at.log_ms
    node = state.nodes.get(placed.node)
    if node is not None and node.claimed is not None:
        since_ms = max(since_ms, node.claimed.log_ms)
    return since_ms + state.setting_ms("start_timeout")
