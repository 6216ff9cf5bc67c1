"""What happens to one attempt: created, started, ended, killed; and what follows from it.

Every handler changes attempts through these functions, so that the matrix, budgets, fences,
allocations and aggregates are kept in one place.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from scheduler.core import fencing, retries
from scheduler.core.aggregate import move_worker
from scheduler.core.lifecycle import (
    CAUSES,
    FAILED,
    NODE,
    NODE_BLAMED,
    PENDING,
    RUNNING,
    TASK,
    TERMINAL,
    is_allowed,
)
from scheduler.core.records import (
    Attempt,
    Ended,
    KillDecision,
    Started,
    Tombstone,
    Worker,
)
from scheduler.core.turn import Turn, created_event, ended_event, started_event
from scheduler.protocol.messages import FinishFacts, StartFacts

#: Attempt records kept per worker: the first, and the last (specification 1.7).
ATTEMPTS_FIRST: Final = 20
ATTEMPTS_LAST: Final = 180


def start_attempt(turn: Turn, attempt: Attempt, facts: StartFacts) -> Attempt:
    """Pending -> Running, as its node reported."""
    assert attempt.phase == PENDING
    state = turn.state
    attempt = replace(attempt, phase=RUNNING, started=Started(at=turn.at, facts=facts))
    state.put_attempt(attempt)
    turn.emit(started_event(attempt))
    worker = state.workers[attempt.worker]
    state.put_worker(replace(worker, phase=RUNNING, version=turn.at.index))
    move_worker(turn, attempt, old=worker.phase, new=RUNNING, has_started=True)
    return attempt


def end_attempt(
    turn: Turn,
    attempt: Attempt,
    cause: str,
    *,
    evidence: str,
    by: str = "",
    why: str = "",
    finish: FinishFacts | None = None,
    is_tree_gone: bool = True,
) -> Attempt:
    """End an attempt with `cause`, or with that of a kill committed before (specification 1.3).

    Passes through Running where the matrix has no direct way. Makes the successor when the end is
    retried, and takes the change into worker and job. Returns the attempt as it is then; a
    transition that the matrix does not have changes nothing and is counted.
    """
    if attempt.ended is not None or cause not in CAUSES:
        turn.state.count("refused_transitions")
        return attempt
    kill = attempt.kill
    if kill is not None:
        cause, by, why = kill.cause, kill.by, kill.why
    phase = CAUSES[cause].phase
    has_run = finish is not None and finish.start is not None and finish.start.pid is not None
    was_pending = attempt.phase == PENDING
    if was_pending and (has_run or not is_allowed(PENDING, phase, cause)):
        attempt = replace(attempt, phase=RUNNING, started=_start_of(turn, finish))
    if not is_allowed(attempt.phase, phase, cause):
        turn.state.count("refused_transitions")
        return attempt
    has_started = was_pending and attempt.started is not None
    if attempt.placed is None:
        is_tree_gone = True
    fence_ms = 0
    if not is_tree_gone:
        cleanup = "" if finish is None else finish.cleanup
        fence_ms = fencing.fence_until_ms(turn.state, attempt, cleanup=cleanup)
    ended = Ended(
        at=turn.at,
        cause=cause,
        evidence=evidence,
        by=by,
        why=why,
        finish=finish,
        is_tree_gone=is_tree_gone,
        fence_until_ms=fence_ms,
    )
    return _conclude(turn, replace(attempt, phase=phase, ended=ended), has_started=has_started)


def _start_of(turn: Turn, finish: FinishFacts | None) -> Started:
    """The start that an end without one passed through: no process, at the time of the end."""
    if finish is not None and finish.start is not None:
        return Started(at=turn.at, facts=finish.start)
    at_ms = turn.at.wall_ms if finish is None else finish.ended_at_ms
    return Started(at=turn.at, facts=StartFacts(started_at_ms=at_ms, pid=None))


def _conclude(turn: Turn, attempt: Attempt, *, has_started: bool) -> Attempt:
    """Store the end, and what it means for successor, worker and job."""
    state = turn.state
    ended = attempt.ended
    assert ended is not None
    worker = state.workers[attempt.worker]
    successor = _next_try(turn, attempt, worker)
    if successor is not None:
        attempt = replace(attempt, replaced_by=attempt.number + 1)
    state.put_attempt(attempt)
    if has_started:
        turn.emit(started_event(attempt))
    turn.emit(ended_event(attempt))
    if not ended.is_tree_gone:
        worker = replace(worker, fences=(*worker.fences, attempt.number))
    old_phase = worker.phase
    if successor is None:
        state.put_worker(replace(worker, phase=attempt.phase, version=turn.at.index))
        job = move_worker(
            turn,
            attempt,
            old=old_phase,
            new=attempt.phase,
            has_started=has_started,
            is_final=True,
        )
        if attempt.phase == FAILED and job.phase not in TERMINAL and _is_fail_fast(turn, attempt):
            _end_peers(turn, attempt)
    else:
        _create_successor(turn, attempt, worker, successor)
        move_worker(turn, attempt, old=old_phase, new=PENDING, has_started=has_started)
    turn.is_placement_due = True
    return attempt


def _next_try(turn: Turn, attempt: Attempt, worker: Worker) -> retries.NextTry | None:
    job = turn.state.jobs[attempt.job]
    if job.kill is not None or worker.kill is not None or job.spec.stopped:
        return None
    ended = attempt.ended
    assert ended is not None
    exit_code = None if ended.finish is None else ended.finish.exit_code
    spec = job.spec.tasks[attempt.task]
    return retries.next_try(spec, worker, cause=ended.cause, exit_code=exit_code)


def _create_successor(
    turn: Turn, attempt: Attempt, worker: Worker, successor: retries.NextTry
) -> None:
    state = turn.state
    number = attempt.number + 1
    assert attempt.ended is not None
    node = "" if attempt.placed is None else attempt.placed.node
    state.put_worker(
        replace(
            worker,
            phase=PENDING,
            version=turn.at.index,
            attempt=number,
            task_failures=worker.task_failures + (successor.budget == TASK),
            node_failures=worker.node_failures + (successor.budget == NODE),
            avoid=node if attempt.ended.cause in NODE_BLAMED else "",
        )
    )
    new = Attempt(
        job=attempt.job,
        task=attempt.task,
        index=attempt.index,
        number=number,
        phase=PENDING,
        created=turn.at,
        replaces=attempt.number,
        not_before_ms=turn.at.log_ms + successor.delay_ms if successor.delay_ms else 0,
    )
    state.put_attempt(new)
    turn.emit(created_event(new))
    _forget_middle(turn, new)


def _forget_middle(turn: Turn, newest: Attempt) -> None:
    """Keep the first and the last attempts of a worker that is retried without end."""
    number = newest.number - ATTEMPTS_LAST
    if number <= ATTEMPTS_FIRST:
        return
    state = turn.state
    old = state.attempts.get((*newest.worker, number))
    if old is None or old.ended is None or old.is_unwanted or not old.ended.is_tree_gone:
        return
    bury_attempt(turn, old)
    state.count("attempts_forgotten")


def bury_attempt(turn: Turn, attempt: Attempt) -> None:
    """Remove a final attempt's record; a tombstone goes on answering for its token."""
    ended, placed = attempt.ended, attempt.placed
    assert ended is not None
    if placed is not None:
        turn.state.put_tombstone(
            Tombstone(
                token=placed.token,
                attempt=str(attempt),
                node=placed.node,
                phase=attempt.phase,
                cause=ended.cause,
                at=turn.at,
            )
        )
    turn.state.delete_attempt(attempt)
    if str(attempt) in turn.state.event_logs:
        turn.state.event_logs.delete(str(attempt))


def release_tree(turn: Turn, attempt: Attempt) -> Attempt:
    """Nothing of an ended attempt runs any more, proven: its place and its fence are free."""
    ended = attempt.ended
    assert ended is not None
    if ended.is_tree_gone and not attempt.is_unwanted:
        return attempt
    state = turn.state
    attempt = replace(attempt, ended=replace(ended, is_tree_gone=True), is_unwanted=False)
    state.put_attempt(attempt)
    turn.record(str(attempt), "tree_gone")
    worker = state.workers[attempt.worker]
    if attempt.number in worker.fences:
        left = tuple(number for number in worker.fences if number != attempt.number)
        state.put_worker(replace(worker, fences=left, version=turn.at.index))
        state.note_job_retention(attempt.job)
    turn.is_placement_due = True
    return attempt


# ---- kills -------------------------------------------------------------------------------------


def kill_attempt(turn: Turn, attempt: Attempt, decision: KillDecision) -> Attempt:
    """Commit a kill: at once when it was never placed, else as an order to its node."""
    if attempt.ended is not None or attempt.kill is not None:
        return attempt
    attempt = replace(attempt, kill=decision)
    if attempt.placed is None:
        return end_attempt(turn, attempt, decision.cause, evidence="never_started")
    turn.state.put_attempt(attempt)
    turn.record(
        str(attempt),
        "kill_requested",
        cause=decision.cause,
        by=decision.by,
        why=decision.why,
    )
    return attempt


def kill_worker(turn: Turn, worker: Worker, decision: KillDecision) -> None:
    """End a worker for good: no attempt follows the present one."""
    state = turn.state
    if worker.kill is None:
        worker = replace(worker, kill=decision, version=turn.at.index)
        state.put_worker(worker)
    current = state.attempts[(*worker.key, worker.attempt)]
    kill_attempt(turn, current, decision)


def _is_fail_fast(turn: Turn, attempt: Attempt) -> bool:
    spec = turn.state.jobs[attempt.job].spec
    if spec.fail_fast:
        return True
    finish = None if attempt.ended is None else attempt.ended.finish
    code = None if finish is None else finish.exit_code
    return code is not None and spec.tasks[attempt.task].exit_codes.get(code) == "fail_job"


def _end_peers(turn: Turn, failed: Attempt) -> None:
    """The job fails with its first worker: the others are not needed any more."""
    state = turn.state
    decision = KillDecision(
        cause="peer_failed",
        by="system:fail_fast",
        why=f"{failed} failed for good",
        at=turn.at,
    )
    for row in state.jobs[failed.job].tasks:
        for index in range(row.replicas):
            worker = state.workers.get((failed.job, row.name, index))
            if worker is not None and worker.phase not in TERMINAL:
                kill_worker(turn, worker, decision)
