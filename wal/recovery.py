"""Opening after a crash: what is a torn tail, what is damage, and what is left over.

A crash can leave, per operation of writer.py:

- a batch: any subset of its bytes behind the last durable record of the newest segment, because the
  segment was zeros there before. Nothing of it was acknowledged. Such a torn tail is cut.
- a new segment: `spare.tmp`, or the finished file under its name with no record in it. Its
  predecessor was durable before, so a predecessor that ends early is damage, not a crash.
- dropped segments: any subset of them still there. The BASE or RESET record that gave them up was
  durable before, so those in front of a gap in the chain are left over, if the rest is complete.
- a slot: one of the two invalid, the other with the same or the older hard state (segment.py).

A checksum alone cannot tell "torn, never acknowledged" from "acknowledged, then damaged" in the
last records. So every record says how far the segment was durable when it was encoded, the mark
slot says it for the last batch, and valid records *behind* a bad place are heard as witnesses too.
If any of them claims more than can be read, acknowledged data is lost and opening is refused (what
remains undecidable: docs/wal-format.md).

Read-only: nothing here writes, so that `check` can run beside a live writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from wal.errors import Corrupt, UnsupportedVersion
from wal.files import FileSystem
from wal.frame import (
    RECORD_VERSION,
    Entry,
    Frame,
    FrameReader,
    find_frames,
    is_zero,
)
from wal.identity import Identity
from wal.segment import (
    SLOT_OFFSETS,
    SegmentHeader,
    Slot,
    check_owner,
    decode_header,
    decode_slots,
    segment_name,
    sequence_of,
)
from wal.settings import PAGE_BYTES

_MISSING: Final = "the segment is missing"
#: Looks at a segment that grows while it is read.
_LOOKS_MAX: Final = 5


class Visitor(Protocol):
    """Who is told what recovery reads, in order."""

    @property
    def next_index(self) -> int:
        """The index expected after the records visited so far."""
        ...

    def begin(self, header: SegmentHeader) -> None:
        """The oldest segment that counts; before its records."""
        ...

    def bulk(self) -> list[Entry] | None:
        """A list that takes entries in order instead of `visit`; None to be asked for each."""
        ...

    def enter(self, name: str) -> None:
        """The records that follow are of this segment."""
        ...

    def visit(self, frame: Frame) -> None:
        """One record. ValueError for one that cannot stand here."""
        ...


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes of the newest segment that a crash left half-written and nobody was told of."""

    name: str
    #: Where the last valid record ends, and the bytes from there that are not zero.
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment as found."""

    name: str
    header: SegmentHeader
    #: Offset behind the last valid record.
    end: int
    #: The index expected next behind it.
    next_index: int


@dataclass(slots=True)
class Chain:
    """All that recovery found in a directory of segments."""

    segments: list[SegmentFacts] = field(default_factory=list)
    #: Names of files that count no longer: segments in front of a gap, unfinished files.
    leftovers: list[str] = field(default_factory=list)
    torn: TornTail | None = None
    #: The newest segment's slots; at least one is valid.
    slots: tuple[Slot | None, Slot | None] = (None, None)
    #: Bytes of the newest segment from the last known durable place to its end.
    unsynced: tuple[int, bytes] = (PAGE_BYTES, b"")
    last_crc: int = 0

    @property
    def newest_slot(self) -> Slot:
        """The slot that counts."""
        return max((slot for slot in self.slots if slot), key=lambda slot: slot.generation)


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    path: Path
    header: SegmentHeader


def recover(
    fs: FileSystem,
    directory: Path,
    *,
    identity: Identity,
    kind: int,
    visitor: Visitor,
    names: Sequence[str] | None = None,
) -> Chain:
    """Read every segment in order, give each record to `visitor`, and say what was found.

    `names` limits it to some files. Raises Corrupt with the exact place, UnsupportedVersion,
    WrongIdentity. An empty directory gives an empty chain.
    """
    names = fs.names(directory) if names is None else names
    found, leftovers = _find_chain(fs, directory, names, identity=identity, kind=kind)
    chain = Chain(leftovers=leftovers)
    for position, segment in enumerate(found):
        header = segment.header
        successor = found[position + 1].header if position + 1 < len(found) else None
        if position == 0:
            visitor.begin(header)
        elif header.next_index != visitor.next_index:
            raise Corrupt(
                f"starts at index {header.next_index}, but {visitor.next_index} comes next",
                path=segment.path,
                offset=0,
            )
        visitor.enter(segment.name)
        buffer = fs.read(segment.path)
        reader = FrameReader(buffer, seed=header.seed, start=PAGE_BYTES)
        _visit_records(reader, segment, visitor)
        _check_size(buffer, segment, reader)
        if successor is not None:
            _check_sealed(buffer, segment, reader, successor)
        else:
            buffer, reader = _reread_tail(fs, buffer, segment, reader, visitor)
            _judge_tail(fs, buffer, segment, reader, chain)
        end, next_index = reader.end, visitor.next_index
        chain.segments.append(SegmentFacts(segment.name, header, end, next_index))
    return chain


def read_page(fs: FileSystem, path: Path) -> bytes:
    """The header page of a segment file."""
    file = fs.open(path, writable=False)
    try:
        return file.pread(PAGE_BYTES, 0)
    finally:
        file.close()


def check_frame(frame: Frame, path: Path) -> None:
    """Raise UnsupportedVersion for a record that a newer release wrote."""
    if frame.version != RECORD_VERSION:
        raise UnsupportedVersion(
            f"{path} holds a record of format {frame.version} at offset {frame.offset}; "
            f"this release reads {RECORD_VERSION}",
            path=path,
            offset=frame.offset,
        )


def _find_chain(
    fs: FileSystem, directory: Path, names: Sequence[str], *, identity: Identity, kind: int
) -> tuple[list[_Found], list[str]]:
    """The gapless run of segments that ends with the newest, and the names in front of it."""
    leftovers = [name for name in names if name.endswith(".tmp")]
    found: list[_Found] = []
    numbered = sorted(
        (sequence, name) for name in names if (sequence := sequence_of(name)) is not None
    )
    for sequence, name in reversed(numbered):
        if found and found[-1].header.sequence != sequence + 1:
            leftovers.extend(name for other, name in numbered if other <= sequence)
            break
        path = directory / name
        header = decode_header(read_page(fs, path), path)
        check_owner(header, path, identity=identity, kind=kind)
        if header.sequence != sequence:
            raise Corrupt(f"the header says segment {header.sequence}", path=path, offset=0)
        found.append(_Found(name, path, header))
    found.reverse()
    return found, leftovers


def _visit_records(reader: FrameReader, segment: _Found, visitor: Visitor) -> None:
    place = reader.end
    sink = visitor.bulk()
    try:
        while True:
            if sink is not None:
                reader.take_entries(visitor.next_index, sink)
            for frame in reader:
                place = frame.offset
                check_frame(frame, segment.path)
                visitor.visit(frame)
                if sink is not None:
                    break
            else:
                return
    except ValueError as error:
        raise Corrupt(str(error), path=segment.path, offset=place) from error


def _check_size(buffer: bytes, segment: _Found, reader: FrameReader) -> None:
    if len(buffer) != segment.header.size:
        raise Corrupt(
            f"the file has {len(buffer)} bytes instead of {segment.header.size}",
            path=segment.path,
            offset=min(reader.end, len(buffer)),
        )


def _check_sealed(
    buffer: bytes, segment: _Found, reader: FrameReader, successor: SegmentHeader
) -> None:
    """A segment with a successor was durable to its last byte before that was created."""
    if reader.end != successor.previous_end or reader.last_crc != successor.previous_crc:
        raise Corrupt(
            f"damaged record: the valid ones end at {reader.end}, but the next segment says that "
            f"they went to {successor.previous_end}",
            path=segment.path,
            offset=reader.end,
        )
    if not is_zero(buffer, reader.end):
        raise Corrupt("bytes behind the last record", path=segment.path, offset=reader.end)


def _reread_tail(
    fs: FileSystem, buffer: bytes, segment: _Found, reader: FrameReader, visitor: Visitor
) -> tuple[bytes, FrameReader]:
    """Look again while the newest segment looks torn and grows: `check` may run beside a writer.

    Reading a file is not atomic: its later part may hold records that were written after its
    earlier part had been read. With the lock held nothing grows, and the first look stands.
    """
    for _ in range(_LOOKS_MAX):
        if is_zero(buffer, reader.end):
            break
        fresh = fs.read(segment.path)
        more = FrameReader(fresh, seed=segment.header.seed, start=reader.end)
        more.synced_upto, more.last_crc = reader.synced_upto, reader.last_crc
        _visit_records(more, segment, visitor)
        grew = more.end > reader.end
        buffer, reader = fresh, more
        if not grew:
            break
    return buffer, reader


def _judge_tail(
    fs: FileSystem, buffer: bytes, segment: _Found, reader: FrameReader, chain: Chain
) -> None:
    """Decide what the end of the newest segment is, and fill in `chain`."""
    seed = segment.header.seed
    slots = decode_slots(buffer, seed=seed)
    if not any(slots):
        raise Corrupt(
            "neither slot of the header page verifies: term and vote are unknown",
            path=segment.path,
            offset=SLOT_OFFSETS[0],
        )
    chain.slots, chain.last_crc = slots, reader.last_crc
    newest = chain.newest_slot
    successor = segment.path.with_name(segment_name(segment.header.sequence + 1))
    # It may have appeared since the names were read, if a writer is at work.
    if newest.is_sealed and not fs.exists(successor):
        raise Corrupt(_MISSING, path=successor)
    synced = max(reader.synced_upto, newest.synced_upto)
    if not is_zero(buffer, reader.end):
        witnesses = find_frames(buffer, seed=seed, start=reader.end)
        synced = max([synced, *(frame.synced_upto for frame in witnesses)])
        size = len(buffer.rstrip(b"\0")) - reader.end
        chain.torn = TornTail(segment.name, reader.end, size)
    if synced > reader.end:
        raise Corrupt(
            f"damaged record: the valid ones end at {reader.end}, but they were durable, and may "
            f"have been acknowledged, up to {synced}",
            path=segment.path,
            offset=reader.end,
        )
    chain.unsynced = (synced, buffer[synced : reader.end])
