"""PySyncObj's journal interface on top of the write-ahead log.

The library addresses entries by *position* and never lets the journal be empty: it reads [0] and
[-1] all the time. Position 0 is therefore a sentinel that stands for everything before the log: the
entry (base_index, base_term), whose payload is gone into a snapshot (0, 0 for a new log). Position
`p` is index base_index + p. Elements are tuples (payload, index, term): the library compares them.

Nothing here waits for the disk except the hard state (term and vote), which must be there before
the message that reflects it is sent. Entries are made durable by the pump, in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

from pysyncobj.journal import Journal

JournalEntry = tuple[bytes, int, int]


#: What `LogStorage.take_batch` hands to a worker. Each storage has its own; opaque here.
Batch = Any


class LogStorage(Protocol):
    """The part of `wal.log.WriteAheadLog` that replication uses; the simulator has its own."""

    @property
    def base_index(self) -> int: ...
    @property
    def base_term(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def durable_index(self) -> int:
        """Every present entry up to here is on disk. Falls when a suffix is truncated."""
        ...

    @property
    def term(self) -> int: ...
    @property
    def voted_for(self) -> str | None: ...
    @property
    def commit_index(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def has_room(self) -> bool:
        """False when the disk is so full that a leader could not even record that it leads."""
        ...

    def append(
        self, payload: bytes, *, index: int, term: int, may_use_reserve: bool = False
    ) -> None: ...
    def entry(self, index: int) -> JournalEntry: ...
    def term_at(self, index: int) -> int: ...
    def entries(self, start: int, stop: int) -> Sequence[JournalEntry]: ...
    def truncate_suffix(self, first_dropped: int) -> None: ...
    def truncate_prefix(self, last_dropped: int) -> None: ...
    def reset(self, index: int, term: int) -> None: ...
    def set_hard_state(self, term: int, voted_for: str | None) -> None: ...
    def note_commit_index(self, index: int) -> None: ...
    def take_batch(self) -> Batch | None: ...
    def write_batch(self, batch: Batch) -> None: ...
    def finish_batch(self, batch: Batch) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class WalJournal(Journal):  # type: ignore[misc]
    """Event loop only, except `LogStorage.write_batch`, which the pump runs in a worker."""

    def __init__(self, storage: LogStorage) -> None:
        self.storage = storage

    # What replication itself uses: by index.

    @property
    def base_index(self) -> int:
        return self.storage.base_index

    @property
    def last_index(self) -> int:
        return self.storage.last_index

    @property
    def last_term(self) -> int:
        return self.term_at(self.storage.last_index)

    @property
    def durable_index(self) -> int:
        return self.storage.durable_index

    def term_at(self, index: int) -> int:
        """Term of the entry at `index`, from base_index (the sentinel) to last_index."""
        storage = self.storage
        if index == storage.base_index:
            return storage.base_term
        return storage.term_at(index)

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry (index, term) is here, or is the base."""
        storage = self.storage
        if not storage.base_index <= index <= storage.last_index:
            return False
        return self.term_at(index) == term

    def batch_from(self, index: int, *, bytes_max: int, entries_max: int) -> list[JournalEntry]:
        """Entries from `index` on: at least one if there is any, then while they fit."""
        stop = min(self.storage.last_index, index + entries_max - 1) + 1
        taken = list(self.storage.entries(index, stop))
        size = 0
        for count, entry in enumerate(taken):
            size += len(entry[0])
            if size > bytes_max and count:
                return taken[:count]
        return taken

    # The library's interface: by position.

    def add(self, command: bytes, idx: int, term: int) -> None:
        # The library appends what a leader sent, and its no-op: refusing those frees no disk.
        self.storage.append(command, index=idx, term=term, may_use_reserve=True)

    def clear(self) -> None:
        raise AssertionError("the log is never cleared: snapshots are installed by reset")

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803
        # Position 0 is the sentinel; what lies at or before it is in a snapshot and committed.
        assert entryFrom > 0
        self.storage.truncate_suffix(self.storage.base_index + entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803, ARG002
        raise AssertionError("the log is trimmed by the snapshot engine only")

    def __len__(self) -> int:
        return self.storage.last_index - self.storage.base_index + 1

    @overload
    def __getitem__(self, item: int) -> JournalEntry: ...
    @overload
    def __getitem__(self, item: slice) -> list[JournalEntry]: ...
    def __getitem__(self, item: int | slice) -> JournalEntry | list[JournalEntry]:
        storage = self.storage
        base = storage.base_index
        if isinstance(item, slice):
            start, stop, _ = item.indices(len(self))
            if stop <= start:
                return []
            head: list[JournalEntry] = [self._sentinel()] if start == 0 else []
            return [*head, *storage.entries(base + max(start, 1), base + stop)]
        position = item if item >= 0 else len(self) + item
        if position == 0:
            return self._sentinel()
        return storage.entry(base + position)

    def _sentinel(self) -> JournalEntry:
        return (b"", self.storage.base_index, self.storage.base_term)

    def _destroy(self) -> None:
        """The owner of the log closes it."""

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        # Only what is on disk: a crash may lose the truncation that made room for the committed
        # entries, and the index must never vouch for the divergent tail that then comes back.
        self.storage.note_commit_index(min(raftCommitIndex, self.storage.durable_index))

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        # The stored index is a lazy hint and may outlive a lost tail; success must never be told
        # for entries that are not there.
        storage = self.storage
        return max(storage.base_index, min(storage.commit_index, storage.durable_index))

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        self.storage.set_hard_state(term, votedForNodeId)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self.storage.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        # The library raises its term to that of the last entry. A vote kept from an older term is
        # no vote in the raised one; taking it for one would refuse every candidate of that term.
        if self.last_term > self.storage.term:
            return None
        return self.storage.voted_for

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Nothing: the commit index is stored with each batch."""
