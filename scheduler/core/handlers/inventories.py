"""A rejoin: the whole inventory of a node, item by item, and what it does not have (3.5, 4 B4)."""

from __future__ import annotations

from msgspec.structs import replace

from scheduler.core import contact, placement, registry
from scheduler.core.commands import NodeInventory, Placement
from scheduler.core.handlers import attempts, nodes
from scheduler.core.lifecycle import PENDING, RUNNING
from scheduler.core.records import Attempt, Node, Orphan, UnknownMark
from scheduler.core.results import Rejected, Rejoined
from scheduler.core.transition import end_attempt, release_tree
from scheduler.core.turn import Turn
from scheduler.protocol.ids import BadId, Target, parse_token
from scheduler.protocol.messages import Report, Verdict


def apply_node_inventory(turn: Turn, entry: NodeInventory) -> Rejoined | Rejected:
    """One verdict per item; with the last part the node is Online and all it has is decided."""
    state = turn.state
    node = state.nodes.get(entry.node)
    if node is None or node.uuid != entry.node_uuid:
        return Rejected("not_joined", f"{entry.node} has not joined", "send a hello first")
    if node.session != entry.session:
        return Rejected("old_session", f"{entry.node} has a newer session {node.session}")
    verdicts = tuple(_judge(turn, node.name, entry, item) for item in entry.items)
    claiming = (*node.claiming, *(item.token for item in entry.items))
    if not entry.is_last:
        state.put_node(replace(state.nodes[node.name], claiming=claiming))
        return Rejoined(verdicts)
    _decide_missing(turn, node.name, frozenset(claiming))
    _drop_orphans(turn, node.name, frozenset(claiming))
    _go_online(turn, node.name, entry)
    return Rejoined(verdicts)


def _go_online(turn: Turn, name: str, entry: NodeInventory) -> None:
    state = turn.state
    node = state.nodes[name]
    was = node.phase
    state.put_node(
        replace(
            node,
            phase="Online",
            offline_reason="",
            mark=None,
            disconnect=None,
            claiming=(),
            claimed_session=node.session,
            claimed=turn.at,
            lease_until_ms=max(node.lease_until_ms, entry.lease_until_ms),
            changed=turn.at.index,
        )
    )
    if was != "Online":
        turn.record(f"node:{name}", "online", from_phase=was, to_phase="Online")
    turn.is_placement_due = True


# ---- what the node has -------------------------------------------------------------------------


def _judge(turn: Turn, name: str, entry: NodeInventory, item: Report) -> Verdict:
    state = turn.state
    attempt = state.attempt_of_token(item.token)
    if attempt is None:
        return _judge_stranger(turn, name, entry, item)
    placed = attempt.placed
    assert placed is not None
    if placed.node != name or placed.node_uuid != entry.node_uuid:
        attempts.count_bogus(turn, name)
        return Verdict(token=item.token, verdict="disowned", reason="placed on another node")
    attempt = nodes.settle_disconnect(turn, attempt)
    if item.kind in ("started", "progress", "ready"):
        return _judge_running(turn, attempt, item)
    if item.kind == "not_started":
        # An order of an earlier session, void now: what never began is decided like what the node
        # does not have, and keeps its place when nothing else was decided.
        _decide_one_missing(turn, state.nodes[name], attempt)
        return Verdict(token=item.token, verdict="forget")
    attempts.apply_report(turn, attempt, item)
    return Verdict(token=item.token, verdict="acknowledged")


def _judge_running(turn: Turn, attempt: Attempt, item: Report) -> Verdict:
    state = turn.state
    attempts.apply_report(turn, attempt, item)
    attempt = state.attempts[attempt.key]
    grace_ms = state.task_spec(attempt).grace_ms
    if attempt.ended is not None:
        return Verdict(
            token=item.token,
            verdict="kill",
            reason=f"{attempt} is {attempt.phase} {attempt.ended.cause}",
            cause="fenced",
            grace_ms=0 if attempt.replaced_by is not None else grace_ms,
        )
    _note_claim(turn, attempt)
    if attempt.kill is not None:
        return Verdict(
            token=item.token,
            verdict="kill",
            reason=attempt.kill.why,
            cause=attempt.kill.cause,
            grace_ms=grace_ms,
        )
    return Verdict(token=item.token, verdict="keep")


def _note_claim(turn: Turn, attempt: Attempt) -> None:
    """Write the unknown period, which was derived, into the attempt's history."""
    unknown = contact.unknown_of(turn.state, attempt)
    if unknown is None:
        return
    if attempt.mark is not None:
        turn.state.put_attempt(replace(attempt, mark=None))
    name = str(attempt)
    turn.record(name, "unknown", cause=unknown.cause, at=unknown.since)
    turn.record(name, "claimed", details={"unknown_ms": turn.at.log_ms - unknown.since.log_ms})


def _judge_stranger(turn: Turn, name: str, entry: NodeInventory, item: Report) -> Verdict:
    """An item that no attempt is known for: collected, not materialised yet, or an orphan."""
    state = turn.state
    stone = state.tombstones.get(item.token)
    if stone is not None:
        answer = attempts.take_report(turn, name, entry.node_uuid, item)
        if answer == attempts.WRONG_NODE:
            return Verdict(token=item.token, verdict="disowned", reason="placed on another node")
        if item.kind == "finished":
            return Verdict(token=item.token, verdict="acknowledged")
        reason = f"{stone.attempt} was {stone.phase}"
        return Verdict(token=item.token, verdict="kill", reason=reason, cause="fenced")
    if item.kind == "started" and item.start is not None:
        return _judge_unknown_running(turn, name, item)
    if item.kind == "finished" and registry.was_expired(state, item.token, name):
        return Verdict(token=item.token, verdict="disowned", reason="nobody asked for it in time")
    if registry.register(turn, name, item):
        return Verdict(token=item.token, verdict="acknowledged")
    return Verdict(token=item.token, verdict="registry_full")


def _judge_unknown_running(turn: Turn, name: str, item: Report) -> Verdict:
    assert item.start is not None
    state = turn.state
    attempt = _materialisable(turn, item)
    if attempt is None:
        orphan = state.orphans.get(item.token)
        if orphan is None or orphan.node != name:
            state.orphans.put(
                item.token,
                Orphan(
                    token=item.token,
                    node=name,
                    worker=item.start.worker,
                    since=turn.at,
                    start=item.start,
                ),
            )
            turn.record(f"node:{name}", "orphan", details={"token": item.token})
        return Verdict(token=item.token, verdict="orphan", reason="no attempt is known for it")
    if attempt.ended is not None or attempt.placed is not None:
        why = f"{attempt} of its worker is not decided"
        return Verdict(token=item.token, verdict="hold", reason=why)
    node = state.nodes[name]
    lacking = placement.lacking_for(state, node, attempt)
    if lacking:
        return Verdict(token=item.token, verdict="hold", reason=f"{name} has no room: {lacking}")
    needs = state.task_spec(attempt).resources
    usage = state.usage.get(name)
    free = (
        tuple(range(node.capacity.gpu_count)) if usage is None else usage.free_gpus(node.capacity)
    )
    choice = Placement(attempt=str(attempt), node=name, gpu_indices=free[: needs.gpu])
    attempts.place(turn, attempt, choice, item.token)
    placed = state.attempt_of_token(item.token)
    assert placed is not None
    if placed.phase == PENDING:
        attempts.apply_report(turn, placed, item)
    turn.record(str(attempt), "materialised", details={"token": item.token})
    return Verdict(token=item.token, verdict="materialised")


def _materialisable(turn: Turn, item: Report) -> Attempt | None:
    """The worker's newest attempt, when a running token of this cluster may belong to it."""
    state = turn.state
    assert item.start is not None
    try:
        token = parse_token(item.token)
        target = Target.parse(item.start.worker)
    except BadId:
        return None
    # Only something placed before a restore can be unknown here and still be this cluster's.
    if token[:8] != state.incarnation[:8] or token[:12] >= state.incarnation:
        return None
    if target.task is None or target.index is None:
        return None
    worker = state.workers.get((target.job, target.task, target.index))
    if worker is None:
        return None
    attempt = state.attempts[(*worker.key, worker.attempt)]
    return None if attempt.ended is not None else attempt


# ---- what it does not have ---------------------------------------------------------------------


def _decide_missing(turn: Turn, name: str, items: frozenset[str]) -> None:
    """Attempts of this node that its inventory lacks: lost, rebooted, or never started."""
    state = turn.state
    node = state.nodes[name]
    # A second inventory of one session (anti-entropy) crosses orders and reports on their way:
    # what was placed a moment ago is left to the next one.
    is_again = node.claimed_session == node.session
    fresh_ms = turn.at.log_ms - state.setting_ms("heartbeat_timeout")
    for key in sorted(state.on_node.get(name, ())):
        attempt = state.attempts[key]
        placed = attempt.placed
        assert placed is not None
        if placed.token in items or (is_again and placed.at.log_ms > fresh_ms):
            continue
        _decide_one_missing(turn, node, nodes.settle_disconnect(turn, attempt))


def _decide_one_missing(turn: Turn, node: Node, attempt: Attempt) -> None:
    placed = attempt.placed
    assert placed is not None
    if placed.node_uuid != node.uuid:
        return  # Another host under the same name proves nothing.
    is_rebooted = placed.boot_id != node.boot_id
    is_same_store = placed.store_id == node.store_id
    if not is_rebooted and not is_same_store:
        _mark_lost_store(turn, node, attempt)
        return
    if attempt.ended is not None:
        release_tree(turn, attempt)
    elif attempt.phase == RUNNING:
        cause = "node_rebooted" if is_rebooted else "status_lost"
        evidence = "proven_dead" if is_rebooted else "seen_gone"
        why = f"{node.name} came back " + (
            "with another boot id" if is_rebooted else "without a trace of it"
        )
        end_attempt(turn, attempt, cause, evidence=evidence, why=why)
    elif attempt.kill is not None:
        end_attempt(turn, attempt, attempt.kill.cause, evidence="never_started")
    elif not is_same_store:
        end_attempt(
            turn,
            attempt,
            "node_rebooted",
            evidence="proven_dead",
            why=f"{node.name} came back with another boot id and store",
        )
    # Else it provably never began: it keeps its place, and its order is due again.


def _mark_lost_store(turn: Turn, node: Node, attempt: Attempt) -> None:
    """The journal is gone and the host was not rebooted: it may live, nobody can tell."""
    if attempt.ended is not None or attempt.mark is not None:
        return
    state = turn.state
    mark = contact.node_mark(state, node)
    if mark is None:
        mark = UnknownMark(cause="heartbeat_lost", since=turn.at, window_ms=state.lease_ms())
    lease_ms = contact.lease_until_ms(state, node)
    state.put_attempt(replace(attempt, mark=replace(mark, lease_until_ms=lease_ms)))


def _drop_orphans(turn: Turn, name: str, items: frozenset[str]) -> None:
    """Orphans of this node that ended or were taken."""
    state = turn.state
    for orphan in list(state.orphans.sorted_rows()):
        if orphan.node != name:
            continue
        if orphan.token not in items or orphan.token in state.tokens:
            state.orphans.delete(orphan.token)
