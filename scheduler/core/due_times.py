"""The true deadline of each kind of thing that is due (see `due`), from the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from scheduler.core import contact, fencing
from scheduler.core.due import (
    DISCONNECT,
    JOB_RETENTION,
    JOB_TOMBSTONE_RETENTION,
    KEY_RETENTION,
    MARKED,
    PENDING_LIMIT,
    REGISTRY,
    TOMBSTONE_RETENTION,
    UNKNOWN,
)
from scheduler.core.records import AttemptKey, is_waiting

if TYPE_CHECKING:
    from scheduler.core.state import ClusterState


def due_at(state: ClusterState, kind: str, key: Any) -> int | None:
    """True deadline of one thing, in log time; None when nothing is due for it."""
    return _DUE_AT[kind](state, key)


def _disconnect_due(state: ClusterState, name: str) -> int | None:
    node = state.nodes.get(name)
    return None if node is None or node.disconnect is None else node.disconnect.log_ms


def _unknown_due(state: ClusterState, name: str) -> int | None:
    node = state.nodes.get(name)
    if node is None or not state.on_node.get(name):
        return None
    deadline_ms = contact.node_deadline_ms(state, node)
    if deadline_ms is None or not contact.has_undecided(state, name):
        return None
    return deadline_ms


def _marked_due(state: ClusterState, key: AttemptKey) -> int | None:
    attempt = state.attempts.get(key)
    if attempt is None or attempt.ended is not None or attempt.mark is None:
        return None
    unknown = contact.unknown_of(state, attempt)
    return None if unknown is None else unknown.deadline_ms


def _pending_due(state: ClusterState, key: AttemptKey) -> int | None:
    attempt = state.attempts.get(key)
    if attempt is None or not is_waiting(attempt):
        return None
    limit_ms = state.task_spec(attempt).pending_timeout_ms
    return None if limit_ms is None else attempt.created.log_ms + limit_ms


def _registry_due(state: ClusterState, key: tuple[str, str]) -> int | None:
    queue = state.registry.get(key)
    if queue is None:
        return None
    return queue.reports[0].at.log_ms + state.setting_ms("unknown_report_ttl")


def _job_due(state: ClusterState, job_id: int) -> int | None:
    job = state.jobs.get(job_id)
    if job is None or job.ended is None or fencing.is_job_held(state, job):
        return None
    return job.ended.log_ms + job.spec.retention_ms


def _key_due(state: ClusterState, key: tuple[str, str]) -> int | None:
    row = state.keys.get(key)
    if row is None or row.open_count:
        return None
    return row.final_ms + state.setting_ms("idempotency_retention")


def _tombstone_due(state: ClusterState, token: str) -> int | None:
    stone = state.tombstones.get(token)
    if stone is None or not stone.is_tree_gone:
        return None
    return stone.at.log_ms + state.setting_ms("tombstone_retention")


def _job_tombstone_due(state: ClusterState, job_id: int) -> int | None:
    stone = state.job_tombstones.get(job_id)
    if stone is None:
        return None
    return stone.at.log_ms + state.setting_ms("tombstone_retention")


_DUE_AT: Final[dict[str, Callable[[ClusterState, Any], int | None]]] = {
    DISCONNECT: _disconnect_due,
    UNKNOWN: _unknown_due,
    MARKED: _marked_due,
    PENDING_LIMIT: _pending_due,
    REGISTRY: _registry_due,
    JOB_RETENTION: _job_due,
    KEY_RETENTION: _key_due,
    TOMBSTONE_RETENTION: _tombstone_due,
    JOB_TOMBSTONE_RETENTION: _job_tombstone_due,
}
