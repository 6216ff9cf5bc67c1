"""Phases, the transition matrix and the causes, as data (specification 1.2 and 1.3).

Whatever is missing here is refused by the state machine. docs/states.md is generated from these
tables (`python -m scheduler.core.lifecycle` prints it), and a test keeps the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
KILLED: Final = "Killed"
#: Of jobs and tasks only; never of a worker or an attempt.
STOPPED: Final = "Stopped"

PHASES: Final = (PENDING, RUNNING, SUCCEEDED, FAILED, KILLED)
TERMINAL: Final = frozenset({SUCCEEDED, FAILED, KILLED})
JOB_PHASES: Final = (PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED, KILLED)

#: Budgets an end counts against. `always` is retried and counts nowhere; `never` ends the worker.
TASK: Final = "task"
NODE: Final = "node"
ALWAYS: Final = "always"
NEVER: Final = "never"


@dataclass(frozen=True, slots=True)
class Cause:
    """What one cause means: the phase it ends in, and who pays for a retry."""

    phase: str
    budget: str
    #: May it end an attempt that never ran? Else its history is made to pass through Running.
    is_from_pending: bool = False


CAUSES: Final[dict[str, Cause]] = {
    "exit_zero": Cause(SUCCEEDED, NEVER),
    "accepted_exit": Cause(SUCCEEDED, NEVER),
    "exit_nonzero": Cause(FAILED, TASK),
    "signal": Cause(FAILED, TASK),
    "oom": Cause(FAILED, TASK),
    "timeout": Cause(FAILED, TASK),
    "stalled": Cause(FAILED, TASK),
    "output_check": Cause(FAILED, TASK),
    "launch_error": Cause(FAILED, TASK),
    "launch_failed": Cause(FAILED, NODE),
    "status_lost": Cause(FAILED, NODE),
    "node_disconnected": Cause(FAILED, NODE),
    "node_lost": Cause(FAILED, NODE),
    "node_rebooted": Cause(FAILED, NODE),
    "lease_expired": Cause(FAILED, NODE),
    "user_cancel": Cause(KILLED, NEVER, is_from_pending=True),
    "job_stopped": Cause(KILLED, NEVER, is_from_pending=True),
    "preempted": Cause(KILLED, ALWAYS, is_from_pending=True),
    "resource_overuse": Cause(KILLED, TASK),
    "node_drain": Cause(KILLED, ALWAYS, is_from_pending=True),
    "dependency_failed": Cause(KILLED, NEVER, is_from_pending=True),
    "queue_purged": Cause(KILLED, NEVER, is_from_pending=True),
    "gang_restart": Cause(KILLED, ALWAYS, is_from_pending=True),
    "peer_failed": Cause(KILLED, NEVER, is_from_pending=True),
    "job_completed": Cause(KILLED, NEVER, is_from_pending=True),
    "pending_timeout": Cause(KILLED, NEVER, is_from_pending=True),
    "revoked": Cause(KILLED, ALWAYS, is_from_pending=True),
    "fenced": Cause(KILLED, NEVER),
}

#: Causes a kill request may name: those that decide the target's end for good.
KILL_CAUSES: Final = frozenset(
    {"user_cancel", "dependency_failed", "queue_purged", "pending_timeout", "job_completed"}
)
#: Causes that leave the outcome open to late truth: declared while nobody could look.
DECLARED_LOST: Final = frozenset({"node_disconnected", "node_lost", "revoked"})
#: Causes by which the node, and not the work, is to blame: a retry goes elsewhere if it can.
NODE_BLAMED: Final = frozenset(
    {name for name, cause in CAUSES.items() if cause.budget == NODE} | {"revoked"}
)
#: Ends that were seen by the keeper and that a successor may adopt as late truth.
ADOPTABLE: Final = frozenset(
    {"exit_zero", "accepted_exit", "exit_nonzero", "signal", "oom", "output_check", "launch_error"}
)
#: Ends that a node can report; others are the cluster's to decide. `killed` is an order's end.
NODE_REPORTED: Final = frozenset(
    {name for name, cause in CAUSES.items() if cause.phase != KILLED}
    - {"node_disconnected", "node_lost", "node_rebooted"}
    | {"resource_overuse", "node_drain", "fenced", "killed"}
)
#: How an end can be known (specification 3.7).
EVIDENCE: Final = frozenset(
    {"observed", "replayed", "proven_dead", "declared", "seen_gone", "never_started", "operator"}
)
PROVEN: Final = frozenset({"observed", "replayed"})
#: Offline reasons of a node (specification 1.5).
OFFLINE_REASONS: Final = (
    "never_joined",
    "disconnected",
    "heartbeat_lost",
    "agent_restarting",
    "left",
    "rejected",
)
#: Offline reason -> cause of the unknown overlay; `leader_changed` comes from a takeover.
UNKNOWN_CAUSES: Final = {
    "disconnected": "disconnected",
    "heartbeat_lost": "heartbeat_lost",
    "agent_restarting": "agent_restarting",
}


def is_allowed(phase: str, to: str, cause: str = "") -> bool:
    """Whether the matrix of 1.2 has this transition; `cause` is needed for terminal ones."""
    if to == RUNNING:
        return phase == PENDING
    found = CAUSES.get(cause)
    if found is None or found.phase != to:
        return False
    if phase == RUNNING:
        return True
    return phase == PENDING and found.is_from_pending


def render_states() -> str:
    """The text of docs/states.md."""
    lines = [
        "# States",
        "",
        "Generated from `scheduler/core/lifecycle.py`; do not edit.",
        "",
        "## Attempt",
        "",
        "| from \\ to | " + " | ".join(PHASES[1:]) + " |",
        "| --- |" + " --- |" * 4,
    ]
    for phase in PHASES:
        cells = []
        for to in PHASES[1:]:
            if to == RUNNING:
                cells.append("the agent reports the start" if is_allowed(phase, to) else "–")
                continue
            names = [f"`{name}`" for name in CAUSES if is_allowed(phase, to, name)]
            cells.append(", ".join(names) or "–")
        lines.append(f"| {phase} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "*Unknown* is an overlay of Running and no phase: contact with the node is lost, the",
        "outcome is open, and a deadline says when it will be decided.",
        "",
        "## Causes",
        "",
        "| phase | cause | counted against |",
        "| --- | --- | --- |",
    ]
    budgets = {
        TASK: "task retries",
        NODE: "node retries",
        ALWAYS: "nothing; always retried",
        NEVER: "–",
    }
    for name, cause in CAUSES.items():
        lines.append(f"| {cause.phase} | `{name}` | {budgets[cause.budget]} |")
    lines += [
        "",
        "## Job",
        "",
        "```",
        "create -> Pending -> Running -> Succeeded | Failed | Killed",
        "          Pending | Running -> Stopped -> (resume) -> Pending",
        "          Running -> Pending (retry)",
        "```",
        "",
        "## Node",
        "",
        "`Online`, or `Offline` with one of: "
        + ", ".join(f"`{reason}`" for reason in OFFLINE_REASONS)
        + ".",
        "Beside it: `unschedulable` (cordoned).",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(render_states(), end="")  # noqa: T201 (the generator's output)
