"""What the attempts of each node hold of it. Derived from the attempts, rebuilt on restore."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.core.records import PlacedFacts
from scheduler.protocol.messages import Capacity
from scheduler.protocol.spec import Resources


@dataclass(slots=True)
class Usage:
    """Sums of the allocations on one node."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    gpu_indices: set[int] = field(default_factory=set)
    custom: dict[str, int] = field(default_factory=dict)

    def add(self, placed: PlacedFacts, sign: int) -> None:
        """Allocate (`sign` 1) or release (-1) what a placement reserves."""
        needs = placed.resources
        self.cpu_millis += sign * needs.cpu_millis
        self.memory_bytes += sign * needs.memory_bytes
        self.disk_bytes += sign * needs.disk_bytes
        if placed.gpu_indices:
            if sign > 0:
                self.gpu_indices.update(placed.gpu_indices)
            else:
                self.gpu_indices.difference_update(placed.gpu_indices)
        for name, amount in needs.custom.items():
            self.custom[name] = self.custom.get(name, 0) + sign * amount

    def free_gpus(self, capacity: Capacity) -> tuple[int, ...]:
        """Indices that nothing holds, lowest first."""
        return tuple(i for i in range(capacity.gpu_count) if i not in self.gpu_indices)


def lacks(needs: Resources, capacity: Capacity, usage: Usage | None) -> str:
    """The first resource that does not fit, or an empty text. `usage` None: an empty node."""
    used = usage if usage is not None else _NOTHING
    if needs.cpu_millis > capacity.cpu_millis - used.cpu_millis:
        return "cpu"
    if needs.memory_bytes > capacity.memory_bytes - used.memory_bytes:
        return "memory"
    if needs.gpu > capacity.gpu_count - len(used.gpu_indices):
        return "gpu"
    if needs.disk_bytes and needs.disk_bytes > capacity.disk_bytes - used.disk_bytes:
        return "disk"
    for name in sorted(needs.custom):
        if needs.custom[name] > capacity.custom.get(name, 0) - used.custom.get(name, 0):
            return name
    return ""


_NOTHING = Usage()
