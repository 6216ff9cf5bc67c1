"""What time decides: unknown attempts, queue limits, the registry, retention (2.4, 4)."""

from __future__ import annotations

from typing import Any, Final

from scheduler.core import due, registry
from scheduler.core.commands import DeadlinesPassed
from scheduler.core.handlers import nodes
from scheduler.core.lifecycle import RUNNING
from scheduler.core.records import Attempt, AttemptKey, Job, JobTombstone, KillDecision
from scheduler.core.results import Done
from scheduler.core.transition import bury_attempt, end_attempt, kill_worker
from scheduler.core.turn import Turn

#: Records one entry touches at most, whatever its `limit` asks for.
LIMIT_MAX: Final = 500


def apply_deadlines_passed(turn: Turn, entry: DeadlinesPassed) -> Done:
    """Work off what is due at the entry's log time; `remaining` is 0 when nothing is left."""
    state = turn.state
    left = max(1, min(entry.limit, LIMIT_MAX))
    for kind in due.KINDS:
        while left > 0:
            key = state.due.first(kind, turn.at.log_ms)
            if key is None:
                break
            left -= max(1, _WORK[kind](turn, key, left))
    return Done(remaining=state.due.count_due(turn.at.log_ms))


def _disconnect(turn: Turn, name: str, limit: int) -> int:
    return nodes.continue_disconnect(turn, name, limit)


def _unknown(turn: Turn, name: str, limit: int) -> int:
    """The deadline of an unheard node: what nobody claimed is lost."""
    state = turn.state
    done = 0
    for key in sorted(state.on_node.get(name, ())):
        attempt = state.attempts[key]
        if attempt.ended is not None or attempt.mark is not None:
            continue
        if done == limit:
            break
        lose(turn, attempt)
        done += 1
    return done


def _marked(turn: Turn, key: AttemptKey, _limit: int) -> int:
    lose(turn, turn.state.attempts[key])
    return 1


def lose(turn: Turn, attempt: Attempt) -> None:
    """Nobody claimed it until its deadline (4, B3 and B5)."""
    assert attempt.placed is not None
    node = attempt.placed.node
    if attempt.phase == RUNNING:
        end_attempt(
            turn,
            attempt,
            "node_lost",
            evidence="declared",
            why=f"{node} was not heard until the deadline",
            is_tree_gone=False,
        )
    else:
        end_attempt(
            turn,
            attempt,
            "revoked",
            evidence="declared",
            by="system:deadline",
            why=f"{node} was not heard until the deadline; the start was never confirmed",
            is_tree_gone=False,
        )


def _pending(turn: Turn, key: AttemptKey, _limit: int) -> int:
    state = turn.state
    attempt = state.attempts[key]
    decision = KillDecision(
        cause="pending_timeout",
        by="system:pending_timeout",
        why="waited in the queue past its limit",
        at=turn.at,
    )
    kill_worker(turn, state.workers[attempt.worker], decision)
    return 1


def _registry(turn: Turn, key: tuple[str, str], _limit: int) -> int:
    count = len(turn.state.registry[key].reports)
    registry.expire(turn, key)
    return count


# ---- retention ---------------------------------------------------------------------------------


def _collect_job(turn: Turn, job_id: int, _limit: int) -> int:
    """Remove a final job's records; tombstones go on answering for it."""
    state = turn.state
    job = state.jobs[job_id]
    count = 1
    names = [str(job_id)]
    for row in job.tasks:
        for index in range(row.replicas):
            worker = state.workers[(job_id, row.name, index)]
            names.append(str(worker))
            count += 1 + _bury_attempts(turn, job, row.name, index, worker.attempt)
            state.workers.delete(worker.key)
    for name in names:
        if name in state.event_logs:
            state.event_logs.delete(name)
    state.delete_job(job)
    state.put_job_tombstone(JobTombstone(job=job_id, phase=job.phase, cause=job.cause, at=turn.at))
    state.count("jobs_collected")
    return count


def _bury_attempts(turn: Turn, job: Job, task: str, index: int, newest: int) -> int:
    state = turn.state
    count = 0
    for number in range(1, newest + 1):
        attempt = state.attempts.get((job.id, task, index, number))
        if attempt is not None:
            bury_attempt(turn, attempt)
            count += 1
    return count


def _drop_key(turn: Turn, key: tuple[str, str], _limit: int) -> int:
    turn.state.keys.delete(key)
    return 1


def _drop_tombstone(turn: Turn, token: str, _limit: int) -> int:
    turn.state.tombstones.delete(token)
    return 1


def _drop_job_tombstone(turn: Turn, job_id: int, _limit: int) -> int:
    turn.state.job_tombstones.delete(job_id)
    return 1


_WORK: dict[str, Any] = {
    due.DISCONNECT: _disconnect,
    due.UNKNOWN: _unknown,
    due.MARKED: _marked,
    due.PENDING_LIMIT: _pending,
    due.REGISTRY: _registry,
    due.JOB_RETENTION: _collect_job,
    due.KEY_RETENTION: _drop_key,
    due.TOMBSTONE_RETENTION: _drop_tombstone,
    due.JOB_TOMBSTONE_RETENTION: _drop_job_tombstone,
}
