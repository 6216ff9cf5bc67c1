"""One record as bytes. Pure.

Layout, little-endian, each record starting at a multiple of 8:

    0  u32  crc32 of bytes 4 .. end (padding included), started from `seed ^ offset`
    4  u16  magic 0xC0DE
    6  u8   type
    7  u8   version of the record format
    8  u32  length of the payload
    12 u32  synced_upto: bytes of this segment known durable when the record was encoded
    16 u64  index
    24 u64  term
    32      payload, then zeros up to a multiple of 8

The seed is random per segment and the offset is the record's own, so a record verifies in one place
only: bytes that were moved, doubled, or left over in a recycled block never do. Each record can be
verified alone, which is what makes searching behind damage for a witness possible (recovery.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

_HEADER: Final = Struct("<IHBBIIQQ")
_REST: Final = Struct("<HBBIIQQ")
HEADER_BYTES: Final = _HEADER.size
_MAGIC: Final = 0xC0DE
_MAGIC_BYTES: Final = b"\xde\xc0"
RECORD_VERSION: Final = 1
_ZEROS: Final = bytes(1 << 16)
#: The header with magic, type and version as one number, and that number of an entry.
_TAGGED: Final = Struct("<IIIIQQ")
_ENTRY_TAG: Final = _MAGIC | 1 << 16 | RECORD_VERSION << 24
#: Bytes of the header that the checksum covers.
_BODY_BYTES: Final = HEADER_BYTES - 4


class RecordType(IntEnum):
    """What a record means. Numbers are for ever: appended to, never reused."""

    #: One log entry.
    ENTRY = 1
    #: Entries from `index` on are dropped.
    TRUNCATE = 2
    #: Entries up to `index` (whose term is `term`) are no longer needed.
    BASE = 3
    #: Everything is dropped; the log goes on behind `index`, `term`.
    RESET = 4
    #: `index` was known committed. A hint.
    COMMIT = 5
    #: A key's value (keyed.py).
    PUT = 6
    #: A key's end (keyed.py).
    DELETE = 7


class Entry(NamedTuple):
    """One entry of the log."""

    payload: bytes
    index: int  # type: ignore[assignment] # hides tuple.index, which nobody needs here
    term: int


class Operation(NamedTuple):
    """A record before it has a place. `type` may be unknown to this release when read back."""

    type: int
    index: int  # type: ignore[assignment] # hides tuple.index, which nobody needs here
    term: int
    payload: bytes


class Frame(NamedTuple):
    """A verified record and where it stands."""

    type: int
    index: int  # type: ignore[assignment] # hides tuple.index, which nobody needs here
    term: int
    payload: bytes
    offset: int
    end: int
    synced_upto: int
    crc: int
    version: int


def frame_bytes(payload_bytes: int) -> int:
    """Bytes on disk of a record with a payload of that size."""
    return (HEADER_BYTES + payload_bytes + 7) & ~7


def encode_frame(operation: Operation, *, seed: int, offset: int, synced_upto: int) -> bytes:
    """The record's bytes for exactly this offset of exactly this segment."""
    kind, index, term, payload = operation
    length = len(payload)
    body = (
        _REST.pack(_MAGIC, kind, RECORD_VERSION, length, synced_upto, index, term)
        + payload
        + bytes(-(HEADER_BYTES + length) & 7)
    )
    return crc32(body, seed ^ offset).to_bytes(4, "little") + body


class FrameReader:
    """Iterates the verified records of a segment from `start` to the first that is not.

    Afterwards `end` is the offset behind the last record, `synced_upto` the largest one seen, and
    `last_crc` the last record's checksum (0 without any).
    """

    def __init__(self, buffer: bytes, *, seed: int, start: int) -> None:
        self._buffer = buffer
        self._seed = seed
        self.end = start
        self.synced_upto = start
        self.last_crc = 0

    def __iter__(self) -> Iterator[Frame]:
        buffer, seed = self._buffer, self._seed
        view = memoryview(buffer)
        unpack, limit, make = _HEADER.unpack_from, len(buffer), Frame._make
        offset = self.end
        while offset + HEADER_BYTES <= limit:
            crc, magic, kind, version, length, synced, index, term = unpack(buffer, offset)
            end = offset + ((HEADER_BYTES + length + 7) & ~7)
            if magic != _MAGIC or end > limit:
                return
            if crc32(view[offset + 4 : end], seed ^ offset) != crc:
                return
            payload = buffer[offset + HEADER_BYTES : offset + HEADER_BYTES + length]
            self.end, self.last_crc = end, crc
            if synced > self.synced_upto:  # noqa: PLR1730 - max() costs a tenth of the scan
                self.synced_upto = synced
            yield make((kind, index, term, payload, offset, end, synced, crc, version))
            offset = end

    def take_entries(self, next_index: int, sink: list[Entry]) -> None:
        """Put the entries that follow in order into `sink`, up to the first other record.

        What iterating would give, without a Frame for each: this loop is most of opening a log.
        """
        buffer, seed, limit = self._buffer, self._seed, len(self._buffer)
        unpack, make, add = _TAGGED.unpack_from, tuple.__new__, sink.append
        offset, last_crc, last_synced = self.end, self.last_crc, self.synced_upto
        while offset + HEADER_BYTES <= limit:
            crc, tag, length, synced, index, term = unpack(buffer, offset)
            end = offset + ((HEADER_BYTES + length + 7) & ~7)
            if tag != _ENTRY_TAG or index != next_index or end > limit:
                break
            # A copy is quicker than a view at the usual sizes.
            body = buffer[offset + 4 : end]
            if crc32(body, seed ^ offset) != crc:
                break
            add(make(Entry, (body[_BODY_BYTES : _BODY_BYTES + length], index, term)))
            last_crc, last_synced = crc, synced
            next_index += 1
            offset = end
        self.end, self.last_crc = offset, last_crc
        # A later record never claims less.
        self.synced_upto = max(self.synced_upto, last_synced)


def find_frames(buffer: bytes, *, seed: int, start: int) -> Iterator[Frame]:
    """Verified records anywhere behind `start`, whatever lies between: the witnesses."""
    position = start
    while (found := buffer.find(_MAGIC_BYTES, position)) >= 0:
        offset = found - 4
        frame = None
        if offset >= start and offset % 8 == 0:
            frame = next(iter(FrameReader(buffer, seed=seed, start=offset)), None)
        if frame is None:
            position = found + 1
        else:
            yield frame
            position = frame.end


def is_zero(buffer: bytes, start: int) -> bool:
    """Only zeros from `start` to the end."""
    while start < len(buffer):
        block = _ZEROS[: min(len(_ZEROS), len(buffer) - start)]
        if not buffer.startswith(block, start):
            return False
        start += len(block)
    return True


def declared_payload(buffer: bytes, offset: int, *, limit_bytes: int) -> bytes:
    """The payload a damaged record's header claims, unverified; empty if not even that."""
    if offset + HEADER_BYTES > len(buffer):
        return b""
    _, magic, _, _, length, _, _, _ = _HEADER.unpack_from(buffer, offset)
    if magic != _MAGIC or length > limit_bytes:
        return b""
    return buffer[offset + HEADER_BYTES : offset + HEADER_BYTES + length]
