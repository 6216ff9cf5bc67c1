"""By when, and by which rule, each open attempt is decided; and why a pending one waits (4, 5.4).

Deadlines are log times; they are shown on the clock of the newest entry's wall label. Read only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from scheduler.core import contact, fencing, placement
from scheduler.core.lifecycle import PENDING, RUNNING
from scheduler.core.placement import Reason
from scheduler.core.records import NO_TIME_RELEASES, Attempt, Stamp

if TYPE_CHECKING:
    from scheduler.core.state import ClusterState

View = dict[str, Any]

#: An attempt is overdue only this long after its instant: an entry needs a moment to commit.
OVERDUE_SLACK_MS: Final = 5_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(wall_ms: int) -> str:
    """A wall-clock label as `2026-01-02T03:04:05.678Z`."""
    text = (_EPOCH + timedelta(milliseconds=wall_ms)).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def time_of(stamp: Stamp | None) -> str | None:
    return None if stamp is None else rfc3339(stamp.wall_ms)


def wall_of(state: ClusterState, log_ms: int) -> int:
    """The wall-clock label that a log time will have, as far as can be told now."""
    return state.wall_ms + log_ms - state.clock_ms


# ---- by when it is decided ---------------------------------------------------------------------


def decision_ms(state: ClusterState, attempt: Attempt) -> tuple[int | None, str]:
    """Log time and rule by which an open attempt will be decided or go on (specification 4).

    None as time: the one open-ended case, or one that the next heartbeat decides.
    """
    if attempt.placed is None:
        return _waiting_decision(state, attempt)
    spec = state.task_spec(attempt)
    unknown = contact.unknown_of(state, attempt)
    if unknown is not None:
        return unknown.deadline_ms, f"unknown ({unknown.cause}) until its deadline"
    limit_ms = spec.grace_ms + state.setting_ms("kill_limit")
    if attempt.kill is not None:
        # The order went out again when its node rejoined.
        node = state.nodes.get(attempt.placed.node)
        claimed_ms = 0 if node is None or node.claimed is None else node.claimed.log_ms
        since_ms = max(attempt.kill.at.log_ms, claimed_ms)
        return since_ms + limit_ms, "kill: grace and kill_limit"
    if attempt.phase == PENDING:
        return fencing.start_due_ms(state, attempt), "start_timeout"
    started = attempt.started
    if spec.timeout_ms is not None and started is not None:
        return started.at.log_ms + spec.timeout_ms + limit_ms, "timeout"
    return None, "next heartbeat and heartbeat_timeout"


def _waiting_decision(state: ClusterState, attempt: Attempt) -> tuple[int | None, str]:
    limit_ms = state.task_spec(attempt).pending_timeout_ms
    if limit_ms is not None:
        return attempt.created.log_ms + limit_ms, "pending_timeout"
    return None, "when resources free up"


def decided_by(state: ClusterState, attempt: Attempt, *, now_ms: int | None = None) -> View | None:
    """`{at, rule}` of an open attempt; None for a final one."""
    if attempt.ended is not None:
        return None
    at_ms, rule = decision_ms(state, attempt)
    if at_ms is None and attempt.phase == RUNNING:
        now = state.clock_ms if now_ms is None else now_ms
        beats = state.setting_ms("heartbeat_interval") + state.setting_ms("heartbeat_timeout")
        at_ms = now + beats
    return {"at": None if at_ms is None else rfc3339(wall_of(state, at_ms)), "rule": rule}


def is_overdue(state: ClusterState, attempt: Attempt, *, now_ms: int) -> bool:
    """Whether its instant has passed. Timeouts stand while frozen, so these get a lease more."""
    if attempt.ended is not None:
        return False
    at_ms, rule = decision_ms(state, attempt)
    if at_ms is None:
        return False
    slack_ms = OVERDUE_SLACK_MS
    if rule in ("timeout", "start_timeout"):
        slack_ms += state.lease_ms()
    return now_ms > at_ms + slack_ms


# ---- why it is pending -------------------------------------------------------------------------


def pending_reason(state: ClusterState, attempt: Attempt) -> Reason:
    """Why a Pending attempt does not run yet."""
    placed = attempt.placed
    if placed is not None:
        if contact.unknown_of(state, attempt) is not None:
            return Reason("Recovering", f"assigned to {placed.node}, which must rejoin first")
        waited_s = (state.clock_ms - placed.at.log_ms) / 1000
        return Reason(
            "Starting",
            f"assigned to {placed.node} {waited_s:.1f} s ago, no start report yet",
        )
    worker = state.workers[attempt.worker]
    fence = fencing.blocking(state, worker)
    if fence is not None and fence.ended is not None and fence.placed is not None:
        until = fence.ended.fence_until_ms
        if fence.is_unwanted or until == NO_TIME_RELEASES:
            return Reason(
                "Fencing",
                f"attempt {fence.number} may still run on {fence.placed.node}, until its node "
                "says it is gone",
            )
        if until > state.clock_ms:
            clock = rfc3339(wall_of(state, until))[11:19]
            return Reason(
                "Fencing",
                f"attempt {fence.number} may still run on {fence.placed.node}, "
                f"at the latest until {clock}",
            )
    if attempt.not_before_ms > state.clock_ms:
        clock = rfc3339(wall_of(state, attempt.not_before_ms))[11:19]
        return Reason("Backoff", f"retry {attempt.number - 1} at {clock}")
    return placement.why_shape_waits(state, placement.pending_shape(state, attempt, worker))


def reason_views(reasons: list[Reason]) -> list[View]:
    """Reasons summed up: code, message of the first, and how many workers wait for it."""
    counts: dict[str, View] = {}
    for reason in reasons:
        known = counts.get(reason.code)
        if known is None:
            counts[reason.code] = {"code": reason.code, "message": reason.message, "count": 1}
        else:
            known["count"] += 1
    return list(counts.values())
