"""When something is due: heaps of deadlines that `DeadlinesPassed` works off.

An entry of a heap is a hint: what is really due is asked of the records when it is popped, and it
is put back when that is later. So a deadline that moves later costs nothing; one that moves earlier
must be pushed again. The order of work is that of the true (time, key) pairs, the same on every
replica whatever hints it holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final

#: Kinds, in the order they are worked off.
DISCONNECT: Final = "disconnect"
UNKNOWN: Final = "unknown"
MARKED: Final = "marked"
PENDING_LIMIT: Final = "pending"
REGISTRY: Final = "registry"
JOB_RETENTION: Final = "job"
KEY_RETENTION: Final = "key"
TOMBSTONE_RETENTION: Final = "tombstone"
JOB_TOMBSTONE_RETENTION: Final = "job_tombstone"
KINDS: Final = (
    DISCONNECT,
    UNKNOWN,
    MARKED,
    PENDING_LIMIT,
    REGISTRY,
    JOB_RETENTION,
    KEY_RETENTION,
    TOMBSTONE_RETENTION,
    JOB_TOMBSTONE_RETENTION,
)

#: kind, key -> its true deadline in log time; None: nothing is due for it any more.
DueAt = Callable[[str, Any], int | None]


class DueIndex:
    """One heap per kind of deadline. Derived; rebuilt on restore."""

    def __init__(self, due_at: DueAt) -> None:
        self._due_at = due_at
        self._heaps: dict[str, list[tuple[int, Any]]] = {kind: [] for kind in KINDS}
        #: Earliest hint of each key, so that a key is in its heap once per hint that counts.
        self._hints: dict[str, dict[Any, int]] = {kind: {} for kind in KINDS}

    def note(self, kind: str, key: Any) -> None:
        """The key may have a deadline now, or an earlier one."""
        at = self._due_at(kind, key)
        if at is None:
            return
        hints = self._hints[kind]
        known = hints.get(key)
        if known is not None and known <= at:
            return
        hints[key] = at
        heapq.heappush(self._heaps[kind], (at, key))

    def _first(self, kind: str) -> tuple[int, Any] | None:
        heap, hints = self._heaps[kind], self._hints[kind]
        while heap:
            at, key = heap[0]
            if hints.get(key) != at:
                heapq.heappop(heap)
                continue
            true = self._due_at(kind, key)
            if true == at:
                return at, key
            heapq.heappop(heap)
            del hints[key]
            if true is not None:
                hints[key] = true
                heapq.heappush(heap, (true, key))
        return None

    def first(self, kind: str, now_ms: int) -> Any | None:
        """The key that is due first at `now_ms`, or None. It stays until its record changes."""
        found = self._first(kind)
        return None if found is None or found[0] > now_ms else found[1]

    def next_ms(self) -> int | None:
        """The earliest deadline of all."""
        found = [first[0] for kind in KINDS if (first := self._first(kind)) is not None]
        return min(found, default=None)

    def count_due(self, now_ms: int) -> int:
        """1 when anything is due at `now_ms`, else 0: enough to say "go on"."""
        return sum(self.first(kind, now_ms) is not None for kind in KINDS)

    def renew(self, kind: str, keys: list[Any]) -> None:
        """Forget the kind's hints and take these keys: after a change that may move all."""
        self._heaps[kind] = []
        self._hints[kind] = {}
        for key in keys:
            self.note(kind, key)
