"""Turns operations into the bytes of one batch, across segment borders. Pure but for the seeds.

The encoder knows where the log stands after everything encoded so far: the next index and the base
go into a new segment's header, and segments without a live entry are found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from wal.frame import Operation, RecordType, encode_frame, frame_bytes
from wal.identity import Identity
from wal.segment import SegmentHeader, segment_name
from wal.settings import PAGE_BYTES


@dataclass(slots=True)
class Piece:
    """Consecutive records of one segment; `opens` is the header of the segment they begin."""

    offset: int
    data: bytes = b""
    opens: SegmentHeader | None = None
    is_done: bool = False


@dataclass(slots=True)
class Batch:
    """What one `write` makes durable. Opaque to callers of the log."""

    pieces: list[Piece]
    #: Where the newest segment ends afterwards, and the checksum of its last record.
    end: int
    last_crc: int
    #: Segments nobody needs once the batch is durable, oldest first.
    obsolete: list[str]
    #: Highest index that is durable with it; lowered by a truncation that comes after.
    last_index: int = 0
    is_written: bool = False
    is_finished: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(len(piece.data) for piece in self.pieces)


@dataclass(slots=True)
class Sealed:
    """A segment that is complete."""

    name: str
    #: No live entry in it has a higher index.
    last_index: int
    #: Bytes used, header page included.
    used_bytes: int


@dataclass(slots=True)
class Place:
    """Where the next record goes."""

    header: SegmentHeader
    end: int
    #: Bytes of this segment known durable.
    synced: int
    last_crc: int


@dataclass(slots=True)
class Encoder:
    """One per store; used by the owner's side only."""

    identity: Identity
    kind: int
    store_id: bytes
    segment_bytes: int
    #: Gives the seed of a new segment.
    entropy: Callable[[int], bytes]
    next_index: int = 1
    base_index: int = 0
    base_term: int = 0
    sealed: list[Sealed] = field(default_factory=list)

    def encode(self, operations: Iterable[Operation], place: Place) -> Batch:
        """The operations as a batch that begins at `place`, which is left as it was."""
        header, offset, synced, last_crc = place.header, place.end, place.synced, place.last_crc
        pieces, parts = [Piece(offset)], list[bytes]()
        for operation in operations:
            needed = frame_bytes(len(operation.payload))
            if offset + needed > header.size:
                pieces[-1].data = b"".join(parts)
                header = self._seal(header, end=offset, last_crc=last_crc)
                offset = synced = PAGE_BYTES
                pieces.append(Piece(offset, opens=header))
                parts.clear()
            data = encode_frame(operation, seed=header.seed, offset=offset, synced_upto=synced)
            parts.append(data)
            last_crc = int.from_bytes(data[:4], "little")
            offset += needed
            self._move(operation)
        pieces[-1].data = b"".join(parts)
        return Batch(pieces, offset, last_crc, self._take_obsolete())

    def new_header(
        self, *, sequence: int, previous_end: int = 0, previous_crc: int = 0
    ) -> SegmentHeader:
        """The header of a segment that begins here."""
        return SegmentHeader(
            sequence=sequence,
            seed=int.from_bytes(self.entropy(4), "little"),
            size=self.segment_bytes,
            previous_end=previous_end,
            previous_crc=previous_crc,
            next_index=self.next_index,
            base_index=self.base_index,
            base_term=self.base_term,
            identity=self.identity,
            kind=self.kind,
            store_id=self.store_id,
        )

    def _seal(self, header: SegmentHeader, *, end: int, last_crc: int) -> SegmentHeader:
        name = segment_name(header.sequence)
        self.sealed.append(Sealed(name, self.next_index - 1, end))
        return self.new_header(
            sequence=header.sequence + 1, previous_end=end, previous_crc=last_crc
        )

    def _move(self, operation: Operation) -> None:
        kind, index, term, _ = operation
        if kind == RecordType.TRUNCATE:
            self.next_index = index
            for sealed in self.sealed:
                sealed.last_index = min(sealed.last_index, index - 1)
        elif kind == RecordType.RESET:
            self.next_index = index + 1
            self.base_index, self.base_term = index, term
            for sealed in self.sealed:
                sealed.last_index = 0
        elif kind == RecordType.BASE:
            self.base_index, self.base_term = index, term
        elif kind != RecordType.COMMIT:
            self.next_index = index + 1

    def _take_obsolete(self) -> list[str]:
        obsolete = []
        while self.sealed and self.sealed[0].last_index <= self.base_index:
            obsolete.append(self.sealed.pop(0).name)
        return obsolete
