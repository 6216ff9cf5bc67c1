"""Nodes: joining, losing contact, takeovers, and what operators change."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from scheduler.core import contact
from scheduler.core.commands import LeaderTookOver, NodeChanged, NodeJoined, NodeOffline
from scheduler.core.due import UNKNOWN
from scheduler.core.lifecycle import OFFLINE_REASONS, PENDING, RUNNING, UNKNOWN_CAUSES
from scheduler.core.records import Attempt, AttemptKey, Node, Takeover, UnknownMark
from scheduler.core.results import Done, Joined, Rejected
from scheduler.core.transition import end_attempt, release_tree
from scheduler.core.turn import Turn

#: Attempts that one entry may decide; the rest follow by DeadlinesPassed (specification 2.4).
DECIDED_MAX: Final = 500
#: Takeovers remembered; before that, marks are written into the nodes that need them.
TAKEOVERS_MAX: Final = 64


def apply_node_joined(turn: Turn, entry: NodeJoined) -> Joined | Rejected:
    """A new session of a node. It is placed on and ordered after its inventory applied."""
    state = turn.state
    old = state.nodes.get(entry.name)
    if old is not None and entry.is_old_session_heard and _is_duplicate(old, entry):
        state.count("duplicate_agents")
        return Rejected(
            "duplicate_agent",
            f"another agent named {entry.name} is being heard",
            "stop the other agent, or give this one another name",
        )
    node = Node(
        name=entry.name,
        uuid=entry.node_uuid,
        start_number=entry.start_number,
        nonce=entry.nonce,
        store_id=entry.store_id,
        boot_id=entry.boot_id,
        agent_version=entry.agent_version,
        capacity=entry.capacity,
        session=turn.at.index,
        joined=turn.at,
        addresses=entry.addresses,
        labels=entry.labels,
        limits=entry.limits,
        changed=turn.at.index,
    )
    if old is not None:
        node = _carry_over(turn, old, node)
    state.put_node(node)
    turn.tell(f"node:{entry.name}", "joined", {"session": turn.at.index})
    return Joined(turn.at.index)


def _is_duplicate(old: Node, entry: NodeJoined) -> bool:
    """Whether the hello is not from the agent that is being heard, or from one that it was."""
    if entry.node_uuid != old.uuid or entry.start_number < old.start_number:
        return True
    return entry.start_number == old.start_number and entry.nonce != old.nonce


def _carry_over(turn: Turn, old: Node, new: Node) -> Node:
    """What a new session keeps of the old one, until its inventory tells."""
    new = replace(
        new,
        phase=old.phase,
        offline_reason=old.offline_reason,
        is_unschedulable=old.is_unschedulable,
        unschedulable_why=old.unschedulable_why,
        claimed_session=old.claimed_session,
        claimed=old.claimed,
        lease_until_ms=old.lease_until_ms,
        mark=old.mark,
        own_labels=old.own_labels,
        disconnect=old.disconnect,
    )
    if old.uuid == new.uuid and old.store_id == new.store_id:
        return new
    # Another host or store under this name: it can claim nothing of the old one's, so whatever
    # ran there is unheard from here on at the latest.
    mark = contact.node_mark(turn.state, old)
    if mark is None:
        mark = UnknownMark(cause="heartbeat_lost", since=turn.at, window_ms=turn.state.lease_ms())
    lease_ms = contact.lease_until_ms(turn.state, old)
    _mark_attempts(turn, old, replace(mark, lease_until_ms=lease_ms))
    return new


def _mark_attempts(turn: Turn, old: Node, mark: UnknownMark) -> None:
    """Give what the old identity ran its own mark: the node's contact says nothing of it now."""
    state = turn.state
    for key in sorted(state.on_node.get(old.name, ())):
        attempt = state.attempts[key]
        if attempt.ended is None and attempt.mark is None:
            state.put_attempt(replace(attempt, mark=mark))


# ---- losing contact ----------------------------------------------------------------------------


def apply_node_offline(turn: Turn, entry: NodeOffline) -> Done | Rejected:
    """Contact ended. A disconnect decides at once, silence only begins to count (1.6)."""
    state = turn.state
    node = state.nodes.get(entry.node)
    if node is None:
        return Rejected("not_found", f"there is no node {entry.node}", kind="not_found")
    if node.session != entry.session:
        return Rejected("old_session", f"{entry.node} has a newer session {node.session}")
    if entry.reason not in OFFLINE_REASONS:
        return Rejected(
            "bad_reason", f"{entry.reason!r} is no reason to be Offline", kind="invalid"
        )
    mark = contact.node_mark(state, node)
    lease_ms = max(entry.lease_until_ms, _known_lease_ms(turn, node))
    cause = UNKNOWN_CAUSES.get(entry.reason, "heartbeat_lost")
    if mark is None:
        mark = UnknownMark(cause=cause, since=turn.at, window_ms=state.lease_ms())
    else:
        mark = replace(mark, cause=cause)
    was = node.phase
    node = replace(
        node,
        phase="Offline",
        offline_reason=entry.reason,
        mark=mark,
        lease_until_ms=lease_ms,
        claiming=(),
        changed=turn.at.index,
        disconnect=turn.at if entry.reason == "disconnected" else node.disconnect,
    )
    state.put_node(node)
    turn.record(
        f"node:{node.name}", "offline", from_phase=was, to_phase="Offline", why=entry.reason
    )
    if entry.reason == "disconnected":
        continue_disconnect(turn, node.name, DECIDED_MAX)
    elif entry.reason == "left":
        _end_left(turn, node.name)
    return Done()


def _known_lease_ms(turn: Turn, node: Node) -> int:
    """What is known of leases on it without the leader's own word."""
    if contact.node_mark(turn.state, node) is None:
        return node.lease_until_ms
    return contact.lease_until_ms(turn.state, node)


def on_disconnect(turn: Turn, attempt: Attempt) -> str:
    """`fail` or `unknown`, by the task or the cluster's default."""
    own = turn.state.task_spec(attempt).on_disconnect
    return own if own is not None else turn.state.setting_text("on_disconnect")


def continue_disconnect(turn: Turn, name: str, limit: int) -> int:
    """Decide what a disconnect ends, at most `limit` attempts; returns how many it was."""
    state = turn.state
    node = state.nodes[name]
    assert node.disconnect is not None
    before = node.disconnect.index
    done = 0
    for key in sorted(state.on_node.get(name, ())):
        attempt = state.attempts[key]
        assert attempt.placed is not None
        if attempt.ended is not None or attempt.placed.at.index > before:
            continue
        if attempt.mark is not None or on_disconnect(turn, attempt) != "fail":
            continue
        if done == limit:
            return done
        end_by_disconnect(turn, attempt)
        done += 1
    state.put_node(replace(state.nodes[name], disconnect=None))
    return done


def end_by_disconnect(turn: Turn, attempt: Attempt) -> Attempt:
    """The host or its agent is confirmed gone: Failed, or revoked when it never confirmed."""
    assert attempt.placed is not None
    node = attempt.placed.node
    if attempt.phase == RUNNING:
        return end_attempt(
            turn,
            attempt,
            "node_disconnected",
            evidence="declared",
            why=f"the connection of {node} was closed",
            is_tree_gone=False,
        )
    return end_attempt(
        turn,
        attempt,
        "revoked",
        evidence="declared",
        by="system:disconnect",
        why=f"the connection of {node} was closed before the start was confirmed",
        is_tree_gone=False,
    )


def settle_disconnect(turn: Turn, attempt: Attempt) -> Attempt:
    """End an attempt whose disconnect is decided and not written yet: no report comes before it."""
    placed = attempt.placed
    if placed is None or attempt.ended is not None or attempt.mark is not None:
        return attempt
    node = turn.state.nodes.get(placed.node)
    if node is None or node.disconnect is None or placed.at.index > node.disconnect.index:
        return attempt
    if on_disconnect(turn, attempt) != "fail":
        return attempt
    return end_by_disconnect(turn, attempt)


def _end_left(turn: Turn, name: str) -> None:
    """The agent ended everything before it left, and every start that there was is in the log.

    So what it never confirmed never started, and its successor waits for no fence. What is Running
    here has an end that the agent did not report: that proves nothing. Of what an earlier ledger
    under this name had (it has a mark of its own), the agent could say nothing.
    """
    state = turn.state
    for key in sorted(state.on_node.get(name, ())):
        attempt = state.attempts[key]
        if attempt.ended is not None or attempt.mark is not None:
            continue
        is_unstarted = attempt.phase == PENDING
        end_attempt(
            turn,
            attempt,
            "node_drain",
            evidence="never_started" if is_unstarted else "declared",
            by="system:leave",
            why=f"{name} left the cluster",
            is_tree_gone=is_unstarted,
        )


# ---- takeover ----------------------------------------------------------------------------------


def apply_leader_took_over(turn: Turn, entry: LeaderTookOver) -> Done | Rejected:
    """A new leader has heard nobody yet: everything is unknown until it rejoins.

    Written once, whatever runs: see `contact`. No `since` moves.
    """
    state = turn.state
    if entry.term < state.term:
        return Rejected("old_term", f"the cluster is at term {state.term}")
    state.term = entry.term
    state.leader = entry.leader
    takeover = Takeover(
        at=turn.at,
        term=entry.term,
        leader=entry.leader,
        lease_ms=state.lease_ms(),
        grace_ms=state.setting_ms("rejoin_grace"),
    )
    state.takeovers = (*state.takeovers, takeover)
    if len(state.takeovers) > TAKEOVERS_MAX:
        _write_marks(turn)
    for name in state.node_names:
        state.due.note(UNKNOWN, name)
    turn.record("cluster", "leader", details={"term": entry.term, "leader": entry.leader})
    return Done()


def _write_marks(turn: Turn) -> None:
    """Forget the older half of the takeovers; nodes that hang on one get it as their own mark."""
    state = turn.state
    keep_from = state.takeovers[TAKEOVERS_MAX // 2].at.index
    for name in state.node_names:
        node = state.nodes[name]
        if node.mark is not None or node.claimed is None:
            continue
        first = contact.first_takeover_after(state, node.claimed.index)
        if first is not None and first.at.index < keep_from:
            mark = contact.node_mark(state, node)
            lease_ms = contact.lease_until_ms(state, node)
            state.put_node(replace(node, mark=mark, lease_until_ms=lease_ms))
    state.takeovers = tuple(t for t in state.takeovers if t.at.index >= keep_from)


# ---- operators ---------------------------------------------------------------------------------


def apply_node_changed(turn: Turn, entry: NodeChanged) -> Done | Rejected:
    """Cordon, uncordon, label or remove a node."""
    state = turn.state
    node = state.nodes.get(entry.node)
    if node is None:
        return Rejected("not_found", f"there is no node {entry.node}", kind="not_found")
    if entry.is_removed:
        return _remove(turn, node, entry)
    if entry.unschedulable is not None and entry.unschedulable != node.is_unschedulable:
        node = replace(
            node,
            is_unschedulable=entry.unschedulable,
            unschedulable_why=entry.why if entry.unschedulable else "",
        )
        kind = "cordoned" if entry.unschedulable else "uncordoned"
        turn.record(f"node:{node.name}", kind, by=turn.actor, why=entry.why)
    if entry.labels is not None:
        node = replace(node, own_labels=dict(sorted(entry.labels.items())))
        turn.record(f"node:{node.name}", "labelled", by=turn.actor, why=entry.why)
    state.put_node(replace(node, changed=turn.at.index))
    turn.is_placement_due = True
    return Done()


def _remove(turn: Turn, node: Node, entry: NodeChanged) -> Done | Rejected:
    state = turn.state
    keys = sorted(state.on_node.get(node.name, ()))
    if not entry.is_dead:
        if node.phase == "Online":
            return Rejected(
                "node_online", f"{node.name} is Online", "stop its agent first, or drain it"
            )
        if keys:
            return Rejected(
                "node_busy",
                f"{len(keys)} attempts may still run on {node.name}",
                "wait for their end, or give your word with --dead that the host is gone",
            )
    for key in keys:
        _release_dead(turn, key, entry)
    state.delete_node(node.name)
    why = entry.why or ("declared dead" if entry.is_dead else "")
    turn.record(f"node:{node.name}", "removed", by=turn.actor, why=why)
    turn.is_placement_due = True
    return Done()


def _release_dead(turn: Turn, key: AttemptKey, entry: NodeChanged) -> None:
    """An operator's word that the host is gone for good: it releases fences and places."""
    attempt = turn.state.attempts[key]
    if attempt.ended is None:
        attempt = end_attempt(
            turn,
            attempt,
            "node_lost" if attempt.phase == RUNNING else "revoked",
            evidence="operator",
            by=turn.actor,
            why=f"{entry.node} was declared dead" + (f": {entry.why}" if entry.why else ""),
        )
    if attempt.ended is not None:
        release_tree(turn, attempt)
