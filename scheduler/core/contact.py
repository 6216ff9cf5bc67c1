"""Whether a node is heard, and until when what runs on it stays undecided (specification 1.6, 4 B).

Unknown is derived, never written per attempt: a node's mark, or the first takeover after its last
claim, makes everything on it unknown at once. So NodeOffline and LeaderTookOver cost the same
however many attempts there are, and no later loss can move `since`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.core.records import Attempt, Node, Stamp, Takeover, UnknownMark

if TYPE_CHECKING:
    from scheduler.core.state import ClusterState


@dataclass(frozen=True, slots=True)
class Unknown:
    """The overlay of 1.2 as it is now."""

    cause: str
    since: Stamp
    deadline_ms: int


def first_takeover_after(state: ClusterState, index: int) -> Takeover | None:
    """The first change of leader that the log has behind `index`."""
    takeovers = state.takeovers
    at = bisect_right(takeovers, index, key=lambda takeover: takeover.at.index)
    return takeovers[at] if at < len(takeovers) else None


def node_mark(state: ClusterState, node: Node) -> UnknownMark | None:
    """Why what runs on the node is unknown; None while the node is heard and has claimed it."""
    if node.mark is not None:
        return node.mark
    takeover = _takeover_since_claim(state, node)
    if takeover is None:
        return None
    return UnknownMark(cause="leader_changed", since=takeover.at, window_ms=takeover.lease_ms)


def _takeover_since_claim(state: ClusterState, node: Node) -> Takeover | None:
    if not state.takeovers or node.claimed is None:
        return None
    if node.claimed.index > state.takeovers[-1].at.index:
        return None
    return first_takeover_after(state, node.claimed.index)


def is_claimed(state: ClusterState, node: Node) -> bool:
    """Online, with the inventory of its present session applied under the present leader."""
    return (
        node.phase == "Online"
        and node.claimed_session == node.session
        and node.claimed is not None
        and node.claimed.index > state.takeover_index
    )


def lease_until_ms(state: ClusterState, node: Node) -> int:
    """Log time until which something on the node may run under a lease, as far as is known.

    For a node that is heard, that is a whole lease from now: its last acknowledgement is known to
    the leader alone.
    """
    known = node.lease_until_ms
    if node.mark is not None:
        return known
    takeover = _takeover_since_claim(state, node)
    if takeover is not None:
        return max(known, takeover.at.log_ms + takeover.lease_ms)
    return max(known, state.clock_ms + state.lease_ms())


def node_deadline_ms(state: ClusterState, node: Node) -> int | None:
    """When what is undecided on an unheard node will be decided; None for a heard one."""
    mark = node_mark(state, node)
    if mark is None:
        return None
    return _deadline_ms(state, mark, lease_until_ms(state, node))


def _deadline_ms(state: ClusterState, mark: UnknownMark, lease_ms: int) -> int:
    deadline = max(mark.since.log_ms + mark.window_ms, lease_ms)
    if state.takeovers:
        last = state.takeovers[-1]
        deadline = max(deadline, last.at.log_ms + last.grace_ms)
    return deadline


def unknown_of(state: ClusterState, attempt: Attempt) -> Unknown | None:
    """The overlay of a placed attempt that is not final; None when its node is heard.

    Also given for an assigned, unconfirmed one: its fate hangs on the same deadline (4, B3).
    """
    if attempt.ended is not None or attempt.placed is None:
        return None
    if attempt.mark is not None:
        own = attempt.mark
        return Unknown(own.cause, own.since, _deadline_ms(state, own, own.lease_until_ms))
    node = state.nodes.get(attempt.placed.node)
    if node is None:
        return None
    mark = node_mark(state, node)
    if mark is None:
        return None
    deadline_ms = _deadline_ms(state, mark, lease_until_ms(state, node))
    return Unknown(mark.cause, mark.since, deadline_ms)


def has_undecided(state: ClusterState, name: str) -> bool:
    """Whether an attempt on the node waits for the node's deadline."""
    for key in state.on_node.get(name, ()):
        attempt = state.attempts[key]
        if attempt.ended is None and attempt.mark is None:
            return True
    return False
