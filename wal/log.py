"""The write-ahead log of one member: entries by index, term and vote, all of them on disk.

Threads: the owner's thread (the event loop) calls everything but `write_batch`, which may run in
any worker. `set_hard_state` blocks its caller for two syncs, plus the batch that a worker is
writing: the writer's lock orders the two; they touch different bytes, so either order is right.

Durability: `append`, `truncate_*`, `reset` and `note_commit_index` change memory and the pending
batch only. They are durable once the batch that took them is finished, in order: a later one is
never recovered without the earlier ones. Acknowledge nothing above `durable_index`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from wal.batch import Batch
from wal.errors import Closed, OutOfSpace, RecordTooLarge
from wal.files import REAL_FILES, FileSystem, Lock
from wal.frame import Entry, Operation, RecordType, frame_bytes
from wal.housekeeping import Housekeeper
from wal.identity import (
    Identity,
    IdentityFile,
    check_identity,
    read_identity_file,
)
from wal.opening import Replay, close_writer, open_segments, take_lock
from wal.recovery import TornTail
from wal.segment import HardState
from wal.settings import WalSettings
from wal.writer import SegmentWriter

__all__ = ["Entry", "LogStats", "WriteAheadLog"]

#: With less than this on a full disk a member could not even record that it leads.
LEADING_ROOM_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class LogStats:
    """Figures of an open log."""

    first_index: int
    last_index: int
    durable_index: int
    segment_count: int
    used_bytes: int
    #: Records not yet taken into a batch.
    pending_count: int
    pending_bytes: int
    sync_count: int
    is_full: bool


class WriteAheadLog:
    """See the head of this file for threads and durability."""

    def __init__(self, writer: SegmentWriter, replay: Replay, lock: Lock, directory: Path) -> None:
        """Use `open`."""
        self._writer = writer
        self._lock = lock
        self._directory = directory
        self._entries = replay.entries
        self._base_index, self._base_term = replay.base_index, replay.base_term
        self._noted_commit = self._stored_commit = replay.commit_index
        self._durable_index = self.last_index
        self._pending: list[Operation] = []
        self._pending_bytes = 0
        self._batch: Batch | None = None
        self._housekeeper: Housekeeper | None = None
        self._record_bytes_max = 0
        self._segment_bytes = 0
        self._is_closed = False
        #: What opening cut off, None if nothing.
        self.recovered: TornTail | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        identity: Identity,
        settings: WalSettings | None = None,
        fs: FileSystem = REAL_FILES,
    ) -> Self:
        """Take the directory's lock, recover the log and be ready to append.

        The directory must have been founded (`wal.identity.create_directory`). Blocks: reads the
        whole log. Raises Locked, WrongIdentity, Corrupt, UnsupportedVersion, OutOfSpace and
        SyncFailed.
        """
        settings = settings or WalSettings()
        founded = read_identity_file(directory, fs=fs)
        check_identity(directory, founded.identity, identity)
        lock = take_lock(directory, fs=fs)
        try:
            return cls._open_locked(directory, founded, settings, fs, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_locked(
        cls,
        directory: Path,
        founded: IdentityFile,
        settings: WalSettings,
        fs: FileSystem,
        lock: Lock,
    ) -> Self:
        replay = Replay()
        writer, chain = open_segments(directory, founded, settings, fs, replay)
        log = cls(writer, replay, lock, directory)
        log.recovered = chain.torn
        log._record_bytes_max = settings.record_bytes_max
        log._segment_bytes = settings.segment_bytes
        if settings.housekeeping:
            name = founded.identity.member
            log._housekeeper = Housekeeper(writer, mark_idle_ms=settings.mark_idle_ms, name=name)
        return log

    # -- reading ----------------------------------------------------------------------------------

    @property
    def base_index(self) -> int:
        """Index of the entry before the first: compacted away or in a snapshot; 0 if none was."""
        return self._base_index

    @property
    def base_term(self) -> int:
        """Term of the entry at `base_index`."""
        return self._base_term

    @property
    def first_index(self) -> int:
        """Index of the first entry, or of the next one if there is none."""
        return self._base_index + 1

    @property
    def last_index(self) -> int:
        """Index of the last entry, durable or not; `base_index` if there is none."""
        return self._base_index + len(self._entries)

    @property
    def durable_index(self) -> int:
        """Entries up to here are on disk."""
        return self._durable_index

    @property
    def term(self) -> int:
        """The member's durable term; never below the last entry's."""
        return max(self._writer.hard_state.term, self.term_at(self.last_index))

    @property
    def voted_for(self) -> str | None:
        """Whom the member voted for in `term`."""
        hard = self._writer.hard_state
        return hard.voted_for if hard.term == self.term else None

    @property
    def commit_index(self) -> int:
        """The noted commit index, never beyond the entries there are. A hint after a restart."""
        return max(self._base_index, min(self._noted_commit, self.last_index))

    @property
    def size_bytes(self) -> int:
        """Bytes of records on disk, segment pages included."""
        return self._writer.used_bytes

    @property
    def has_room(self) -> bool:
        """Whether a leader could record what frees work: False when the reserve is used up, too."""
        writer = self._writer
        is_scarce = writer.is_full or writer.is_short
        return not is_scarce or self._fits(LEADING_ROOM_BYTES, may_use_reserve=True)

    def entry(self, index: int) -> Entry:
        """The entry at `index`. Raises IndexError outside `first_index`..`last_index`."""
        if index <= self._base_index:
            raise IndexError(f"entry {index} is compacted: the first is {self.first_index}")
        return self._entries[index - self._base_index - 1]

    def term_at(self, index: int) -> int:
        """Term of the entry at `index`, `base_index` included. Raises IndexError elsewhere."""
        if index == self._base_index:
            return self._base_term
        return self.entry(index).term

    def entries(self, start: int, stop: int) -> list[Entry]:
        """Entries with `start` <= index < `stop`. Raises IndexError if `start` is compacted."""
        if start <= self._base_index:
            raise IndexError(f"entry {start} is compacted: the first is {self.first_index}")
        first = self._base_index + 1
        return self._entries[start - first : max(stop, start) - first]

    def stats(self) -> LogStats:
        """Figures for people and metrics."""
        return LogStats(
            first_index=self.first_index,
            last_index=self.last_index,
            durable_index=self._durable_index,
            segment_count=len(self._writer.encoder.sealed) + 1,
            used_bytes=self._writer.used_bytes,
            pending_count=len(self._pending),
            pending_bytes=self._pending_bytes,
            sync_count=self._writer.sync_count,
            is_full=self._writer.is_full,
        )

    # -- changing ---------------------------------------------------------------------------------

    def append(
        self, payload: bytes, *, index: int, term: int, may_use_reserve: bool = False
    ) -> None:
        """Append an entry in memory and to the pending batch; `index` must be `last_index` + 1.

        Raises RecordTooLarge and, on a full disk, OutOfSpace; then nothing changed. With
        `may_use_reserve` the entry is taken while the reserve lasts: for what frees work. What may
        not use it is refused as soon as it would begin a segment that there is no room for.
        """
        assert index == self.last_index + 1, f"entry {index} after {self.last_index}"
        self._check_open()
        if len(payload) > self._record_bytes_max:
            raise RecordTooLarge(f"{len(payload)} bytes; at most {self._record_bytes_max}")
        size = frame_bytes(len(payload))
        if self._writer.is_full or self._writer.is_short:
            self._check_room(size, may_use_reserve=may_use_reserve)
        self._entries.append(Entry(payload, index, term))
        self._pending.append(Operation(RecordType.ENTRY, index, term, payload))
        self._pending_bytes += size

    def truncate_suffix(self, first_dropped: int) -> None:
        """Drop the entries from `first_dropped` on; the next one appended has that index."""
        assert self._base_index < first_dropped <= self.last_index + 1, "outside the log"
        self._check_open()
        if first_dropped > self.last_index:
            return
        del self._entries[first_dropped - self._base_index - 1 :]
        self._add_control(RecordType.TRUNCATE, first_dropped, 0)
        self._lower_durable(first_dropped - 1)

    def truncate_prefix(self, last_dropped: int) -> None:
        """Drop the entries up to `last_dropped`, which a snapshot holds durably.

        Whole segments are deleted by the `write_batch` that makes this durable. Nothing if they are
        dropped already.
        """
        assert last_dropped <= self.last_index, "outside the log"
        self._check_open()
        if last_dropped <= self._base_index:
            return
        term = self.term_at(last_dropped)
        del self._entries[: last_dropped - self._base_index]
        self._base_index, self._base_term = last_dropped, term
        self._durable_index = max(self._durable_index, last_dropped)
        self._add_control(RecordType.BASE, last_dropped, term)

    def reset(self, index: int, term: int) -> None:
        """Drop everything and go on behind `index`, of which a durable snapshot was installed."""
        self._check_open()
        self._entries.clear()
        self._base_index, self._base_term = index, term
        self._add_control(RecordType.RESET, index, term)
        self._durable_index = index
        if self._batch is not None:
            self._batch.last_index = 0

    def set_hard_state(self, term: int, voted_for: str | None) -> None:
        """Store term and vote, durable on return. Blocks.

        ValueError if the term goes back or a vote changes within it; raises SyncFailed (fatal).
        """
        self._check_open()
        now = self._writer.hard_state
        if term < now.term:
            raise ValueError(f"term {term} after {now.term}")
        if term == now.term and now.voted_for not in {None, voted_for}:
            raise ValueError(f"voted for {now.voted_for} in term {term} already")
        if (term, voted_for) != (now.term, now.voted_for):
            self._writer.write_hard_state(HardState(term=term, voted_for=voted_for))

    def note_commit_index(self, index: int) -> None:
        """Remember that entries up to `index` are committed; stored with the next batch."""
        self._noted_commit = max(self._noted_commit, index)

    # -- making durable ---------------------------------------------------------------------------

    def take_batch(self) -> Batch | None:
        """Everything pending as a batch; None if that is nothing or a batch is out already."""
        if self._batch is not None or not self._pending:
            return None
        self._check_open()
        commit = self.commit_index
        if commit > self._stored_commit:
            self._pending.append(Operation(RecordType.COMMIT, commit, 0, b""))
            self._stored_commit = commit
        batch = self._writer.encode(self._pending)
        batch.last_index = self.last_index
        self._pending = []
        self._pending_bytes = 0
        self._batch = batch
        return batch

    def write_batch(self, batch: Batch) -> None:
        """Make the batch durable: one write, one sync. Any thread.

        Raises OutOfSpace (may be tried again with the same batch) and SyncFailed (fatal).
        """
        self._writer.write(batch)

    def finish_batch(self, batch: Batch) -> None:
        """Move `durable_index` after `write_batch`. Nothing if `sync` finished it meanwhile."""
        if batch.is_finished:
            return
        assert batch is self._batch, "not the batch that is out"
        assert batch.is_written, "finish follows write"
        batch.is_finished = True
        self._batch = None
        self._writer.finish(batch)
        self._durable_index = max(self._durable_index, batch.last_index)
        self._wake()

    def sync(self) -> None:
        """Make everything pending durable before returning. Blocks; owner's thread."""
        while (batch := self._batch or self.take_batch()) is not None:
            self.write_batch(batch)
            self.finish_batch(batch)

    def write_mark(self) -> None:
        """Store how far the log is durable, unless it is stored. Any thread.

        Housekeeping does it when idle: only the last batch before a crash needs it.
        """
        self._writer.write_mark()

    def prepare_spare(self) -> bool:
        """Prepare the next segment and the reserve; False without room. Any thread."""
        return self._writer.prepare_spare()

    def close(self) -> None:
        """Write the mark and release everything. What is pending stays undone. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._housekeeper is not None:
            self._housekeeper.close()
        close_writer(self._writer)
        self._lock.release()

    # -- inside -----------------------------------------------------------------------------------

    def _add_control(self, kind: RecordType, index: int, term: int) -> None:
        self._pending.append(Operation(kind, index, term, b""))
        self._pending_bytes += frame_bytes(0)

    def _lower_durable(self, last: int) -> None:
        self._durable_index = min(self._durable_index, last)
        if self._batch is not None:
            # The batch being written holds entries of those indexes that no longer count.
            self._batch.last_index = min(self._batch.last_index, last)

    def _check_room(self, size: int, *, may_use_reserve: bool) -> None:
        self._wake()
        is_refused = self._writer.is_full and not may_use_reserve
        if is_refused or not self._fits(size, may_use_reserve=may_use_reserve):
            raise OutOfSpace(
                "the disk is full: only what frees work is taken", path=self._directory
            )

    def _fits(self, size: int, *, may_use_reserve: bool) -> bool:
        writer = self._writer
        # What a batch in flight writes is not yet subtracted from the room.
        size += self._pending_bytes + (self._batch.size_bytes if self._batch else 0)
        room = writer.room_bytes
        if may_use_reserve:
            # Not their sum: a record is in the one or in the other.
            room = max(room, writer.reserve_room_bytes)
        return size + 2 * frame_bytes(0) <= room

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self._directory} is closed", path=self._directory)

    def _wake(self) -> None:
        if self._housekeeper is not None:
            self._housekeeper.wake()
