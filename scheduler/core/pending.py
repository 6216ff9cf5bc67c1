"""Pending attempts, grouped by what they ask for, each group in the order it is served.

Derived from the records and rebuilt on restore. A planning pass looks at groups, never at every
pending attempt (specification 5.5).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import Final, NamedTuple

from scheduler.core.records import AttemptKey
from scheduler.protocol.spec import Resources

#: Served keys at the head of a queue before it is compacted.
COMPACT_AFTER: Final = 4096


class Shape(NamedTuple):
    """All that decides where and how soon an attempt can be placed."""

    #: Negated priority, so that shapes sort by who goes first.
    rank: int
    cpu_millis: int
    memory_bytes: int
    gpu: int
    disk_bytes: int
    custom: tuple[tuple[str, int], ...]
    #: The only node allowed; empty for any.
    node: str
    #: A node to keep off if another one can do it.
    avoid: str

    @property
    def priority(self) -> int:
        return -self.rank


def make_shape(resources: Resources, *, priority: int, node: str, avoid: str) -> Shape:
    """The shape of an attempt with these needs."""
    custom = tuple(sorted(resources.custom.items())) if resources.custom else ()
    return Shape(
        -priority,
        resources.cpu_millis,
        resources.memory_bytes,
        resources.gpu,
        resources.disk_bytes,
        custom,
        node,
        avoid,
    )


class Queue:
    """Keys in ascending order; cheap at both ends."""

    __slots__ = ("_gone", "_head", "_keys")

    def __init__(self) -> None:
        self._keys: list[AttemptKey] = []
        self._head = 0
        self._gone: set[AttemptKey] = set()

    def __len__(self) -> int:
        return len(self._keys) - self._head - len(self._gone)

    def add(self, key: AttemptKey) -> None:
        if key in self._gone:
            self._gone.discard(key)
        elif not self._keys or key > self._keys[-1]:
            self._keys.append(key)
        else:
            insort(self._keys, key, lo=self._head)

    def remove(self, key: AttemptKey) -> None:
        self._gone.add(key)
        keys, gone = self._keys, self._gone
        while self._head < len(keys) and keys[self._head] in gone:
            gone.discard(keys[self._head])
            self._head += 1
        if self._head > COMPACT_AFTER or self._head == len(keys):
            del keys[: self._head]
            self._head = 0

    def nth(self, position: int) -> tuple[AttemptKey | None, int]:
        """The key at or after the raw `position` and the raw position behind it."""
        keys, gone = self._keys, self._gone
        at = self._head + position
        while at < len(keys):
            if keys[at] not in gone:
                return keys[at], at + 1 - self._head
            at += 1
        return None, at - self._head

    def count_before(self, key: AttemptKey) -> int:
        """About how many keys are served before `key`."""
        return max(0, bisect_left(self._keys, key, lo=self._head) - self._head)


class PendingIndex:
    """Ready attempts by shape, and those that wait for a time or for proof."""

    def __init__(self) -> None:
        self.groups: dict[Shape, Queue] = {}
        self._shape_of: dict[AttemptKey, Shape] = {}
        #: Not ready: key -> (log time it becomes ready or None, shape).
        self._waiting: dict[AttemptKey, tuple[int | None, Shape]] = {}
        self._timers: list[tuple[int, AttemptKey]] = []

    def __len__(self) -> int:
        return len(self._shape_of) + len(self._waiting)

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._shape_of or key in self._waiting

    @property
    def ready_count(self) -> int:
        return len(self._shape_of)

    def add(self, key: AttemptKey, shape: Shape, *, ready_ms: int | None, now_ms: int) -> None:
        """Note a pending attempt; `ready_ms` None: only proof makes it ready."""
        self.discard(key)
        if ready_ms is not None and ready_ms <= now_ms:
            self._shape_of[key] = shape
            queue = self.groups.get(shape)
            if queue is None:
                queue = self.groups[shape] = Queue()
            queue.add(key)
            return
        self._waiting[key] = (ready_ms, shape)
        if ready_ms is not None:
            heapq.heappush(self._timers, (ready_ms, key))

    def discard(self, key: AttemptKey) -> None:
        shape = self._shape_of.pop(key, None)
        if shape is not None:
            queue = self.groups[shape]
            queue.remove(key)
            if not len(queue):
                del self.groups[shape]
            return
        self._waiting.pop(key, None)

    def release(self, now_ms: int) -> None:
        """Make ready what waited until `now_ms`."""
        while self._timers and self._timers[0][0] <= now_ms:
            at, key = heapq.heappop(self._timers)
            entry = self._waiting.get(key)
            if entry is not None and entry[0] == at:
                self.add(key, entry[1], ready_ms=at, now_ms=now_ms)

    def next_ready_ms(self) -> int | None:
        """When the next waiting attempt becomes ready by time alone."""
        while self._timers:
            at, key = self._timers[0]
            entry = self._waiting.get(key)
            if entry is not None and entry[0] == at:
                return at
            heapq.heappop(self._timers)
        return None

    def shape_of(self, key: AttemptKey) -> Shape | None:
        shape = self._shape_of.get(key)
        if shape is not None:
            return shape
        entry = self._waiting.get(key)
        return None if entry is None else entry[1]
