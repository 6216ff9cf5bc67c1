"""Writes the segments: batches, slots, the change to the next segment, the spare and the reserve.

Two sides. The *owner* (the event loop, or whoever holds the store) calls `encode` and `finish`; at
most one batch is between the two. The *I/O* methods may be called from any thread and exclude each
other by a lock: `write`, `write_hard_state`, `write_mark`, `prepare_spare`, `close`.

Order on disk, and why (recovery.py relies on it):

- a batch: one pwrite, one fdatasync; only then is it finished. Nothing later is written before.
- the next segment: old one durable -> header page in a file aside durable -> rename -> directory
  sync -> "sealed" in the old one's slot -> first record. A half-made segment has no name.
- dropping segments: the record that gives them up is durable first; oldest first, one at a time.
- a new hard state: one slot, sync, the other slot, sync; then it counts.

A write or sync that failed leaves the bytes unknown (the page cache may show what the disk lacks),
so the writer refuses everything afterwards. Only "no room" for a new segment is harmless: nothing
was written, and the same batch may be tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Final

from wal.batch import Batch, Encoder, Place, Sealed
from wal.errors import Closed, OutOfSpace, SyncFailed
from wal.files import NO_SPACE_ERRNOS, File, FileSystem
from wal.frame import Operation
from wal.recovery import Chain
from wal.segment import (
    SLOT_OFFSETS,
    HardState,
    SegmentHeader,
    Slot,
    encode_page,
    encode_slot,
    segment_name,
)
from wal.settings import PAGE_BYTES, WalSettings

RESERVE_NAME: Final = "reserve"
#: Prepared ahead, and made on the spot: two names, as both can be in the making at once.
SPARE_NAME: Final = "spare.tmp"
_NEXT_NAME: Final = "next.tmp"


@dataclass(slots=True)
class _Active:
    """The newest segment. `place` moves on the owner's side, the rest under the I/O lock."""

    place: Place
    file: File
    slots: list[Slot | None]

    @property
    def marked_upto(self) -> int:
        """How far a slot says that the segment is durable."""
        return max((slot.synced_upto for slot in self.slots if slot), default=PAGE_BYTES)


class SegmentWriter:
    """See the head of this file for threads and order."""

    def __init__(
        self, fs: FileSystem, directory: Path, *, encoder: Encoder, settings: WalSettings
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._settings = settings
        self.encoder = encoder
        self._io = Lock()
        self._preparing = Lock()
        self._failure: SyncFailed | None = None
        self._is_closed = False
        self._active: _Active | None = None
        self._hard = HardState()
        self._generation = 0
        self._has_spare = False
        #: The disk had no room: only what may use the reserve is to be taken.
        self.is_full = False
        #: No room was found for the segment after the newest: the reserve alone is left for it.
        self.is_short = False
        self._has_reserve = False
        self.sync_count = 0

    # -- opening ----------------------------------------------------------------------------------

    def create_first(self, leftovers: Iterable[str], *, sequence: int = 1) -> None:
        """Make the first segment of a new store. Raises OutOfSpace, SyncFailed."""
        with self._io, self._guard():
            self._remove(leftovers)
            self._open_segment(self.encoder.new_header(sequence=sequence), PAGE_BYTES)

    def resume(self, chain: Chain) -> None:
        """Go on behind what recovery found. Cuts the torn tail and makes the rest durable."""
        *older, newest = chain.segments
        self.encoder.sealed = [Sealed(s.name, s.next_index - 1, s.end) for s in older]
        self._hard = chain.newest_slot.hard
        self._generation = chain.newest_slot.generation
        with self._io, self._guard():
            self._remove(chain.leftovers)
            file = self._fs.open(self._directory / newest.name, writable=True)
            place = Place(newest.header, newest.end, newest.end, chain.last_crc)
            self._active = _Active(place, file, list(chain.slots))
            if chain.torn is not None:
                # Left in place, a valid record of the torn batch could stand behind a new one.
                file.pwrite(bytes(chain.torn.size_bytes), chain.torn.offset)
            # Written once more: a sync that failed before the restart may have left these bytes in
            # the page cache, clean, and not on the disk. Only a new write makes the next sync true.
            offset, unsynced = chain.unsynced
            if unsynced:
                file.pwrite(unsynced, offset)
            self._sync(file)
            self._write_slots_both(self._active)

    # -- owner's side -----------------------------------------------------------------------------

    def encode(self, operations: Iterable[Operation]) -> Batch:
        """The operations as a batch at the end of the log. The batch before must be finished."""
        return self.encoder.encode(operations, self._require_active().place)

    def finish(self, batch: Batch) -> None:
        """Take note that `batch` is durable."""
        place = self._require_active().place
        place.end = place.synced = batch.end
        place.last_crc = batch.last_crc

    @property
    def room_bytes(self) -> int:
        """What still fits the newest segment."""
        place = self._require_active().place
        return place.header.size - place.end

    @property
    def reserve_room_bytes(self) -> int:
        """What records may take of the reserve, once it is a segment; 0 when it is used."""
        return self._settings.reserve_bytes - PAGE_BYTES if self._has_reserve else 0

    @property
    def hard_state(self) -> HardState:
        return self._hard

    @property
    def wants_spare(self) -> bool:
        """More than half of the newest segment is used and no successor is ready."""
        if self._active is None or self._is_closed:
            return False
        place = self._active.place
        return self.is_full or (not self._has_spare and place.end * 2 > place.header.size)

    @property
    def wants_mark(self) -> bool:
        """Bytes are durable that no slot speaks of."""
        active = self._active
        return (
            active is not None and not self._is_closed and active.place.synced > active.marked_upto
        )

    @property
    def used_bytes(self) -> int:
        """Bytes in use by records and header pages."""
        place = self._require_active().place
        return sum(sealed.used_bytes for sealed in self.encoder.sealed) + place.end

    # -- I/O side ---------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Make the batch durable; nothing if it is already. Any thread.

        Raises OutOfSpace (the unwritten part was not touched: may be called again) and SyncFailed
        (fatal).
        """
        with self._io, self._guard():
            if not batch.is_written:
                self._write_batch(batch)
                batch.is_written = True

    def write_hard_state(self, hard: HardState) -> None:
        """Make term and vote durable before returning. Any thread; two syncs."""
        with self._io, self._guard():
            self._hard = hard
            self._write_slots_both(self._require_active())

    def write_mark(self) -> None:
        """Store how far the newest segment is durable. Any thread; one sync, or none."""
        with self._io, self._guard():
            if self.wants_mark:
                active = self._require_active()
                self._write_slot(active, active.place.synced)

    def prepare_spare(self) -> bool:
        """Have the next segment's file and the reserve ready; False without room. Any thread."""
        with self._preparing:
            with self._io, self._guard():
                has_reserve = self._fs.exists(self._directory / RESERVE_NAME)
                has_spare = self._has_spare
            if self.is_short and self._lacks_room(has_reserve=has_reserve, has_spare=has_spare):
                # Found out without filling the disk with zeros once a second.
                return False
            try:
                # Outside the I/O lock: this takes as long as writing a whole segment.
                if not has_reserve:
                    self._make_zeros(RESERVE_NAME, self._settings.reserve_bytes)
                    with self._io:
                        # A batch may have taken it meanwhile.
                        self._has_reserve = self._fs.exists(self._directory / RESERVE_NAME)
                if not has_spare:
                    self._make_zeros(SPARE_NAME, self._settings.segment_bytes)
            except OSError as error:
                if error.errno in NO_SPACE_ERRNOS:
                    self.is_short = True
                    return False
                with self._io, self._guard():
                    raise
            with self._io:
                self._has_spare = True
                self.is_full = self.is_short = False
            return True

    def _lacks_room(self, *, has_reserve: bool, has_spare: bool) -> bool:
        needed = self._settings.segment_bytes if has_reserve else self._settings.reserve_bytes
        return not (has_reserve and has_spare) and self._fs.free_bytes(self._directory) < needed

    def ensure_reserve(self) -> None:
        """Make the reserve if it is missing; without room for it the store counts as full."""
        with self._io, self._guard():
            self._has_reserve = self._fs.exists(self._directory / RESERVE_NAME)
            if self._has_reserve:
                return
            try:
                self._make_zeros(RESERVE_NAME, self._settings.reserve_bytes)
                self._has_reserve = True
            except OSError as error:
                if error.errno not in NO_SPACE_ERRNOS:
                    raise
                self.is_full = True

    def close(self) -> None:
        """Close the files. Idempotent. Any thread."""
        with self._io:
            self._is_closed = True
            if self._active is not None:
                self._active.file.close()

    # -- under the I/O lock -----------------------------------------------------------------------

    def _write_batch(self, batch: Batch) -> None:
        for piece in batch.pieces:
            if piece.is_done:
                continue
            if piece.opens is not None:
                self._open_segment(piece.opens, PAGE_BYTES + len(piece.data))
            if piece.data:
                file = self._require_active().file
                file.pwrite(piece.data, piece.offset)
                self._sync(file)
            piece.is_done = True
        for name in batch.obsolete:
            self._remove([name])

    def _open_segment(self, header: SegmentHeader, needed: int) -> None:
        """Make `header`'s segment the newest. Raises OutOfSpace with nothing changed."""
        aside, size = self._take_file(needed)
        header = replace(header, size=size)
        slots = self._new_slots()
        file = self._fs.open(aside, writable=True)
        file.pwrite(encode_page(header, slots), 0)
        self._sync(file)
        self._fs.rename(aside, self._directory / segment_name(header.sequence))
        self._fs.sync_directory(self._directory)
        old = self._active
        self._active = _Active(Place(header, PAGE_BYTES, PAGE_BYTES, 0), file, list(slots))
        if old is not None:
            # From here on a missing successor is noticed.
            self._write_slot(old, header.previous_end, is_sealed=True)
            old.file.close()

    def _take_file(self, needed: int) -> tuple[Path, int]:
        """A file of zeros for the next segment: the spare, a new one, or else the reserve."""
        if self._has_spare:
            self._has_spare = False
            return self._directory / SPARE_NAME, self._settings.segment_bytes
        aside = self._directory / _NEXT_NAME
        try:
            self._make_zeros(_NEXT_NAME, self._settings.segment_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                raise
            self.is_full = True
            reserve = self._directory / RESERVE_NAME
            size = self._fs.size(reserve) if self._fs.exists(reserve) else 0
            if needed > size:
                raise OutOfSpace(
                    f"{self._directory}: no room for another segment", path=self._directory
                ) from error
            # It holds zeros that are on the disk already: it becomes the segment itself.
            self._fs.rename(reserve, aside)
            self._has_reserve = False
            return aside, size
        self.is_short = False
        return aside, self._settings.segment_bytes

    def _make_zeros(self, name: str, size: int) -> None:
        making = self._directory / f"{name}.making.tmp"
        file = self._fs.create(making)
        try:
            file.allocate(size)
            file.sync()
        except OSError:
            file.close()
            self._fs.remove(making)
            raise
        file.close()
        self._fs.rename(making, self._directory / name)

    def _write_slots_both(self, active: _Active) -> None:
        upto = max(active.marked_upto, active.place.synced)
        self._write_slot(active, upto)
        self._write_slot(active, upto)

    def _write_slot(self, active: _Active, synced_upto: int, *, is_sealed: bool = False) -> None:
        """Write over the older or invalid slot, durable on return."""
        ages = [slot.generation if slot else -1 for slot in active.slots]
        place = ages.index(min(ages))
        self._generation += 1
        slot = Slot(
            generation=self._generation,
            synced_upto=synced_upto,
            hard=self._hard,
            is_sealed=is_sealed,
        )
        seed, offset = active.place.header.seed, SLOT_OFFSETS[place]
        active.file.pwrite(encode_slot(slot, seed=seed, offset=offset), offset)
        self._sync(active.file)
        active.slots[place] = slot

    def _new_slots(self) -> tuple[Slot, Slot]:
        self._generation += 2
        first, second = self._generation - 1, self._generation
        return (
            Slot(generation=first, synced_upto=PAGE_BYTES, hard=self._hard),
            Slot(generation=second, synced_upto=PAGE_BYTES, hard=self._hard),
        )

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._fs.remove(self._directory / name)
            self._fs.sync_directory(self._directory)

    def _sync(self, file: File) -> None:
        file.sync()
        self.sync_count += 1

    # -- state ------------------------------------------------------------------------------------

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Refuse after a failure or `close`; turn an OSError into the fatal SyncFailed."""
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise Closed(f"{self._directory} is closed", path=self._directory)
        try:
            yield
        except OSError as error:
            self._failure = SyncFailed(
                f"{self._directory}: a write or sync failed ({error}); what is on disk is unknown",
                path=self._directory,
            )
            raise self._failure from error

    def _require_active(self) -> _Active:
        if self._active is None or self._is_closed:
            raise Closed(f"{self._directory} is closed", path=self._directory)
        return self._active
