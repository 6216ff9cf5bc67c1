"""Which pending attempt goes where: planned by the leader, verified again in apply (5.1).

A pass merges the groups of `PendingIndex` by priority and age. A shape that fits nowhere leaves the
merge, so a pass costs O(shapes × nodes + placements), never O(pending × nodes). Every answer to
"why is it pending?" comes from the same predicates.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from scheduler.core import contact, fencing
from scheduler.core.commands import Placement
from scheduler.core.pending import Shape, make_shape
from scheduler.core.records import Attempt, AttemptKey, Node, Worker
from scheduler.core.usage import Usage, lacks
from scheduler.protocol.messages import Capacity
from scheduler.protocol.spec import JobSpec, Resources, TaskSpec

if TYPE_CHECKING:
    from scheduler.core.state import ClusterState

#: Placements of one pass: what one entry may touch (specification 2.4).
PLACEMENTS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is pending."""

    code: str
    message: str


def shape_of_spec(spec: JobSpec, task: TaskSpec) -> Shape:
    """The shape of a task's first attempt."""
    return make_shape(task.resources, priority=spec.priority, node=spec.node or "", avoid="")


# ---- planning ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Room:
    """What is left of one node during a pass."""

    node: Node
    cpu_millis: int
    memory_bytes: int
    disk_bytes: int
    gpus: list[int]
    custom: dict[str, int] = field(default_factory=dict)

    def fits(self, shape: Shape) -> bool:
        return (
            shape.cpu_millis <= self.cpu_millis
            and shape.memory_bytes <= self.memory_bytes
            and shape.gpu <= len(self.gpus)
            and (not shape.disk_bytes or shape.disk_bytes <= self.disk_bytes)
            and all(amount <= self.custom.get(name, 0) for name, amount in shape.custom)
        )

    def take(self, shape: Shape) -> tuple[int, ...]:
        self.cpu_millis -= shape.cpu_millis
        self.memory_bytes -= shape.memory_bytes
        self.disk_bytes -= shape.disk_bytes
        for name, amount in shape.custom:
            self.custom[name] -= amount
        taken = tuple(self.gpus[: shape.gpu])
        del self.gpus[: shape.gpu]
        return taken


def _room_of(node: Node, usage: Usage | None) -> _Room:
    used = usage or Usage()
    capacity = node.capacity
    return _Room(
        node,
        capacity.cpu_millis - used.cpu_millis,
        capacity.memory_bytes - used.memory_bytes,
        capacity.disk_bytes - used.disk_bytes,
        list(used.free_gpus(capacity)),
        {name: total - used.custom.get(name, 0) for name, total in capacity.custom.items()},
    )


class _Rooms:
    """The nodes of a pass, the one with most free cpu first."""

    def __init__(self, state: ClusterState) -> None:
        self.by_name: dict[str, _Room] = {}
        for name in state.node_names:
            node = state.nodes[name]
            if not node.is_unschedulable and contact.is_claimed(state, node):
                self.by_name[name] = _room_of(node, state.usage.get(name))
        self._heap = [(-room.cpu_millis, name) for name, room in self.by_name.items()]
        heapq.heapify(self._heap)

    def choose(self, shape: Shape) -> _Room | None:
        """The room with most free cpu that the shape fits in; None: it fits nowhere."""
        if shape.node:
            room = self.by_name.get(shape.node)
            return room if room is not None and room.fits(shape) else None
        aside: list[tuple[int, str]] = []
        found: _Room | None = None
        while self._heap:
            free, name = self._heap[0]
            room = self.by_name[name]
            if free != -room.cpu_millis:
                heapq.heapreplace(self._heap, (-room.cpu_millis, name))
                continue
            if room.cpu_millis < shape.cpu_millis:
                break
            if name != shape.avoid and room.fits(shape):
                found = room
                break
            aside.append(heapq.heappop(self._heap))
        for item in aside:
            heapq.heappush(self._heap, item)
        return found if found is not None else self._avoided(shape)

    def _avoided(self, shape: Shape) -> _Room | None:
        """The node to keep off, if it is the only one that could ever do it."""
        room = self.by_name.get(shape.avoid)
        if room is None or not room.fits(shape):
            return None
        others = (r.node.capacity for name, r in self.by_name.items() if name != shape.avoid)
        return None if any(_can_ever(shape, capacity) for capacity in others) else room


def plan_placement(
    state: ClusterState, limit: int = PLACEMENTS_MAX, *, now_ms: int | None = None
) -> tuple[Placement, ...]:
    """Who should be placed where now: highest priority first, then the oldest job.

    `now_ms` is the leader's log time (default: that of the newest entry); what waits for a backoff
    or a fence counts from then. Changes no replicated state. Event loop only.
    """
    state.pending.release(state.clock_ms if now_ms is None else max(now_ms, state.clock_ms))
    groups = state.pending.groups
    if not groups:
        return ()
    rooms = _Rooms(state)
    if not rooms.by_name:
        return ()
    heads: list[tuple[int, AttemptKey, int, Shape]] = []
    for shape, queue in groups.items():
        key, position = queue.nth(0)
        if key is not None:
            heads.append((shape.rank, key, position, shape))
    heapq.heapify(heads)
    plan: list[Placement] = []
    while heads and len(plan) < limit:
        _, key, position, shape = heads[0]
        room = rooms.choose(shape)
        if room is None:
            heapq.heappop(heads)
            continue
        plan.append(
            Placement(
                attempt=f"{key[0]}/{key[1]}/{key[2]}#{key[3]}",
                node=room.node.name,
                gpu_indices=room.take(shape),
            )
        )
        following, position = groups[shape].nth(position)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (shape.rank, following, position, shape))
    return tuple(plan)


# ---- verification, at apply --------------------------------------------------------------------


def refusal(state: ClusterState, attempt: Attempt | None, placement: Placement) -> str:
    """Why this placement no longer holds; empty when it does."""
    if attempt is None:
        return "no_such_attempt"
    if attempt.ended is not None or attempt.placed is not None or attempt.kill is not None:
        return "not_waiting"
    worker = state.workers[attempt.worker]
    if worker.attempt != attempt.number:
        return "superseded"
    ready_ms = fencing.ready_ms(state, attempt, worker)
    if ready_ms is None or ready_ms > state.clock_ms:
        return "not_ready"
    node = state.nodes.get(placement.node)
    if node is None or not contact.is_claimed(state, node):
        return "node_not_online"
    if node.is_unschedulable:
        return "node_unschedulable"
    job = state.jobs[attempt.job]
    if job.spec.node is not None and job.spec.node != node.name:
        return "wrong_node"
    return _lacking(state, node, job.spec.tasks[attempt.task].resources, placement)


def lacking_for(state: ClusterState, node: Node, attempt: Attempt) -> str:
    """The resource of the node that the attempt does not fit in; empty when it fits."""
    needs = state.task_spec(attempt).resources
    return lacks(needs, node.capacity, state.usage.get(node.name))


def _lacking(state: ClusterState, node: Node, needs: Resources, placement: Placement) -> str:
    usage = state.usage.get(node.name)
    lacking = lacks(needs, node.capacity, usage)
    if lacking:
        return f"lacks_{lacking}"
    indices = placement.gpu_indices
    if len(set(indices)) != needs.gpu or len(indices) != needs.gpu:
        return "wrong_gpus"
    taken = set() if usage is None else usage.gpu_indices
    if any(index in taken or not 0 <= index < node.capacity.gpu_count for index in indices):
        return "gpu_taken"
    return ""


# ---- why is it pending? ------------------------------------------------------------------------


def _can_ever(shape: Shape, capacity: Capacity) -> bool:
    return not _what_lacks(shape, capacity)


def _what_lacks(shape: Shape, capacity: Capacity) -> str:
    if shape.cpu_millis > capacity.cpu_millis:
        return "cpu"
    if shape.memory_bytes > capacity.memory_bytes:
        return "memory"
    if shape.gpu > capacity.gpu_count:
        return "gpu"
    if shape.disk_bytes > capacity.disk_bytes:
        return "disk"
    for name, amount in shape.custom:
        if amount > capacity.custom.get(name, 0):
            return name
    return ""


def _amount(name: str, value: int) -> str:
    if name == "cpu":
        whole, rest = divmod(value, 1000)
        return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)
    return f"{value} bytes" if name in ("memory", "disk") else str(value)


def _asked(name: str, shape: Shape) -> int:
    amounts = {
        "cpu": shape.cpu_millis,
        "memory": shape.memory_bytes,
        "gpu": shape.gpu,
        "disk": shape.disk_bytes,
    }
    return amounts[name] if name in amounts else dict(shape.custom)[name]


def _offered(name: str, capacity: Capacity) -> int:
    amounts = {
        "cpu": capacity.cpu_millis,
        "memory": capacity.memory_bytes,
        "gpu": capacity.gpu_count,
        "disk": capacity.disk_bytes,
    }
    return amounts[name] if name in amounts else capacity.custom.get(name, 0)


def _plural(name: str, text: str) -> str:
    return f"{text} cpu" if name == "cpu" else f"{text} {name}"


def unsatisfiable(state: ClusterState, shape: Shape) -> Reason | None:
    """Set when no known node, Offline ones included, could ever run it.

    Not while no node is known at all.
    """
    if not state.node_names:
        return None
    nodes = []
    lacking = ""
    for name in (shape.node,) if shape.node else state.node_names:
        node = state.nodes.get(name)
        if node is None:
            continue
        lacking = _what_lacks(shape, node.capacity)
        if not lacking:
            return None
        nodes.append(node)
    if not nodes:
        return Reason("Constraints", f"there is no node {shape.node}")
    most = max(_offered(lacking, node.capacity) for node in nodes)
    return Reason(
        "Unsatisfiable",
        f"asks {_plural(lacking, _amount(lacking, _asked(lacking, shape)))}; "
        f"the largest node has {_amount(lacking, most)}",
    )


def why_shape_waits(state: ClusterState, shape: Shape) -> Reason:
    """Why an attempt of this shape that is ready is not placed. Memoised until the next apply."""
    known = state.reasons_memo.get(shape)
    if known is None:
        known = state.reasons_memo[shape] = _why_shape_waits(state, shape)
    assert isinstance(known, Reason)
    return known


def _why_shape_waits(state: ClusterState, shape: Shape) -> Reason:
    if not state.node_names:
        return Reason("NoNodes", "no node has joined yet")
    never = unsatisfiable(state, shape)
    if never is not None:
        return never
    names = [shape.node] if shape.node else state.node_names
    able = [
        node
        for name in names
        if (node := state.nodes.get(name)) is not None and _can_ever(shape, node.capacity)
    ]
    heard = [node for node in able if contact.is_claimed(state, node)]
    if not heard:
        if any(node.phase == "Online" for node in able):
            return Reason("Recovering", "waits for nodes to rejoin the new leader")
        return Reason("Constraints", f"none of {len(able)} nodes that could run it is Online")
    usable = [node for node in heard if not node.is_unschedulable]
    if not usable:
        return Reason("Drained", f"all {len(heard)} nodes that could run it are cordoned")
    return _why_no_room(state, shape, usable)


def _why_no_room(state: ClusterState, shape: Shape, usable: list[Node]) -> Reason:
    rooms = [_room_of(node, state.usage.get(node.name)) for node in usable]
    fitting = [room for room in rooms if room.fits(shape)]
    if fitting:
        if all(room.node.name == shape.avoid for room in fitting):
            return Reason("Resources", f"keeps off {shape.avoid}, which failed it; others are full")
        return Reason("Priority", f"{state.pending.ready_count} attempts are ready to be placed")
    lacking = next(
        (n for n in ("cpu", "memory", "gpu", "disk") if _lacks_everywhere(n, shape, rooms)), "cpu"
    )
    most = max(_free(lacking, room) for room in rooms)
    return Reason(
        "Resources",
        f"needs {_plural(lacking, _amount(lacking, _asked(lacking, shape)))}; "
        f"{len(usable)} nodes match, most free is {_amount(lacking, most)}",
    )


def _free(name: str, room: _Room) -> int:
    amounts = {
        "cpu": room.cpu_millis,
        "memory": room.memory_bytes,
        "gpu": len(room.gpus),
        "disk": room.disk_bytes,
    }
    return amounts[name]


def _lacks_everywhere(name: str, shape: Shape, rooms: list[_Room]) -> bool:
    return all(_free(name, room) < _asked(name, shape) for room in rooms)


def pending_shape(state: ClusterState, attempt: Attempt, worker: Worker) -> Shape:
    """The shape of a waiting attempt, also of one that is not indexed."""
    known = state.pending.shape_of(attempt.key)
    if known is not None:
        return known
    job = state.jobs[attempt.job]
    return make_shape(
        job.spec.tasks[attempt.task].resources,
        priority=job.spec.priority,
        node=job.spec.node or "",
        avoid=worker.avoid,
    )
