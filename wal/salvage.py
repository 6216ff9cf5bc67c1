"""Reading a damaged directory of segments for all that still verifies. For keyed stores.

Where `recovery` refuses, this skips to the next record that verifies and leaves a `Hole`. What a
crash can leave is told apart in the same way: behind what was durable, a bad place is a torn tail
and is cut, before it is a hole. A segment whose header is lost in both copies cannot be verified at
all; it is named in `unreadable`. Read-only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from wal.errors import Corrupt
from wal.files import FileSystem
from wal.frame import Frame, FrameReader, declared_payload, find_frames, is_zero
from wal.identity import Identity
from wal.recovery import Chain, SegmentFacts, TornTail, check_frame, read_page
from wal.segment import (
    SLOT_OFFSETS,
    HardState,
    SegmentHeader,
    Slot,
    check_owner,
    decode_header,
    decode_slots,
    sequence_of,
)
from wal.settings import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes that were durable and hold no valid record."""

    name: str
    offset: int
    #: Bytes up to the next valid record or to where it was durable; 0 if that is not known.
    size_bytes: int = 0
    #: The payload that the first damaged record's header claims, unverified.
    claimed: bytes = b""

    def __str__(self) -> str:
        return f"{self.name} at offset {self.offset}"


@dataclass(slots=True)
class SalvagedSegment:
    """One segment's records and holes, in order."""

    name: str
    header: SegmentHeader
    items: list[Frame | Hole] = field(default_factory=list)


@dataclass(slots=True)
class Salvaged:
    """All that could be read."""

    segments: list[SalvagedSegment] = field(default_factory=list)
    #: Files whose header is lost.
    unreadable: list[str] = field(default_factory=list)
    #: How to go on; None if the newest segment is unreadable or there is none.
    chain: Chain | None = None
    leftovers: list[str] = field(default_factory=list)
    #: Sequence of the newest file, readable or not; 0 if there is none.
    newest_sequence: int = 0


def salvage(fs: FileSystem, directory: Path, *, identity: Identity, kind: int) -> Salvaged:
    """Read what there is. Raises WrongIdentity, UnsupportedVersion, OSError; never Corrupt."""
    names = fs.names(directory)
    result = Salvaged(leftovers=[name for name in names if name.endswith(".tmp")])
    headers: list[tuple[str, SegmentHeader]] = []
    for name in names:
        sequence = sequence_of(name)
        if sequence is None:
            continue
        result.newest_sequence = sequence
        path = directory / name
        try:
            header = decode_header(read_page(fs, path), path, use_copy=True)
        except Corrupt:
            result.unreadable.append(name)
            continue
        check_owner(header, path, identity=identity, kind=kind)
        headers.append((name, header))
    for (name, header), following in zip(headers, [*headers[1:], None], strict=False):
        successor = following[1] if following else None
        segment = SalvagedSegment(name, header)
        result.segments.append(segment)
        is_newest = header.sequence == result.newest_sequence
        if successor is not None and successor.sequence != header.sequence + 1:
            successor = None
        raw = fs.read(directory / name)
        buffer = raw.ljust(header.size, b"\0")
        reach = _Reach(buffer, header, successor)
        _walk(buffer, segment, reach, directory / name)
        if len(raw) < header.size:
            segment.items.append(Hole(name, len(raw)))
        elif not any(reach.slots):
            # The mark is lost: more may have been durable than anything left says.
            segment.items.append(Hole(name, SLOT_OFFSETS[0]))
        if is_newest:
            result.chain = _chain(segment, buffer, reach, is_short=len(raw) < header.size)
    return result


class _Reach:
    """How far a segment was durable, and where its valid records end."""

    def __init__(
        self, buffer: bytes, header: SegmentHeader, successor: SegmentHeader | None
    ) -> None:
        self.slots = decode_slots(buffer, seed=header.seed)
        self.durable = successor.previous_end if successor else PAGE_BYTES
        for slot in self.slots:
            if slot is not None:
                self.durable = max(self.durable, slot.synced_upto)
        reader = FrameReader(buffer, seed=header.seed, start=PAGE_BYTES)
        for _ in reader:
            pass
        self.durable = max(self.durable, reader.synced_upto)
        for frame in find_frames(buffer, seed=header.seed, start=reader.end):
            self.durable = max(self.durable, frame.synced_upto)
        self.end = PAGE_BYTES
        self.last_crc = 0


def _walk(buffer: bytes, segment: SalvagedSegment, reach: _Reach, path: Path) -> None:
    """Collect the segment's records, and the holes where it was durable."""
    seed = segment.header.seed
    while True:
        reader = FrameReader(buffer, seed=seed, start=reach.end)
        for frame in reader:
            check_frame(frame, path)
            segment.items.append(frame)
        reach.end = reader.end
        reach.last_crc = reader.last_crc or reach.last_crc
        if reach.end >= reach.durable:
            return
        start, claimed = reach.end, declared_payload(buffer, reach.end, limit_bytes=len(buffer))
        following = next(find_frames(buffer, seed=seed, start=reach.end), None)
        if following is None or following.offset >= reach.durable:
            # Nothing durable is readable behind the hole: go on where it was known to end.
            reach.end = (reach.durable + 7) & ~7
        else:
            reach.end = following.offset
        segment.items.append(Hole(segment.name, start, reach.end - start, claimed))
        if following is None or following.offset != reach.end:
            return


def _chain(segment: SalvagedSegment, buffer: bytes, reach: _Reach, *, is_short: bool) -> Chain:
    torn = None
    if is_short:
        # Writing the zeros gives the file its size back.
        torn = TornTail(segment.name, reach.end, segment.header.size - reach.end)
    elif not is_zero(buffer, reach.end):
        torn = TornTail(segment.name, reach.end, len(buffer.rstrip(b"\0")) - reach.end)
    slots = reach.slots
    if not any(slots):
        slots = (Slot(generation=0, synced_upto=PAGE_BYTES, hard=HardState()), None)
    chain = Chain(torn=torn, slots=slots, last_crc=reach.last_crc)
    start = min(max(reach.durable, PAGE_BYTES), reach.end)
    chain.unsynced = (start, buffer[start : reach.end])
    chain.segments = [SegmentFacts(segment.name, segment.header, reach.end, 0)]
    return chain
