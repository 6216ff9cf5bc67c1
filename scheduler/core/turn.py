"""One entry being applied: the state, the stamp of the entry, and the events it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scheduler.core.records import Attempt, Event, EventLog, Incident, Job, Stamp
from scheduler.core.state import ClusterState

#: Stored events of one object: its first, and its last (specification 1.7).
EVENTS_FIRST: Final = 20
EVENTS_LAST: Final = 180
#: Incidents kept.
INCIDENTS_MAX: Final = 1000


class Turn:
    """Handed to every handler. Lives for one apply."""

    __slots__ = ("actor", "at", "events", "is_placement_due", "state")

    def __init__(self, state: ClusterState, at: Stamp, actor: str) -> None:
        self.state = state
        self.at = at
        #: Who is behind the entry; never empty: every kill has a `by`.
        self.actor = actor or "system"
        self.events: list[Event] = []
        #: Something became placeable, or room became free.
        self.is_placement_due = False

    def emit(self, event: Event) -> None:
        """Tell watchers of an event that follows from its object's record and is not stored."""
        self.events.append(event)

    def tell(self, name: str, kind: str, details: Mapping[str, int | str]) -> None:
        """Tell watchers of something that is not worth storing."""
        self.events.append(_event(self.at, name, kind, details=dict(details)))

    def record(
        self,
        name: str,
        kind: str,
        *,
        from_phase: str = "",
        to_phase: str = "",
        cause: str = "",
        by: str = "",
        why: str = "",
        details: Mapping[str, int | str] | None = None,
        at: Stamp | None = None,
    ) -> None:
        """Tell watchers, and store the event with its object."""
        stamp = at or self.at
        event = Event(
            index=stamp.index,
            log_ms=stamp.log_ms,
            wall_ms=stamp.wall_ms,
            object=name,
            kind=kind,
            from_phase=from_phase,
            to_phase=to_phase,
            cause=cause,
            by=by,
            why=why,
            details=dict(details or {}),
        )
        self.events.append(event)
        table = self.state.event_logs
        table.put(name, appended(table.get(name) or EventLog(object=name), event))

    def report_incident(
        self, kind: str, name: str, node: str, details: Mapping[str, int | str]
    ) -> None:
        """Keep something for an operator to see; the oldest makes room."""
        state = self.state
        number = state.next_incident
        state.next_incident += 1
        incident = Incident(
            number=number, at=self.at, kind=kind, object=name, node=node, details=dict(details)
        )
        state.incidents.put(number, incident)
        if number - INCIDENTS_MAX in state.incidents:
            state.incidents.delete(number - INCIDENTS_MAX)
        self.emit(_event(self.at, name, "incident", why=kind, details=dict(details)))


def appended(log: EventLog, event: Event) -> EventLog:
    """The log with one event more, within its bounds."""
    if len(log.first) < EVENTS_FIRST:
        first, last, dropped = (*log.first, event), log.last, log.dropped
    else:
        first, last, dropped = log.first, (*log.last, event), log.dropped
        if len(last) > EVENTS_LAST:
            last, dropped = last[1:], dropped + 1
    return EventLog(object=log.object, first=first, last=last, dropped=dropped)


def _event(
    at: Stamp,
    name: str,
    kind: str,
    *,
    from_phase: str = "",
    to_phase: str = "",
    cause: str = "",
    by: str = "",
    why: str = "",
    details: dict[str, int | str] | None = None,
) -> Event:
    return Event(
        index=at.index,
        log_ms=at.log_ms,
        wall_ms=at.wall_ms,
        object=name,
        kind=kind,
        from_phase=from_phase,
        to_phase=to_phase,
        cause=cause,
        by=by,
        why=why,
        details=details or {},
    )


# ---- events that follow from records -----------------------------------------------------------


def submitted_event(job: Job) -> Event:
    return _event(
        job.created,
        str(job.id),
        "submitted",
        to_phase="Pending",
        by=f"user:{job.user}" if job.user else "",
        details={"name": job.spec.name} if job.spec.name else None,
    )


def job_started_event(job: Job) -> Event:
    assert job.started is not None
    return _event(job.started, str(job.id), "phase", from_phase="Pending", to_phase="Running")


def job_ended_event(job: Job) -> Event:
    assert job.ended is not None
    return _event(
        job.ended,
        str(job.id),
        "ended",
        from_phase="Pending" if job.started is None else "Running",
        to_phase=job.phase,
        cause=job.cause,
        by=job.by,
        why=job.why,
        details={"decided_by": job.decided_by} if job.decided_by else None,
    )


def created_event(attempt: Attempt) -> Event:
    details: dict[str, int | str] = {}
    if attempt.replaces is not None:
        details["replaces"] = attempt.replaces
    if attempt.not_before_ms > attempt.created.log_ms:
        details["backoff_ms"] = attempt.not_before_ms - attempt.created.log_ms
    return _event(attempt.created, str(attempt), "created", to_phase="Pending", details=details)


def placed_event(attempt: Attempt) -> Event:
    placed = attempt.placed
    assert placed is not None
    details: dict[str, int | str] = {"node": placed.node, "token": placed.token}
    if placed.gpu_indices:
        details["gpu_indices"] = ",".join(map(str, placed.gpu_indices))
    return _event(placed.at, str(attempt), "placed", details=details)


def started_event(attempt: Attempt) -> Event:
    started = attempt.started
    assert started is not None
    details: dict[str, int | str] = {}
    if started.facts.pid is not None:
        details["pid"] = started.facts.pid
    if attempt.placed is not None:
        details["node"] = attempt.placed.node
    return _event(
        started.at,
        str(attempt),
        "started",
        from_phase="Pending",
        to_phase="Running",
        details=details,
    )


def ended_event(attempt: Attempt) -> Event:
    ended = attempt.ended
    assert ended is not None
    details: dict[str, int | str] = {"evidence": ended.evidence}
    finish = ended.finish
    if finish is not None:
        if finish.exit_code is not None:
            details["exit_code"] = finish.exit_code
        if finish.signal is not None:
            details["signal"] = finish.signal
        if finish.detail:
            details["detail"] = finish.detail
    if attempt.adopts:
        details["adopts"] = attempt.adopts
    return _event(
        ended.at,
        str(attempt),
        "ended",
        from_phase="Pending" if attempt.started is None else "Running",
        to_phase=attempt.phase,
        cause=ended.cause,
        by=ended.by,
        why=ended.why,
        details=details,
    )


def attempt_events(attempt: Attempt) -> list[Event]:
    """What the attempt's record alone tells of its history, in order."""
    events = [created_event(attempt)]
    if attempt.placed is not None:
        events.append(placed_event(attempt))
    if attempt.started is not None:
        events.append(started_event(attempt))
    if attempt.ended is not None:
        events.append(ended_event(attempt))
    return events


def job_events(job: Job) -> list[Event]:
    """What the job's record alone tells of its history, in order."""
    events = [submitted_event(job)]
    if job.started is not None:
        events.append(job_started_event(job))
    if job.ended is not None:
        events.append(job_ended_event(job))
    return events
