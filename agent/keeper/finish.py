"""Writing down how an attempt ended: FinishFacts, durable, then told."""

from __future__ import annotations

from typing import Any

from agent.keeper.attempt import Attempt, Closed, Phase
from agent.keeper.clock import wall_ms
from agent.keeper.context import Context
from agent.keeper.outcome import Exit, cause_of_exit


def close_attempt(
    context: Context,
    attempt: Attempt,
    *,
    is_tree_gone: bool,
    detail: str = "",
    proof: str = "",
) -> None:
    """Write the finish; once durable, tell the agent and forget all but the finish.

    With `is_tree_gone` false the attempt stays, as STUCK, until `tree_gone`. `proof` replaces the
    evidence of an end whose status nobody saw.
    """
    attempt.disarm_all()
    for capture in attempt.captures.values():
        if capture.fd >= 0:
            context.loop.unwatch(capture.fd)
        capture.finish()
    attempt.phase = Phase.CLOSING if is_tree_gone else Phase.STUCK
    finish = finish_facts(context, attempt, is_tree_gone=is_tree_gone, detail=detail)
    if proof and attempt.status is None:
        finish["evidence"] = proof
    record = {"worker": attempt.work.worker, "session": attempt.session, "finish": finish}
    context.ledger.write(
        attempt.token, "exited", record, lambda: _finished(context, attempt, finish)
    )
    if is_tree_gone:
        clean_up(context, attempt)


def note_status(context: Context, attempt: Attempt) -> None:
    """Write the wait status down while the attempt is not over: it can be seen only once."""
    if attempt.status is None or attempt.is_status_noted:
        return
    attempt.is_status_noted = True
    record = {
        "status": attempt.status,
        "ended_at_ms": attempt.ended_at_ms,
        "cpu_ms": attempt.usage.cpu_ms,
        "peak_rss_bytes": attempt.usage.peak_rss_bytes,
        "was_signalled": attempt.was_signalled,
        "was_oom": attempt.was_oom,
        "ending": "" if attempt.ending is None else attempt.ending.cause,
        "detail": "" if attempt.ending is None else attempt.ending.detail,
    }
    context.ledger.write(attempt.token, "status", record)


def tree_gone(context: Context, attempt: Attempt) -> None:
    """The tree of an attempt whose finish said otherwise is gone at last."""
    closed = context.closed.get(attempt.token)
    if closed is None:
        return  # its finish is not durable yet; looked at again with the next sweep
    attempt.disarm_all()
    finish = finish_of(context, attempt.token) | {"is_tree_gone": True}
    record = {"worker": closed.worker, "session": closed.session, "finish": finish}

    def tell() -> None:
        context.attempts.pop(attempt.token, None)
        context.emit({"is": "tree_gone", "token": attempt.token})

    attempt.phase = Phase.CLOSING
    context.ledger.write(attempt.token, "exited", record, tell)
    clean_up(context, attempt)


def close_unlaunched(context: Context, attempt: Attempt, cause: str, detail: str) -> None:
    """The launch failed: a finish without a process."""
    attempt.started_at_ms = attempt.ended_at_ms = wall_ms()
    attempt.phase = Phase.RUNNING
    attempt.ending = None
    attempt.disarm_all()
    finish = _base(context, attempt, cause, detail)
    attempt.phase = Phase.CLOSING
    record = {"worker": attempt.work.worker, "session": attempt.session, "finish": finish}
    context.ledger.write(
        attempt.token, "exited", record, lambda: _finished(context, attempt, finish)
    )
    clean_up(context, attempt)


def finish_facts(
    context: Context, attempt: Attempt, *, is_tree_gone: bool, detail: str = ""
) -> dict[str, Any]:
    """FinishFacts of an attempt that has run."""
    ending = attempt.ending
    ended_by = ending.cause if ending is not None and ending.cause else None
    facts = _base(context, attempt, _cause(attempt, ended_by), detail or _detail(attempt))
    if attempt.status is not None:
        end = Exit.of_status(attempt.status)
        facts |= {"exit_code": end.exit_code, "signal": end.signal, "has_core": end.has_core}
        facts["evidence"] = attempt.status_evidence
    else:
        facts["evidence"] = "seen_gone" if is_tree_gone else "declared"
    facts |= {
        "has_exited_before_kill": (
            attempt.order is not None and attempt.status is not None and not attempt.was_signalled
        ),
        "is_tree_gone": is_tree_gone,
    }
    return facts


def _cause(attempt: Attempt, ended_by: str | None) -> str:
    if attempt.status is None:
        return ended_by or "status_lost"
    ending = attempt.ending
    if ending is not None and ending.is_after_exit and attempt.are_checks_done:
        ended_by = None  # the end was complete before we began to end anything
    cause = cause_of_exit(
        attempt.status,
        ending=ended_by,
        accepted=attempt.work.accept_exit,
        was_oom=attempt.was_oom,
    )
    if cause in {"exit_zero", "accepted_exit"} and attempt.failed_check is not None:
        return "output_check"
    return cause


def _detail(attempt: Attempt) -> str:
    if attempt.ending is not None and attempt.ending.cause:
        return attempt.ending.detail
    return attempt.failed_check or ""


def _base(context: Context, attempt: Attempt, cause: str, detail: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "cause": cause,
        "ended_at_ms": attempt.ended_at_ms or wall_ms(),
        "start": attempt.start_facts(context.boot_id),
        "exit_code": None,
        "signal": None,
        "has_core": False,
        "peak_rss_bytes": attempt.usage.peak_rss_bytes,
        "cpu_ms": attempt.usage.cpu_ms,
        "stdout": {"size_bytes": 0, "sha256": "", "is_truncated": False},
        "stderr": {"size_bytes": 0, "sha256": "", "is_truncated": False},
        "evidence": "observed",
        "detail": detail,
        "has_exited_before_kill": False,
        "cleanup": attempt.cleanup,
        "is_tree_gone": True,
        "was_signalled": attempt.was_signalled,
        "frozen_ms": frozen_total_ms(context, attempt),
    }
    for stream, capture in attempt.captures.items():
        facts[stream] = capture.facts()
    return facts


def finish_of(context: Context, token: str) -> dict[str, Any]:
    """The FinishFacts of a closed attempt."""
    record = context.ledger.read(token, "exited")
    assert record is not None
    finish: dict[str, Any] = record["finish"]
    return finish


def frozen_total_ms(context: Context, attempt: Attempt) -> int:
    """How long the attempt was frozen, up to now."""
    now_frozen = 0
    if attempt.frozen_since_ms is not None:
        now_frozen = context.loop.now_ms() - attempt.frozen_since_ms
    return attempt.frozen_ms + now_frozen


def _finished(context: Context, attempt: Attempt, finish: dict[str, Any]) -> None:
    token = attempt.token
    context.leases.drop(token)
    closed = Closed(worker=attempt.work.worker, session=attempt.session)
    context.closed[token] = closed
    if attempt.phase is Phase.CLOSING:
        context.attempts.pop(token, None)
    closed.is_told = context.emit({"is": "finished", "token": token, "finish": finish})


def clean_up(context: Context, attempt: Attempt) -> None:
    """Give back what only a running attempt needs."""
    if attempt.group is not None:
        attempt.group.remove()
    context.remover.prune(attempt.token)


def drop_unstarted(context: Context, attempt: Attempt, *, why: str) -> None:
    """Give up an attempt that was never forked: its records go, and the agent is told."""
    token = attempt.token
    context.attempts.pop(token, None)
    context.leases.drop(token)
    attempt.disarm_all()
    context.ledger.drop(token, ("intent", "order"))
    event = {"is": "not_started", "token": token, "why": why}
    context.ledger.after(lambda: context.tell(event))
