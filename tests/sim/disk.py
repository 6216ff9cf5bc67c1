"""A log on a disk that can lose, tear and refuse what was not synced.

`SimStorage` is what a running member sees; `Image` is what its disk holds. A batch reaches the
image when it is written; a crash keeps any prefix of the batch that was in the worker and nothing
of what was pending.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field

from replication.journal import JournalEntry
from wal.errors import SyncFailed

Operation = tuple[object, ...]


class SimCrash(Exception):
    """The process dies here."""


@dataclass(slots=True)
class Image:
    entries: list[JournalEntry] = field(default_factory=list)
    base_index: int = 0
    base_term: int = 0
    commit_index: int = 0
    term: int = 0
    voted_for: str | None = None
    #: Snapshots as (index, term, commands), oldest first.
    snapshots: list[tuple[int, int, tuple[bytes, ...]]] = field(default_factory=list)
    is_joining: bool = False

    @property
    def last_index(self) -> int:
        return self.base_index + len(self.entries)

    def term_at(self, index: int) -> int:
        if index == self.base_index:
            return self.base_term
        return self.entries[index - self.base_index - 1][2]

    def holds(self, index: int, term: int) -> bool:
        """In the log, or covered by a snapshot."""
        if any(snapshot[0] >= index for snapshot in self.snapshots):
            return True
        return self.base_index <= index <= self.last_index and self.term_at(index) == term

    def apply(self, operation: Operation) -> None:
        match operation:
            case ("entry", bytes(payload), int(index), int(term)):
                assert index == self.last_index + 1
                self.entries.append((payload, index, term))
            case ("truncate", int(first)):
                del self.entries[first - self.base_index - 1 :]
            case ("base", int(last), int(term)):
                del self.entries[: last - self.base_index]
                self.base_index, self.base_term = last, term
            case ("reset", int(index), int(term)):
                self.entries.clear()
                self.base_index, self.base_term = index, term
            case ("commit", int(index)):
                self.commit_index = index
            case _:
                raise AssertionError(operation)


@dataclass(slots=True)
class SimBatch:
    operations: list[Operation]
    last_index: int
    is_written: bool = False
    is_finished: bool = False


class SimStorage:
    """Implements `replication.journal.LogStorage`."""

    def __init__(self, disk: Image, rng: random.Random, *, crash_rate: float) -> None:
        self.disk = disk
        self._rng = rng
        self._crash_rate = crash_rate
        self._live = copy.copy(disk)
        self._live.entries = list(disk.entries)
        self._pending: list[Operation] = []
        self._batch: SimBatch | None = None
        self.durable_index = self._live.last_index
        self._noted = disk.commit_index
        self.has_room = True
        #: The next write fails.
        self.is_failing = False

    @property
    def base_index(self) -> int:
        return self._live.base_index

    @property
    def base_term(self) -> int:
        return self._live.base_term

    @property
    def last_index(self) -> int:
        return self._live.base_index + len(self._live.entries)

    @property
    def term(self) -> int:
        return max(self.disk.term, self._live.term_at(self.last_index))

    @property
    def voted_for(self) -> str | None:
        return self.disk.voted_for if self.disk.term == self.term else None

    @property
    def commit_index(self) -> int:
        return max(self.base_index, min(self._noted, self.last_index))

    @property
    def size_bytes(self) -> int:
        return sum(len(entry[0]) for entry in self._live.entries)

    def entry(self, index: int) -> JournalEntry:
        assert self.base_index < index <= self.last_index
        return self._live.entries[index - self.base_index - 1]

    def term_at(self, index: int) -> int:
        assert self.base_index <= index <= self.last_index
        return self._live.term_at(index)

    def entries(self, start: int, stop: int) -> list[JournalEntry]:
        assert start > self.base_index
        first = self.base_index + 1
        return self._live.entries[start - first : max(stop, start) - first]

    def append(
        self, payload: bytes, *, index: int, term: int, may_use_reserve: bool = False
    ) -> None:
        assert index == self.last_index + 1
        self._do(("entry", payload, index, term))

    def truncate_suffix(self, first_dropped: int) -> None:
        assert self.base_index < first_dropped <= self.last_index + 1
        if first_dropped <= self.last_index:
            self._do(("truncate", first_dropped))
            self._lower(first_dropped - 1)

    def truncate_prefix(self, last_dropped: int) -> None:
        if last_dropped > self.base_index:
            self._do(("base", last_dropped, self.term_at(last_dropped)))
            self.durable_index = max(self.durable_index, last_dropped)

    def reset(self, index: int, term: int) -> None:
        self._do(("reset", index, term))
        self.durable_index = index
        if self._batch is not None:
            self._batch.last_index = 0

    def set_hard_state(self, term: int, voted_for: str | None) -> None:
        assert term >= self.disk.term
        assert term > self.disk.term or self.disk.voted_for in {None, voted_for}
        self._maybe_crash()
        self.disk.term, self.disk.voted_for = term, voted_for
        self._maybe_crash()

    def note_commit_index(self, index: int) -> None:
        self._noted = max(self._noted, index)

    def take_batch(self) -> SimBatch | None:
        if self._batch is not None or not self._pending:
            return None
        self._pending.append(("commit", self.commit_index))
        batch = SimBatch(self._pending, self.last_index)
        self._pending = []
        self._batch = batch
        return batch

    def write_batch(self, batch: SimBatch) -> None:
        if batch.is_written:
            return
        if self.is_failing:
            self._write_part(batch)
            raise SyncFailed("the simulated disk failed")
        for operation in batch.operations:
            self.disk.apply(operation)
        batch.is_written = True

    def finish_batch(self, batch: SimBatch) -> None:
        if batch.is_finished:
            return
        assert batch.is_written
        batch.is_finished = True
        self._batch = None
        self.durable_index = max(self.durable_index, batch.last_index)

    def sync(self) -> None:
        while (batch := self._batch or self.take_batch()) is not None:
            self.write_batch(batch)
            self.finish_batch(batch)

    def close(self) -> None:
        """Nothing is open."""

    def crash(self) -> None:
        """The process died: a prefix of the batch in the worker may have reached the disk."""
        if self._batch is not None and not self._batch.is_written:
            self._write_part(self._batch)

    def _write_part(self, batch: SimBatch) -> None:
        for operation in batch.operations[: self._rng.randint(0, len(batch.operations))]:
            self.disk.apply(operation)
        batch.is_written = True

    def _do(self, operation: Operation) -> None:
        self._live.apply(operation)
        self._pending.append(operation)

    def _lower(self, last: int) -> None:
        self.durable_index = min(self.durable_index, last)
        if self._batch is not None:
            self._batch.last_index = min(self._batch.last_index, last)

    def _maybe_crash(self) -> None:
        if self._rng.random() < self._crash_rate:
            raise SimCrash
