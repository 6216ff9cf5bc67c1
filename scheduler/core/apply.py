"""The one door to the replicated state: an entry in, its outcome and events out.

Deterministic and total: the same entries give the same bytes on every replica. An exception is a
bug, and the process stops before it acknowledges anything; a refusal is a value. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from scheduler.core import commands
from scheduler.core.handlers import attempts, config, deadlines, inventories, jobs, nodes
from scheduler.core.records import Event, Stamp
from scheduler.core.state import ClusterState
from scheduler.core.turn import Turn


@dataclass(frozen=True, slots=True)
class Applied:
    """What one entry did."""

    #: One of `core.results`, or a tuple of ReportAnswer for AttemptReports.
    outcome: Any
    events: tuple[Event, ...]
    #: Nodes for which `effects.pending_effects` may have changed.
    touched_nodes: tuple[str, ...]
    #: Something became placeable or room became free: plan again.
    is_placement_due: bool


_HANDLERS: Final[dict[type[commands.Entry], Callable[[Turn, Any], Any]]] = {
    commands.SubmitJobs: jobs.apply_submit_jobs,
    commands.KillRequested: jobs.apply_kill_requested,
    commands.Placed: attempts.apply_placed,
    commands.AttemptReports: attempts.apply_attempt_reports,
    commands.NodeJoined: nodes.apply_node_joined,
    commands.NodeInventory: inventories.apply_node_inventory,
    commands.NodeOffline: nodes.apply_node_offline,
    commands.LeaderTookOver: nodes.apply_leader_took_over,
    commands.DeadlinesPassed: deadlines.apply_deadlines_passed,
    commands.NodeChanged: nodes.apply_node_changed,
    commands.ConfigChanged: config.apply_config_changed,
    commands.ClusterFounded: config.apply_cluster_founded,
    commands.StartUnconfirmed: attempts.apply_start_unconfirmed,
    commands.Audit: config.apply_audit,
}


def apply(state: ClusterState, entry: commands.Entry, index: int) -> Applied:
    """Run one committed entry on the state.

    Log time never goes back: an entry stamped earlier than its predecessor counts at that one's
    time. `index` must be higher than that of every entry before.
    """
    assert index > state.index, (index, state.index)
    state.index = index
    state.clock_ms = max(state.clock_ms, entry.log_time_ms)
    state.wall_ms = entry.wall_ms
    state.reasons_memo.clear()
    turn = Turn(
        state, Stamp(index=index, log_ms=state.clock_ms, wall_ms=entry.wall_ms), entry.actor
    )
    outcome = _HANDLERS[type(entry)](turn, entry)
    state.pending.release(state.clock_ms)
    touched = tuple(state.touched_nodes)
    state.touched_nodes.clear()
    return Applied(outcome, tuple(turn.events), touched, turn.is_placement_due)
