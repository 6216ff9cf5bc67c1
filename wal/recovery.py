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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from wal.errors import Corrupt, UnsupportedVersion
from wal.files import FileSystem
from wal.frame import (
    RECORD_VERSION,
    Frame,
    FrameReader,
    find_frames,
    is_zero,
)
from wal.identity import Identity
from wal.segment import (
    SegmentHeader,
    Slot,
    check_owner,
    decode_header,
    decode_slots,
    segment_name,
    sequence_of,
)
from wal.settings import PAGE_BYTES

#: Called with every record in order. It may raise Corrupt without a place by raising ValueError.
Visit = Callable[[Frame], None]
#: Called when the first segment that counts is known, before its records.
Begin = Callable[[SegmentHeader], None]

_MISSING: Final = "the segment is missing"


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
    #: The index expected next behind it; set by the caller of `recover` through `Cursor`.
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
    begin: Begin,
    visit: Visit,
    next_index: Callable[[], int],
) -> Chain:
    """Read every segment in order, give each record to `visit`, and say what was found.

    `next_index` answers the index expected after the records visited so far. Raises Corrupt with
    the exact place, UnsupportedVersion, WrongIdentity. An empty directory gives an empty chain.
    """
    found, leftovers = _find_chain(fs, directory, identity=identity, kind=kind)
    chain = Chain(leftovers=leftovers)
    for position, segment in enumerate(found):
        successor = found[position + 1].header if position + 1 < len(found) else None
        if position == 0:
            begin(segment.header)
        elif segment.header.next_index != next_index():
            raise Corrupt(
                f"starts at index {segment.header.next_index}, but {next_index()} comes next",
                path=segment.path,
                offset=0,
            )
        buffer = fs.read(segment.path)
        reader = _visit_records(buffer, segment, visit)
        if len(buffer) != segment.header.size:
            raise Corrupt(
                f"the file has {len(buffer)} bytes instead of {segment.header.size}",
                path=segment.path,
                offset=min(reader.end, len(buffer)),
            )
        if successor is not None:
            _check_sealed(buffer, segment, reader, successor)
        else:
            _judge_tail(buffer, segment, reader, chain)
        chain.segments.append(SegmentFacts(segment.name, segment.header, reader.end, next_index()))
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
    fs: FileSystem, directory: Path, *, identity: Identity, kind: int
) -> tuple[list[_Found], list[str]]:
    """The gapless run of segments that ends with the newest, and the names in front of it."""
    names = fs.names(directory)
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


def _visit_records(buffer: bytes, segment: _Found, visit: Visit) -> FrameReader:
    reader = FrameReader(buffer, seed=segment.header.seed, start=PAGE_BYTES)
    frame: Frame | None = None
    try:
        for frame in reader:
            if frame.version != RECORD_VERSION:
                check_frame(frame, segment.path)
            visit(frame)
    except ValueError as error:
        offset = frame.offset if frame else PAGE_BYTES
        raise Corrupt(str(error), path=segment.path, offset=offset) from error
    return reader


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


def _judge_tail(buffer: bytes, segment: _Found, reader: FrameReader, chain: Chain) -> None:
    """Decide what the end of the newest segment is, and fill in `chain`."""
    slots = decode_slots(buffer, seed=segment.header.seed)
    if not any(slots):
        raise Corrupt(
            "neither slot of the header page verifies: term and vote are unknown",
            path=segment.path,
            offset=1024,
        )
    chain.slots, chain.last_crc = slots, reader.last_crc
    newest = chain.newest_slot
    if newest.is_sealed:
        missing = segment.path.with_name(segment_name(segment.header.sequence + 1))
        raise Corrupt(_MISSING, path=missing)
    synced = max(reader.synced_upto, newest.synced_upto)
    if not is_zero(buffer, reader.end):
        witnesses: Sequence[Frame] = list(
            find_frames(buffer, seed=segment.header.seed, start=reader.end)
        )
        synced = max([synced, *(frame.synced_upto for frame in witnesses)])
        chain.torn = TornTail(segment.name, reader.end, len(buffer.rstrip(b"\0")) - reader.end)
    if synced > reader.end:
        raise Corrupt(
            f"damaged record: the valid ones end at {reader.end}, but they were durable, and may "
            f"have been acknowledged, up to {synced}",
            path=segment.path,
            offset=reader.end,
        )
    chain.unsynced = (synced, buffer[synced : reader.end])
