"""The cluster's founding, its settings, and the audit."""

from __future__ import annotations

from typing import Final

from scheduler.core import due
from scheduler.core.commands import Audit, ClusterFounded, ConfigChanged
from scheduler.core.results import Done, Rejected
from scheduler.core.settings import check_setting
from scheduler.core.state import ClusterState
from scheduler.core.turn import Turn

#: Job ids skipped by a restore: those a lost tail of the log may have handed out.
RESTORE_SKIPS: Final = 100_000


def apply_cluster_founded(turn: Turn, entry: ClusterFounded) -> Done | Rejected:
    """Identity and first settings; again only with a higher incarnation, after a restore."""
    state = turn.state
    if state.founded is not None:
        if entry.cluster_id != state.cluster_id or entry.incarnation <= state.incarnation:
            return Rejected(
                "already_founded",
                f"this is cluster {state.cluster_id}, incarnation {state.incarnation}",
            )
        state.next_job += RESTORE_SKIPS
    refused = _refusal(entry.settings)
    if refused is not None:
        return refused
    state.cluster_id = entry.cluster_id
    state.incarnation = entry.incarnation
    state.founded = turn.at
    _take(state, entry.settings)
    turn.record("cluster", "founded", by=turn.actor, details={"incarnation": entry.incarnation})
    return Done()


def apply_config_changed(turn: Turn, entry: ConfigChanged) -> Done | Rejected:
    """All of the changes or none."""
    refused = _refusal(entry.changes)
    if refused is not None:
        return refused
    state = turn.state
    old_lease_ms = state.lease_ms()
    _take(state, entry.changes)
    if state.setting_ms("transient_timeout") < old_lease_ms:
        # Leases of the old length are out there: until the last of them has run out, fences and
        # deadlines go by the old length (specification 3.5).
        state.old_lease_ms = old_lease_ms
        state.old_lease_until_ms = max(state.old_lease_until_ms, turn.at.log_ms + old_lease_ms)
    turn.record("cluster", "configured", by=turn.actor, details=entry.changes)
    return Done()


def _refusal(changes: dict[str, int | str]) -> Rejected | None:
    for name in sorted(changes):
        problem = check_setting(name, changes[name])
        if problem:
            return Rejected("bad_setting", problem, kind="invalid")
    return None


def _take(state: ClusterState, changes: dict[str, int | str]) -> None:
    for name in sorted(changes):
        state.overrides[name] = changes[name]
        state.settings[name] = changes[name]
    # Deadlines that a setting may have moved to earlier.
    state.due.renew(due.REGISTRY, state.registry.sorted_keys())
    state.due.renew(due.KEY_RETENTION, state.keys.sorted_keys())
    state.due.renew(due.TOMBSTONE_RETENTION, state.tombstones.sorted_keys())
    state.due.renew(due.JOB_TOMBSTONE_RETENTION, state.job_tombstones.sorted_keys())


def apply_audit(turn: Turn, entry: Audit) -> Done:
    """Something worth keeping that changes no job."""
    details: dict[str, int | str] = dict(entry.details)
    turn.record("cluster", "audit", by=turn.actor, why=entry.what, details=details)
    return Done()
