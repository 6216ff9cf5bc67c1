"""Jobs: submitting and killing."""

from __future__ import annotations

from msgspec.structs import replace

from scheduler.core import placement
from scheduler.core.aggregate import ending_to
from scheduler.core.commands import KillRequested, SubmitJobs, SubmittedJob
from scheduler.core.lifecycle import KILL_CAUSES, KILLED, PENDING, TERMINAL
from scheduler.core.records import (
    Attempt,
    IdempotencyKey,
    Job,
    KillDecision,
    TaskRow,
    Worker,
)
from scheduler.core.results import KillAnswer, Rejected, Submitted
from scheduler.core.transition import kill_worker
from scheduler.core.turn import Turn, created_event, submitted_event
from scheduler.protocol.ids import BadId, Target


def apply_submit_jobs(turn: Turn, entry: SubmitJobs) -> Submitted | Rejected:
    """All or nothing. The same key with the same body gives the same jobs again."""
    state = turn.state
    if entry.key:
        known = state.keys.get((entry.actor, entry.key))
        if known is not None:
            if known.body_digest != entry.body_digest:
                return Rejected(
                    "key_reused",
                    f"idempotency key {entry.key!r} was used before for another request",
                    "use a new key for a new request",
                )
            return Submitted(known.job_ids, is_known=True)
    refused = _find_unsatisfiable(turn, entry)
    if refused is not None:
        return refused
    first = state.next_job
    ids = tuple(range(first, first + len(entry.jobs)))
    state.next_job += len(entry.jobs)
    for job_id, job in zip(ids, entry.jobs, strict=True):
        _create_job(turn, entry, job_id, job)
    if entry.key:
        state.put_key(
            IdempotencyKey(
                principal=entry.actor,
                key=entry.key,
                body_digest=entry.body_digest,
                job_ids=ids,
                open_count=len(ids),
                final_ms=0,
            )
        )
    turn.is_placement_due = True
    return Submitted(ids)


def _find_unsatisfiable(turn: Turn, entry: SubmitJobs) -> Rejected | None:
    """A request no known node could ever meet is refused at once (specification 5.3)."""
    state = turn.state
    seen: set[object] = set()
    for number, job in enumerate(entry.jobs):
        if job.spec.wait_for_capacity:
            continue
        for name, task in job.spec.tasks.items():
            shape = placement.shape_of_spec(job.spec, task)
            if shape in seen:
                continue
            seen.add(shape)
            reason = placement.unsatisfiable(state, shape)
            if reason is not None:
                where = f"job {number}, task {name}: " if len(entry.jobs) > 1 else ""
                return Rejected(
                    "unsatisfiable",
                    f"{where}{reason.message}",
                    "ask for less, or submit with --wait-for-capacity",
                    kind="invalid",
                )
    return None


def _create_job(turn: Turn, entry: SubmitJobs, job_id: int, submitted: SubmittedJob) -> None:
    state, at = turn.state, turn.at
    spec = state.shared_spec(submitted.spec)
    job = Job(
        id=job_id,
        spec=spec,
        user=submitted.user,
        phase=PENDING,
        version=at.index,
        created=at,
        tasks=tuple(
            TaskRow(name=name, kind=task.kind, replicas=task.replicas, pending=task.replicas)
            for name, task in spec.tasks.items()
        ),
        clone_of=entry.clone_of,
        principal=entry.actor if entry.key else "",
        key=entry.key,
    )
    state.put_job(job)
    turn.emit(submitted_event(job))
    for name, task in spec.tasks.items():
        for index in range(task.replicas):
            state.put_worker(
                Worker(job=job_id, task=name, index=index, version=at.index, phase=PENDING)
            )
            attempt = Attempt(
                job=job_id, task=name, index=index, number=1, phase=PENDING, created=at
            )
            state.put_attempt(attempt)
            turn.emit(created_event(attempt))


# ---- kill --------------------------------------------------------------------------------------


def apply_kill_requested(turn: Turn, entry: KillRequested) -> KillAnswer | Rejected:
    """Commit the end of a job, task, worker or attempt. The first decision stays."""
    state = turn.state
    if entry.cause not in KILL_CAUSES:
        return Rejected("bad_cause", f"{entry.cause!r} is no cause of a kill", kind="invalid")
    try:
        target = Target.parse(entry.target)
    except BadId as error:
        return Rejected("bad_id", str(error), kind="invalid")
    job = state.jobs.get(target.job)
    if job is None:
        return _no_such(turn, target)
    if entry.if_version is not None and entry.if_version != job.version:
        return Rejected(
            "version_moved",
            f"job {job.id} is at version {job.version}, not {entry.if_version}",
            "look at it again",
            kind="version",
        )
    if job.phase in TERMINAL:
        return _final_answer(job, entry)
    decision = KillDecision(cause=entry.cause, by=turn.actor, why=entry.why, at=turn.at)
    if target.task is None and target.number is None:
        return _kill_job(turn, job, decision)
    return _kill_part(turn, job, target, decision)


def _no_such(turn: Turn, target: Target) -> Rejected:
    stone = turn.state.job_tombstones.get(target.job)
    if stone is not None:
        return Rejected(
            "already_final",
            f"job {target.job} was {stone.phase} and its record has been removed",
        )
    return Rejected("not_found", f"there is no job {target.job}", kind="not_found")


def _final_answer(job: Job, entry: KillRequested) -> KillAnswer | Rejected:
    """A final job refuses; the very request that killed it, repeated, hears that it did."""
    kill = job.kill
    if kill is not None and (kill.by, kill.cause, kill.why) == (
        entry.actor,
        entry.cause,
        entry.why,
    ):
        return KillAnswer(job.id, is_done=True, message=f"job {job.id} is Killed")
    return Rejected(
        "already_final",
        f"job {job.id} is already {job.phase}",
        f"a final job stays as it is; `clone {job.id}` makes a new one",
    )


def _kill_job(turn: Turn, job: Job, decision: KillDecision) -> KillAnswer:
    state = turn.state
    if job.kill is not None:
        kill = job.kill
        return KillAnswer(job.id, is_done=False, message=f"is being killed by {kill.by} already")
    job = replace(job, kill=decision, version=turn.at.index)
    if ending_to(job) and job.ending_since is None:
        job = replace(job, ending_since=turn.at)
    state.put_job(job)
    turn.record(
        str(job.id), "kill_requested", cause=decision.cause, by=decision.by, why=decision.why
    )
    for row in job.tasks:
        for index in range(row.replicas):
            worker = state.workers[(job.id, row.name, index)]
            if worker.phase not in TERMINAL:
                kill_worker(turn, worker, decision)
    return _answer(turn, job.id)


def _kill_part(
    turn: Turn, job: Job, target: Target, decision: KillDecision
) -> KillAnswer | Rejected:
    state = turn.state
    workers = _workers_of(turn, job, target)
    if not workers:
        return Rejected("not_found", f"there is no {target}", kind="not_found")
    if target.number is not None:
        worker = workers[0]
        attempt = state.attempts.get((*worker.key, target.number))
        if attempt is None:
            return Rejected("not_found", f"there is no {target}", kind="not_found")
        if attempt.ended is not None and attempt.number != worker.attempt:
            return Rejected(
                "already_final",
                f"{attempt} is already {attempt.phase}",
                f"its successor is {worker}#{worker.attempt}",
            )
    open_ones = [worker for worker in workers if worker.phase not in TERMINAL]
    if not open_ones:
        phases = ", ".join(sorted({worker.phase for worker in workers}))
        return Rejected(
            "already_final", f"{target} is already {phases}", "a final worker stays as it is"
        )
    for worker in open_ones:
        kill_worker(turn, worker, decision)
    return _answer(turn, job.id)


def _workers_of(turn: Turn, job: Job, target: Target) -> list[Worker]:
    """The workers a target names; `42#1` means the only worker of the job."""
    state = turn.state
    rows = [row for row in job.tasks if target.task in (None, row.name)]
    is_only = len(rows) == 1 and rows[0].replicas == 1
    if target.number is not None and target.index is None and not is_only:
        return []
    found = []
    for row in rows:
        indices = range(row.replicas) if target.index is None else (target.index,)
        for index in indices:
            worker = state.workers.get((job.id, row.name, index))
            if worker is not None:
                found.append(worker)
    return found


def _answer(turn: Turn, job_id: int) -> KillAnswer:
    job = turn.state.jobs[job_id]
    if job.phase in TERMINAL:
        return KillAnswer(job_id, is_done=True, message=f"job {job_id} is {job.phase}")
    if job.kill is not None:
        return KillAnswer(job_id, is_done=False, message=f"job {job_id} is ending as {KILLED}")
    return KillAnswer(job_id, is_done=False, message="the kill is on its way")
