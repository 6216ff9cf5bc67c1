"""Reports that came before their attempt (specification 4, A1-A5). Touched by apply only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from scheduler.core.records import RegisteredReport, RegistryQueue
from scheduler.core.turn import Turn
from scheduler.protocol.messages import Report

if TYPE_CHECKING:
    from scheduler.core.state import ClusterState

#: Incident of a finish that nobody ever asked for.
EXPIRED: Final = "expired_finish"


def has_room(state: ClusterState, node: str) -> bool:
    """Whether one more report of `node` may be registered."""
    return state.registry_size < state.setting_ms(
        "unknown_report_max"
    ) and state.registry_by_node.get(node, 0) < state.setting_ms("unknown_report_max_per_node")


def register(turn: Turn, node: str, report: Report) -> bool:
    """Keep a report whose attempt is not in the state. False: the registry is full.

    The same report again is taken once.
    """
    state = turn.state
    key = (report.token, node)
    queue = state.registry.get(key)
    if queue is not None and any(_is_same(kept.report, report) for kept in queue.reports):
        return True
    if not has_room(state, node):
        state.count("registry_refused")
        return False
    kept = RegisteredReport(report=report, at=turn.at)
    if queue is None:
        queue = RegistryQueue(token=report.token, node=node, reports=(kept,))
    else:
        queue = replace(queue, reports=(*queue.reports, kept))
    state.put_registry(queue)
    state.count("reports_queued")
    details = {"token": report.token, "report": report.kind}
    turn.tell(f"node:{node}", "report_queued", details)
    return True


def _is_same(left: Report, right: Report) -> bool:
    if left.kind != right.kind:
        return False
    return left.kind != "progress" or left.text == right.text


def take(turn: Turn, token: str, node: str) -> tuple[Report, ...]:
    """The reports of an attempt that exists from now on, start before finish.

    Those of other nodes are dropped and counted: tokens can be guessed.
    """
    state = turn.state
    taken: tuple[Report, ...] = ()
    for other in sorted(state.registry_nodes.get(token, ())):
        queue = state.registry[(token, other)]
        state.delete_registry(queue)
        if other == node:
            taken = tuple(kept.report for kept in queue.reports)
        else:
            state.count("bogus_reports", len(queue.reports))
            state.count(f"bogus_reports:{other}", len(queue.reports))
    order = {"started": 0, "ready": 1, "progress": 1}
    return tuple(sorted(taken, key=lambda report: order.get(report.kind, 2)))


def expire(turn: Turn, key: tuple[str, str]) -> None:
    """Nobody asked for these within unknown_report_ttl: finishes become incidents."""
    state = turn.state
    queue = state.registry[key]
    state.delete_registry(queue)
    state.count("registry_expired", len(queue.reports))
    for kept in queue.reports:
        finish = kept.report.finish
        if finish is None:
            continue
        details: dict[str, int | str] = {"cause": finish.cause, "received_index": kept.at.index}
        if finish.exit_code is not None:
            details["exit_code"] = finish.exit_code
        turn.report_incident(EXPIRED, queue.token, queue.node, details)


def was_expired(state: ClusterState, token: str, node: str) -> bool:
    """Whether a finish of this token expired and is still among the incidents."""
    return any(
        incident.kind == EXPIRED and incident.object == token and incident.node == node
        for incident in state.incidents.sorted_rows()
    )
