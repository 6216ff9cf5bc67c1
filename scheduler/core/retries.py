"""Who gets another try (specification 1.4). Pure arithmetic over the spec and the budgets used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scheduler.core.lifecycle import ALWAYS, CAUSES, NEVER, NODE, TASK
from scheduler.core.records import Worker
from scheduler.protocol.spec import Backoff, Retry, TaskSpec

#: Wait before the successor of a revoked attempt: nothing bounds how often a node that cannot
#: start anything refuses, so it must not happen in a tight loop.
REVOKED_WAIT_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class NextTry:
    """Another attempt follows, `delay_ms` from now, counted against `budget`."""

    budget: str
    delay_ms: int = 0


def backoff_ms(backoff: Backoff, failure: int) -> int:
    """Wait before the retry after the `failure`-th failure: first × factor^(n-1), at most max."""
    delay = backoff.first_ms
    for _ in range(failure - 1):
        if delay >= backoff.max_ms:
            break
        delay = delay * backoff.factor_millis // 1000
    return min(delay, backoff.max_ms)


def is_retried(retry: Retry, *, cause: str, exit_code: int | None) -> bool:
    """What `on` and `not_on` say of this end; both may name causes and exit codes.

    `on` narrows the task's own failures; the node's only when it names a cause of the node's, so
    that `on: [oom]` does not make a job die with its host.
    """
    names = {cause} if exit_code is None else {cause, str(exit_code)}
    if names & set(retry.not_on):
        return False
    if not retry.on or names & set(retry.on):
        return True
    if CAUSES[cause].budget == NODE:
        return not any(name in CAUSES and CAUSES[name].budget == NODE for name in retry.on)
    return False


def next_try(
    spec: TaskSpec, worker: Worker, *, cause: str, exit_code: int | None
) -> NextTry | None:
    """The retry that an end for `cause` earns; None when the worker ended for good."""
    budget = CAUSES[cause].budget
    if budget == NEVER:
        return None
    if budget == ALWAYS:
        return NextTry(ALWAYS, REVOKED_WAIT_MS if cause == "revoked" else 0)
    retry = spec.retry
    meaning = "" if exit_code is None else spec.exit_codes.get(exit_code, "")
    if meaning == "fail_job":
        return None
    if meaning != "retry" and not is_retried(retry, cause=cause, exit_code=exit_code):
        return None
    used, limit = (
        (worker.task_failures, retry.limit)
        if budget == TASK
        else (worker.node_failures, retry.node_limit)
    )
    if used >= limit:
        return None
    return NextTry(budget, backoff_ms(retry.backoff, used + 1))
