"""Phases of tasks and jobs from those of their workers (specification 1.5).

Computed in the same apply as the change below them, so that the levels never disagree at one index.
"""

from __future__ import annotations

import msgspec

from scheduler.core.lifecycle import (
    FAILED,
    KILLED,
    PENDING,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    TERMINAL,
)
from scheduler.core.records import Attempt, Job, TaskRow
from scheduler.core.turn import Turn, job_ended_event, job_started_event

_COUNTED = {
    PENDING: "pending",
    RUNNING: "running",
    SUCCEEDED: "succeeded",
    FAILED: "failed",
    KILLED: "killed",
}


def task_phase(row: TaskRow) -> str:
    """The first line of 1.5 that holds for a task."""
    live = row.pending + row.running
    if row.replicas == 0:
        return STOPPED
    if live == 0 and row.killed and not row.failed:
        return KILLED
    if live == 0 and row.failed:
        return FAILED
    if row.succeeded == row.replicas:
        return SUCCEEDED
    if row.kind == "service":
        return RUNNING if row.running == row.replicas else PENDING
    return RUNNING if row.running else PENDING


def job_phase(job: Job) -> str:
    """The first line of 1.5 that holds for a job."""
    live = running = failed = killed_runs = 0
    for row in job.tasks:
        live += row.pending + row.running
        running += row.running
        failed += row.failed
        if row.kind == "run":
            killed_runs += row.killed
    if live == 0:
        if job.kill is not None or (killed_runs and not failed):
            return KILLED
        if job.spec.stopped:
            return STOPPED
        return FAILED if failed else SUCCEEDED
    return RUNNING if running else PENDING


def ending_to(job: Job) -> str:
    """Phase that is decided while something still runs; empty while the end is open."""
    if job.phase in TERMINAL or job.phase == STOPPED:
        return ""
    if job.kill is not None:
        return KILLED
    if job.spec.stopped:
        return STOPPED
    if job.spec.fail_fast and any(row.failed for row in job.tasks):
        return FAILED
    return ""


def shifted(tasks: tuple[TaskRow, ...], name: str, old: str, new: str) -> tuple[TaskRow, ...]:
    """The rows with one worker of task `name` moved from phase `old` to `new`."""
    if old == new:
        return tasks
    return tuple(_shift(row, old, new) if row.name == name else row for row in tasks)


def _shift(row: TaskRow, old: str, new: str) -> TaskRow:
    lower, higher = _COUNTED[old], _COUNTED[new]
    assert getattr(row, lower) > 0
    changes = {lower: getattr(row, lower) - 1, higher: getattr(row, higher) + 1}
    return msgspec.structs.replace(row, **changes)


def move_worker(
    turn: Turn,
    attempt: Attempt,
    *,
    old: str,
    new: str,
    has_started: bool = False,
    is_final: bool = False,
) -> Job:
    """Take a worker's change of phase into its job: counts, phase, and the job's end.

    `has_started`: its attempt ran, be it for no time; `is_final`: no attempt follows this one.
    """
    state = turn.state
    job = state.jobs[attempt.job]
    before = job.phase
    job = msgspec.structs.replace(
        job, tasks=shifted(job.tasks, attempt.task, old, new), version=turn.at.index
    )
    is_first = has_started and job.started is None
    if is_first:
        job = msgspec.structs.replace(job, started=turn.at)
    if is_final:
        job = _with_verdict(job, attempt)
    phase = job_phase(job)
    if phase in TERMINAL:
        job = _ended(turn, job, phase, attempt)
    elif phase != before:
        job = msgspec.structs.replace(job, phase=phase)
    if job.ending_since is None and ending_to(job):
        job = msgspec.structs.replace(job, ending_since=turn.at)
    state.put_job(job)
    if is_first:
        turn.emit(job_started_event(job))
    if phase in TERMINAL:
        turn.emit(job_ended_event(job))
        _close_key(turn, job)
    elif phase != before and not is_first:
        turn.record(str(job.id), "phase", from_phase=before, to_phase=phase)
    return job


def _with_verdict(job: Job, attempt: Attempt) -> Job:
    """Note the first attempt that decides the job: a failure outranks a kill."""
    assert attempt.ended is not None
    if attempt.phase == SUCCEEDED:
        return job
    is_first_failure = attempt.phase == FAILED and sum(row.failed for row in job.tasks) == 1
    if job.decided_by and not is_first_failure:
        return job
    return msgspec.structs.replace(
        job,
        decided_by=str(attempt),
        cause=attempt.ended.cause,
        by=attempt.ended.by,
        why=attempt.ended.why,
    )


def _ended(turn: Turn, job: Job, phase: str, attempt: Attempt) -> Job:
    assert attempt.ended is not None
    if job.kill is not None:
        return msgspec.structs.replace(
            job,
            phase=phase,
            ended=turn.at,
            cause=job.kill.cause,
            by=job.kill.by,
            why=job.kill.why,
        )
    if job.decided_by:
        return msgspec.structs.replace(job, phase=phase, ended=turn.at)
    return msgspec.structs.replace(
        job,
        phase=phase,
        ended=turn.at,
        cause=attempt.ended.cause,
        decided_by=str(attempt),
    )


def _close_key(turn: Turn, job: Job) -> None:
    """One job of an idempotency key is final: its retention starts with the last."""
    if not job.key:
        return
    state = turn.state
    row = state.keys.get((job.principal, job.key))
    if row is None:
        return
    left = row.open_count - 1
    final_ms = turn.at.log_ms if left == 0 else 0
    state.put_key(msgspec.structs.replace(row, open_count=left, final_ms=final_ms))
