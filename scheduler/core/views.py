"""Records as JSON-ready values (specification 6.3): RFC 3339 UTC times, seconds, bytes. Read only.

Deadlines are log times; they are shown on the clock of the newest entry's wall label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scheduler.core import contact
from scheduler.core.aggregate import ending_to, task_phase
from scheduler.core.decisions import (
    View,
    decided_by,
    pending_reason,
    reason_views,
    rfc3339,
    time_of,
    wall_of,
)
from scheduler.core.lifecycle import PENDING, RUNNING, SUCCEEDED, TERMINAL
from scheduler.core.records import (
    Attempt,
    Event,
    Job,
    Node,
    TaskRow,
    Worker,
)
from scheduler.protocol.messages import FinishFacts, StreamFacts
from scheduler.protocol.specfile import document_from_job

if TYPE_CHECKING:
    from scheduler.core.state import ClusterState


def _seconds(value_ms: int | None) -> float | None:
    return None if value_ms is None else value_ms / 1000


# ---- attempts ----------------------------------------------------------------------------------


def attempt_view(state: ClusterState, attempt: Attempt, *, now_ms: int | None = None) -> View:
    """One attempt; see 6.3."""
    placed, started, ended = attempt.placed, attempt.started, attempt.ended
    finish = None if ended is None else ended.finish
    node = placed.node if placed is not None else _adopted_node(state, attempt)
    return {
        "id": str(attempt),
        "uid": None if placed is None else placed.token,
        "token": None if placed is None else placed.token,
        "number": attempt.number,
        "phase": attempt.phase,
        "cause": None if ended is None else ended.cause,
        "by": _or_none("" if ended is None else ended.by),
        "why": _or_none("" if ended is None else ended.why),
        "evidence": None if ended is None else ended.evidence,
        "node": node,
        "ip": _ip_of(state, node),
        "pid": None if started is None else started.facts.pid,
        "created_at": time_of(attempt.created),
        "assigned_at": None if placed is None else time_of(placed.at),
        "started_at": None if started is None else rfc3339(started.facts.started_at_ms),
        "ended_at": None if ended is None else rfc3339(_ended_wall(attempt)),
        **_finish_view(finish),
        "replaces": _sibling(attempt, attempt.replaces),
        "replaced_by": _sibling(attempt, attempt.replaced_by),
        "adopts": _or_none(attempt.adopts),
        "accepted": None,
        "unknown": unknown_view(state, attempt),
        "decided_by": decided_by(state, attempt, now_ms=now_ms),
        "late_truth": _late_view(attempt),
        "gpu_indices": [] if placed is None else list(placed.gpu_indices),
        "ending": _attempt_ending(state, attempt),
        "ready": is_ready(state, attempt),
        "pending_reasons": reason_views(
            [pending_reason(state, attempt)] if attempt.phase == PENDING else []
        ),
        "log_index": {
            "created": attempt.created.index,
            "placed": None if placed is None else placed.at.index,
            "started": None if started is None else started.at.index,
            "ended": None if ended is None else ended.at.index,
        },
    }


def _or_none(text: str) -> str | None:
    return text or None


def _sibling(attempt: Attempt, number: int | None) -> str | None:
    if number is None:
        return None
    return f"{attempt.job}/{attempt.task}/{attempt.index}#{number}"


def _adopted_node(state: ClusterState, attempt: Attempt) -> str | None:
    if not attempt.adopts:
        return None
    lost = state.attempts.get((*attempt.worker, int(attempt.adopts.rpartition("#")[2])))
    return None if lost is None or lost.placed is None else lost.placed.node


def _ip_of(state: ClusterState, name: str | None) -> str | None:
    node = None if name is None else state.nodes.get(name)
    return node.addresses[0] if node is not None and node.addresses else None


def _ended_wall(attempt: Attempt) -> int:
    assert attempt.ended is not None
    finish = attempt.ended.finish
    return attempt.ended.at.wall_ms if finish is None else finish.ended_at_ms


def _stream_view(stream: StreamFacts | None) -> View | None:
    if stream is None:
        return None
    return {
        "bytes": stream.size_bytes,
        "sha256": stream.sha256,
        "truncated": stream.is_truncated,
    }


def _finish_view(finish: FinishFacts | None) -> View:
    if finish is None:
        finish = _NO_FINISH
        stdout = stderr = None
    else:
        stdout, stderr = finish.stdout, finish.stderr
    return {
        "exit_code": finish.exit_code,
        "signal": finish.signal,
        "core_dumped": finish.has_core,
        "detail": _or_none(finish.detail),
        "peak_rss_bytes": finish.peak_rss_bytes,
        "cpu_s": _seconds(finish.cpu_ms),
        "stdout": _stream_view(stdout),
        "stderr": _stream_view(stderr),
        "cleanup": _or_none(finish.cleanup),
        "exited_before_kill": finish.has_exited_before_kill,
        "frozen_s": finish.frozen_ms / 1000,
    }


_NO_FINISH: Final = FinishFacts(cause="", ended_at_ms=0)


def unknown_view(state: ClusterState, attempt: Attempt) -> View | None:
    """The overlay of a Running attempt whose node is unheard."""
    if attempt.phase != RUNNING:
        return None
    unknown = contact.unknown_of(state, attempt)
    if unknown is None:
        return None
    return {
        "cause": unknown.cause,
        "transient_since": rfc3339(unknown.since.wall_ms),
        "deadline": rfc3339(wall_of(state, unknown.deadline_ms)),
    }


def _late_view(attempt: Attempt) -> View | None:
    late = attempt.late
    if late is None:
        return None
    return {
        "cause": late.finish.cause,
        "exit_code": late.finish.exit_code,
        "signal": late.finish.signal,
        "ended_at": rfc3339(late.finish.ended_at_ms),
        "known_at": time_of(late.at),
        "adopted_by": _or_none(late.adopted_by),
    }


def _attempt_ending(state: ClusterState, attempt: Attempt) -> View | None:
    kill = attempt.kill
    if kill is None or attempt.ended is not None:
        return None
    unknown = contact.unknown_of(state, attempt)
    return {
        "to": "Killed",
        "since": time_of(kill.at),
        "cause": kill.cause,
        "by": kill.by,
        "why": kill.why,
        "unreachable": unknown is not None,
    }


# ---- workers, tasks, jobs ----------------------------------------------------------------------


def worker_view(state: ClusterState, worker: Worker) -> View:
    """One worker; see 6.3."""
    attempt = state.attempts[(*worker.key, worker.attempt)]
    node = None if attempt.placed is None else attempt.placed.node
    reasons = [pending_reason(state, attempt)] if attempt.phase == PENDING else []
    return {
        "id": str(worker),
        "task": worker.task,
        "index": worker.index,
        "version": worker.version,
        "phase": worker.phase,
        "attempt": worker.attempt,
        "attempts": worker.attempt,
        "node": node,
        "ip": _ip_of(state, node),
        "unknown": unknown_view(state, attempt),
        "progress": progress_view(attempt),
        "ready": is_ready(state, attempt),
        "pending_reasons": reason_views(reasons),
    }


def is_ready(state: ClusterState, attempt: Attempt) -> bool:
    """Running, and ready where there is a check."""
    if attempt.phase != RUNNING:
        return False
    return attempt.is_ready or state.task_spec(attempt).ready_check is None


def progress_view(attempt: Attempt) -> View | None:
    """The last progress line `done total text`, with rate and estimated end."""
    parts = attempt.progress.split(None, 2)
    if len(parts) < 2:
        return None
    try:
        done, total = float(parts[0]), float(parts[1])
    except ValueError:
        return None
    return {
        "done": done,
        "total": total,
        "text": parts[2] if len(parts) > 2 else "",
        "rate": None,
        "eta_s": None,
    }


def task_view(job: Job, row: TaskRow) -> View:
    phase = task_phase(row)
    counts = [
        f"{count} {name}"
        for name, count in (
            ("pending", row.pending),
            ("running", row.running),
            ("succeeded", row.succeeded),
            ("failed", row.failed),
            ("killed", row.killed),
        )
        if count
    ]
    return {
        "id": f"{job.id}/{row.name}",
        "name": row.name,
        "kind": row.kind,
        "phase": phase,
        "replicas": row.replicas,
        "up": row.running,
        "ready": row.running,
        "succeeded": row.succeeded,
        "failed": row.failed,
        "message": ", ".join(counts),
    }


def workers_of(state: ClusterState, job: Job) -> list[Worker]:
    """All workers of a job, by task and index."""
    return [
        state.workers[(job.id, row.name, index)]
        for row in job.tasks
        for index in range(row.replicas)
    ]


def current_attempts(state: ClusterState, job: Job) -> list[Attempt]:
    """The newest attempt of each worker."""
    return [state.attempts[(*worker.key, worker.attempt)] for worker in workers_of(state, job)]


def job_view(state: ClusterState, job: Job) -> View:
    """One job with its workers; see 6.3."""
    attempts = current_attempts(state, job)
    is_final = job.phase in TERMINAL
    unknown = sum(
        1
        for attempt in attempts
        if attempt.phase == RUNNING and contact.unknown_of(state, attempt) is not None
    )
    reasons = (
        []
        if is_final
        else [pending_reason(state, attempt) for attempt in attempts if attempt.phase == PENDING]
    )
    view: View = {
        "id": job.id,
        "name": job.spec.name,
        "phase": job.phase,
        "cause": _or_none(job.cause) if is_final else None,
        "by": _or_none(job.by) if is_final else None,
        "why": _or_none(job.why) if is_final else None,
        "spec": document_from_job(job.spec),
        "user": job.user,
        "queue": job.spec.queue,
        "priority": job.spec.priority,
        "labels": job.spec.labels,
        "submitted_at": time_of(job.created),
        "started_at": time_of(job.started),
        "ended_at": time_of(job.ended),
        "version": job.version,
        "clone_of": job.clone_of,
        "retry_of": job.retry_of,
        "workflow": None,
        "unknown": unknown,
        "ready": sum(is_ready(state, attempt) for attempt in attempts),
        "replicas": sum(row.replicas for row in job.tasks),
        "tasks": [task_view(job, row) for row in job.tasks],
        "pending_reasons": reason_views(reasons),
        "ending": _job_ending(state, job, attempts),
        **_only_worker_view(attempts),
    }
    view["conditions"] = _conditions(view)
    view["message"] = _message(job, view)
    view["workers"] = [worker_view(state, worker) for worker in workers_of(state, job)]
    return view


def _only_worker_view(attempts: list[Attempt]) -> View:
    """Facts of the newest attempt that are the job's own when it has one worker."""
    only = attempts[0] if len(attempts) == 1 else None
    ended = None if only is None else only.ended
    finish = None if ended is None else ended.finish
    return {
        "exit_code": None if finish is None else finish.exit_code,
        "signal": None if finish is None else finish.signal,
        "adopts": None if only is None else _or_none(only.adopts),
        "accepted": None,
        "exited_before_kill": finish is not None and finish.has_exited_before_kill,
        "frozen_s": 0.0 if finish is None else finish.frozen_ms / 1000,
        "token": None if only is None or only.placed is None else only.placed.token,
        "late_truth": None if only is None else _late_view(only),
        "node": None if only is None or only.placed is None else only.placed.node,
    }


def _job_ending(state: ClusterState, job: Job, attempts: list[Attempt]) -> View | None:
    to = ending_to(job)
    if not to:
        return None
    kill = job.kill
    unreachable = any(
        attempt.placed is not None and contact.unknown_of(state, attempt) is not None
        for attempt in attempts
    )
    return {
        "to": to,
        "since": time_of(job.ending_since),
        "cause": None if kill is None else kill.cause,
        "by": None if kill is None else kill.by,
        "why": None if kill is None else _or_none(kill.why),
        "unreachable": unreachable,
    }


def _conditions(view: View) -> list[str]:
    conditions = []
    if view["unknown"]:
        conditions.append("unknown")
    if view["ending"] is not None:
        conditions.append("unreachable" if view["ending"]["unreachable"] else "ending")
    return conditions


def _message(job: Job, view: View) -> str:
    """One line that sums up the children."""
    if job.phase in TERMINAL:
        if job.phase == SUCCEEDED:
            return "all workers succeeded" if view["replicas"] > 1 else "succeeded"
        decided = f" ({job.decided_by})" if job.decided_by else ""
        return f"{job.cause}{decided}" + (f": {job.why}" if job.why else "")
    if view["ending"] is not None:
        ending = view["ending"]
        what = f"ending as {ending['to']}"
        return what + ("; its node is unreachable" if ending["unreachable"] else "")
    if view["unknown"]:
        return f"{view['unknown']} of {view['replicas']} unknown"
    if view["pending_reasons"]:
        first = view["pending_reasons"][0]
        return f"{first['code']}: {first['message']}"
    return "; ".join(task["message"] for task in view["tasks"])


# ---- nodes, events -----------------------------------------------------------------------------


def node_view(state: ClusterState, node: Node) -> View:
    """One node; `last_heard_s` is the leader's to fill in."""
    usage = state.usage.get(node.name)
    capacity = node.capacity
    mark = contact.node_mark(state, node)
    return {
        "name": node.name,
        "uid": node.uuid,
        "phase": node.phase,
        "offline_reason": _or_none(node.offline_reason) if node.phase != "Online" else None,
        "unschedulable": node.is_unschedulable,
        "unschedulable_reason": _or_none(node.unschedulable_why),
        "last_heard_s": None,
        "recovering": node.phase == "Online" and not contact.is_claimed(state, node),
        "unknown_since": None if mark is None else time_of(mark.since),
        "capacity": {
            "cpu": capacity.cpu_millis / 1000,
            "memory_bytes": capacity.memory_bytes,
            "gpu": capacity.gpu_count,
            "disk_bytes": capacity.disk_bytes,
            "custom": capacity.custom,
        },
        "allocated": {
            "cpu": 0 if usage is None else usage.cpu_millis / 1000,
            "memory_bytes": 0 if usage is None else usage.memory_bytes,
            "gpu": 0 if usage is None else len(usage.gpu_indices),
            "disk_bytes": 0 if usage is None else usage.disk_bytes,
            "custom": {} if usage is None else dict(sorted(usage.custom.items())),
        },
        "labels": {**node.labels, **node.own_labels},
        "addons": {},
        "addresses": list(node.addresses),
        "boot_id": node.boot_id,
        "agent_version": node.agent_version,
        "limits": node.limits,
        "session": node.session,
        "joined_at": time_of(node.joined),
        "attempts": len(state.on_node.get(node.name, ())),
    }


def event_view(event: Event) -> View:
    return {
        "index": event.index,
        "time": rfc3339(event.wall_ms),
        "object": event.object,
        "kind": event.kind,
        "from": _or_none(event.from_phase),
        "to": _or_none(event.to_phase),
        "cause": _or_none(event.cause),
        "by": _or_none(event.by),
        "why": _or_none(event.why),
        "details": event.details,
    }
