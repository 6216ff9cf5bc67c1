"""The core behind replication's `StateMachine`, and what the edge asks of the state.

The only place that applies entries. Everything else of the controller reads the state through
here, on the event loop, between two applies.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from replication.interface import SnapshotView
from replication.snapshot import Prepared
from scheduler.controller.metrics import Metrics
from scheduler.controller.watch import EventHub
from scheduler.core.apply import Applied, apply
from scheduler.core.commands import Placement, decode_entry
from scheduler.core.placement import plan_placement
from scheduler.core.records import Node
from scheduler.core.results import Rejected
from scheduler.core.snapshot import restore_state, snapshot_chunks
from scheduler.core.state import ClusterState, StateView

#: Called after each applied entry with what it did.
AppliedCallback = Callable[[Applied], None]

ONLINE: Final = "Online"


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No collections while a state is read: they would walk it again and again, in vain.

    Afterwards it counts as permanent, as does what a start leaves behind.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


class ClusterMachine:
    """See the module's head. Event loop only, except `prepare_restore` and a view's chunks."""

    def __init__(self, hub: EventHub, metrics: Metrics) -> None:
        self.state = ClusterState()
        self._hub = hub
        self._metrics = metrics
        self._callbacks: list[AppliedCallback] = []
        self._applied_index = 0
        self._refusal: Exception | None = None

    # ---- replication.interface.StateMachine ----------------------------------------------------

    def apply(self, index: int, term: int, command: bytes) -> object:
        """Apply one entry; its proposer is told the outcome. Raises for an unknown entry."""
        del term
        if self._refusal is not None:
            raise self._refusal
        entry = decode_entry(command)
        applied = apply(self.state, entry, index)
        self._applied_index = index
        self._count(type(entry).__name__, applied.outcome)
        if applied.events:
            self._hub.publish(index, applied.events)
            self._count_transitions(applied)
        for callback in self._callbacks:
            callback(applied)
        return applied.outcome

    def snapshot_view(self) -> SnapshotView:
        return _View(self.state.view())

    def restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> None:
        self.prepare_restore(chunks, index=index, term=term).adopt()

    def prepare_restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> Prepared:
        """Read a snapshot's state beside the present one. Any thread; raises ValueError."""
        del term
        with _collector_paused():
            state = restore_state(chunks)

        def adopt() -> Callable[[], None]:
            old, self.state = self.state, state
            self._applied_index = index
            self._hub.restart(index)
            return old.dismantle

        return Prepared(adopt, state.dismantle)

    def refuse_all(self, error: Exception) -> None:
        """Let the next apply raise `error`: this state is wrong, and nothing of it may be told."""
        self._refusal = error

    # ---- for the leader's duties ---------------------------------------------------------------

    def on_applied(self, callback: AppliedCallback) -> None:
        """Call back after each applied entry."""
        self._callbacks.append(callback)

    def forget_applied(self, callback: AppliedCallback) -> None:
        """Stop calling back."""
        self._callbacks.remove(callback)

    def plan(self, limit: int, *, now_ms: int) -> tuple[Placement, ...]:
        """What to place next at log time `now_ms`, at most `limit`."""
        return plan_placement(self.state, limit, now_ms=now_ms)

    def next_ready_ms(self) -> int | None:
        """Log time at which the next waiting attempt can be placed; None: none waits for a time."""
        return self.state.pending.next_ready_ms()

    def next_due_ms(self) -> int | None:
        """Log time at which the next deadline passes; None: none is known."""
        return self.state.due.next_ms()

    # ---- facts ---------------------------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        """Index of the newest applied command."""
        return self._applied_index

    @property
    def clock_ms(self) -> int:
        """Log time of the newest entry."""
        return self.state.clock_ms

    @property
    def is_founded(self) -> bool:
        return bool(self.state.cluster_id)

    @property
    def cluster_id(self) -> str:
        return self.state.cluster_id

    @property
    def incarnation(self) -> str:
        return self.state.incarnation

    def setting_ms(self, name: str) -> int:
        """A duration or number among the cluster's settings."""
        return self.state.setting_ms(name)

    def digest(self) -> str:
        """Of the whole state; equal on all members at equal indexes."""
        return self.state.digest()

    def node(self, name: str) -> Node | None:
        return self.state.nodes.get(name)

    def online_nodes(self) -> Iterator[str]:
        """Names of the nodes that are Online in the state."""
        for name in self.state.node_names:
            if self.state.nodes[name].phase == ONLINE:
                yield name

    def knows_token(self, token: str) -> bool:
        """Whether a report of `token` would find its attempt, or what is left of it."""
        return token in self.state.tokens or token in self.state.tombstones

    def registry_room(self, node: str) -> int:
        """Reports of unknown attempts that can still be registered for `node` (4, A5)."""
        state = self.state
        per_node = state.setting_ms("unknown_report_max_per_node")
        total = state.setting_ms("unknown_report_max")
        room = min(per_node - state.registry_by_node.get(node, 0), total - state.registry_size)
        return max(0, room)

    def live_tokens(self, node: str) -> list[str]:
        """Tokens of all that the state believes to be on `node`: what its digest is over."""
        state = self.state
        tokens = []
        for key in state.on_node.get(node, ()):
            placed = state.attempts[key].placed
            if placed is not None:
                tokens.append(placed.token)
        if len(state.orphans):
            tokens += [one.token for one in state.orphans.sorted_rows() if one.node == node]
        return tokens

    def not_renewed(self, node: str) -> tuple[str, ...]:
        """Tokens on `node` whose leases run out: they are final, and their tree may still live."""
        state = self.state
        tokens = []
        for key in state.on_node.get(node, ()):
            attempt = state.attempts[key]
            if attempt.ended is not None and attempt.placed is not None:
                tokens.append(attempt.placed.token)
        return tuple(tokens)

    def _count_transitions(self, applied: Applied) -> None:
        for event in applied.events:
            if event.to_phase:
                name = event.object
                what = "attempt" if "#" in name else name.partition(":")[0]
                if what.isdigit():
                    what = "job"
                self._metrics.transitions.add(what, event.to_phase, event.cause)

    def _count(self, kind: str, outcome: object) -> None:
        self._metrics.entries.add(kind)
        if isinstance(outcome, Rejected):
            self._metrics.rejections.add(outcome.code)


class _View:
    def __init__(self, view: StateView) -> None:
        self._view = view

    def chunks(self) -> Iterator[bytes]:
        return snapshot_chunks(self._view)
