"""What the leader should tell the agents, derived from the state alone (level-triggered).

Nothing here is stored: a new leader finds the same orders again. Each carries the fencing token.
The runner remembers what it sent in a session and passes it as `sent`, so that an order goes out
once per session; an agent answers a repeated one with what it already did.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.core import contact, fencing
from scheduler.core.lifecycle import PENDING
from scheduler.core.records import Attempt
from scheduler.protocol.messages import Work

if TYPE_CHECKING:
    from scheduler.core.state import ClusterState


@dataclass(frozen=True, slots=True)
class SendStart:
    """Run this attempt."""

    token: str
    attempt: str
    work: Work

    kind: str = "start"


@dataclass(frozen=True, slots=True)
class SendKill:
    """End this attempt's tree."""

    token: str
    attempt: str
    by: str
    why: str
    cause: str
    grace_ms: int
    stop_signal: str

    kind: str = "kill"


@dataclass(frozen=True, slots=True)
class SendAskStatus:
    """Did this order start? Its answer decides an attempt past its start_timeout."""

    token: str
    attempt: str

    kind: str = "ask"


Order = SendStart | SendKill | SendAskStatus


def has_effects(state: ClusterState, node: str) -> bool:
    """Whether the node may have orders to come. O(1)."""
    return bool(state.todo.get(node))


def pending_effects(
    state: ClusterState,
    node: str,
    *,
    now_ms: int | None = None,
    sent: Container[tuple[str, str]] = (),
) -> tuple[Order, ...]:
    """The orders that `node` should have received and that are not among `sent`.

    `sent` holds (kind, token) of what went out in the node's present session. Empty for a node
    whose inventory was not applied under the present leader. Costs what the node has to do.
    """
    record = state.nodes.get(node)
    todo = state.todo.get(node)
    if not todo or record is None or not contact.is_claimed(state, record):
        return ()
    now = state.clock_ms if now_ms is None else max(now_ms, state.clock_ms)
    orders: list[Order] = []
    for key in todo:
        attempt = state.attempts[key]
        order = _order_for(state, attempt, now, sent)
        if order is not None:
            orders.append(order)
    return tuple(orders)


def _order_for(
    state: ClusterState, attempt: Attempt, now_ms: int, sent: Container[tuple[str, str]]
) -> Order | None:
    placed = attempt.placed
    assert placed is not None
    record = state.nodes[placed.node]
    if placed.node_uuid != record.uuid or placed.store_id != record.store_id:
        # Another host or store under the same name: it cannot have this attempt.
        return None
    token = placed.token
    if attempt.ended is not None or attempt.kill is not None:
        return None if ("kill", token) in sent else kill_order(state, attempt)
    if attempt.phase != PENDING:
        return None
    if now_ms >= fencing.start_due_ms(state, attempt):
        return None if ("ask", token) in sent else SendAskStatus(token, str(attempt))
    if ("start", token) in sent:
        return None
    return SendStart(token, str(attempt), work_of(state, attempt))


def next_ask_ms(state: ClusterState, node: str) -> int | None:
    """When the next unconfirmed start of this node is due to be asked for, in log time."""
    due = [
        fencing.start_due_ms(state, attempt)
        for key in state.todo.get(node, ())
        if (attempt := state.attempts[key]).phase == PENDING and attempt.kill is None
    ]
    return min(due, default=None)


def kill_order(state: ClusterState, attempt: Attempt) -> SendKill:
    """The order that ends an attempt: as decided, or because its end is decided already."""
    assert attempt.placed is not None
    spec = state.task_spec(attempt)
    ended = attempt.ended
    if ended is None:
        kill = attempt.kill
        assert kill is not None
        cause, by, why, grace_ms = kill.cause, kill.by, kill.why, spec.grace_ms
    else:
        cause, by = "fenced", ended.by or "system:fencing"
        why = f"{attempt} is {attempt.phase} {ended.cause}"
        grace_ms = 0 if attempt.replaced_by is not None else spec.grace_ms
    return SendKill(
        token=attempt.placed.token,
        attempt=str(attempt),
        by=by,
        why=why,
        cause=cause,
        grace_ms=grace_ms,
        stop_signal=spec.stop_signal,
    )


def work_of(state: ClusterState, attempt: Attempt) -> Work:
    """All that a node needs to run the attempt."""
    job = state.jobs[attempt.job]
    spec = job.spec.tasks[attempt.task]
    placed = attempt.placed
    assert placed is not None
    argv = spec.command if spec.shell is None else (spec.shell,)
    return Work(
        attempt=str(attempt),
        argv=argv,
        is_shell=spec.shell is not None,
        env=spec.env,
        env_mode=spec.env_mode,
        cwd=spec.cwd,
        user=spec.user,
        umask=spec.umask,
        stdin=spec.stdin,
        files=spec.files,
        cpu_millis=spec.resources.cpu_millis,
        memory_bytes=spec.resources.memory_bytes,
        gpu_indices=placed.gpu_indices,
        timeout_ms=spec.timeout_ms,
        stall_timeout_ms=spec.stall_timeout_ms,
        grace_ms=spec.grace_ms,
        stop_signal=spec.stop_signal,
        on_lease_end=fencing.on_lease_end(spec),
        log_limit_bytes=spec.log_limit_bytes,
        accept_exit=tuple(
            sorted(code for code, meaning in spec.exit_codes.items() if meaning == "success")
        ),
        output_nonempty=spec.success.output_nonempty,
        output_matches=spec.success.output_matches,
        check=spec.success.check,
        ready_check=spec.ready_check,
        owner=job.user,
        replicas=spec.replicas,
    )
