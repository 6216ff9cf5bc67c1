"""A segment file's header page as bytes. Pure.

    0     header, 1024 bytes, checksummed whole: identity, place in the chain, where the log stood
    1024  slot 0, 512 bytes: hard state and mark; the newest valid slot counts
    2048  slot 1, 512 bytes: likewise, in another sector
    3072  the header once more (keyed stores recover by it; a log refuses when the first is bad)
    4096  records

A slot is never written over the newest valid one, except that a new hard state is written to both,
one after the other, before it counts. So outside such a write both slots say the same term and
vote, and losing either to a torn write or to damage cannot make a member forget its vote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from wal.errors import Corrupt, UnsupportedVersion, WrongIdentity
from wal.identity import Identity
from wal.settings import PAGE_BYTES

MAGIC: Final = b"PTXNXWAL"
FORMAT: Final = 1
_HEADER: Final = Struct("<8sIIQIIIIQQQQ16s64s64s")
_HEADER_AREA: Final = 1024
_COPY_AT: Final = 3072
_SLOT: Final = Struct("<QIIQB64s")
_SLOT_AREA: Final = 512
SLOT_OFFSETS: Final = (1024, 2048)
_SLOT_SEALED: Final = 1
_NAME: Final = re.compile(r"(\d{16})\.seg")

#: What a store is for, so that neither is opened as the other.
KIND_LOG: Final = 1
KIND_KEYED: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """What a segment says of itself; written once, before the file gets its name."""

    #: Position in the chain, from 1, without gaps.
    sequence: int
    #: Starts every checksum in this file.
    seed: int
    #: Size of the file in bytes.
    size: int
    #: Where the records of the segment before end, and the checksum of the last; 0 in the first.
    previous_end: int
    previous_crc: int
    #: The index the next entry has.
    next_index: int
    #: The entry before the log's first one: compacted away or in a snapshot.
    base_index: int
    base_term: int
    identity: Identity
    kind: int
    #: Random, the same in all segments of a store.
    store_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """What a member must never forget: its term and whom it gave its vote in it."""

    term: int = 0
    voted_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One of the two rewritable places of a header page."""

    #: Rises with every slot written in the store.
    generation: int
    #: Bytes of this segment that were durable, hence possibly acknowledged.
    synced_upto: int
    hard: HardState
    #: A successor of this segment exists.
    is_sealed: bool = False


def segment_name(sequence: int) -> str:
    return f"{sequence:016d}.seg"


def sequence_of(name: str) -> int | None:
    """The place in the chain that a file name says; None for other files."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_header(header: SegmentHeader) -> bytes:
    """The 1024 bytes at offset 0 (and 3072)."""
    owner = header.identity
    body = _HEADER.pack(
        MAGIC,
        FORMAT,
        header.size,
        header.sequence,
        header.seed,
        header.previous_end,
        header.previous_crc,
        header.kind,
        header.next_index,
        header.base_index,
        header.base_term,
        owner.incarnation,
        header.store_id,
        owner.cluster_id.encode(),
        owner.member.encode(),
    ).ljust(_HEADER_AREA - 4, b"\0")
    return body + crc32(body).to_bytes(4, "little")


def encode_slot(slot: Slot, *, seed: int, offset: int) -> bytes:
    """The 512 bytes of a slot at that offset. ValueError for a vote above 64 bytes."""
    vote = (slot.hard.voted_for or "").encode()
    if len(vote) > 64:
        raise ValueError("voted_for is longer than 64 bytes")
    flags = _SLOT_SEALED if slot.is_sealed else 0
    body = _SLOT.pack(
        slot.generation, slot.synced_upto, flags, slot.hard.term, len(vote), vote
    ).ljust(_SLOT_AREA - 4, b"\0")
    return body + crc32(body, seed ^ offset).to_bytes(4, "little")


def encode_page(header: SegmentHeader, slots: tuple[Slot, Slot]) -> bytes:
    """The whole header page of a new segment."""
    head = encode_header(header)
    page = bytearray(PAGE_BYTES)
    page[:_HEADER_AREA] = head
    page[_COPY_AT:] = head
    for slot, offset in zip(slots, SLOT_OFFSETS, strict=True):
        page[offset : offset + _SLOT_AREA] = encode_slot(slot, seed=header.seed, offset=offset)
    return bytes(page)


def decode_header(page: bytes, path: Path, *, use_copy: bool = False) -> SegmentHeader:
    """The header of a segment. Raises Corrupt, UnsupportedVersion.

    `use_copy` falls back to the second copy when the first does not verify.
    """
    area = page[:_HEADER_AREA]
    if use_copy and not _verifies(area):
        area = page[_COPY_AT:PAGE_BYTES]
    if len(area) == _HEADER_AREA and area[:8] == MAGIC:
        version = int.from_bytes(area[8:12], "little")
        # A newer format may keep its checksum elsewhere; one flipped bit must not look like it.
        if version > FORMAT and version == int.from_bytes(
            page[_COPY_AT + 8 : _COPY_AT + 12], "little"
        ):
            raise UnsupportedVersion(
                f"{path} has format {version}; this release reads up to {FORMAT}", path=path
            )
    if not _verifies(area):
        raise Corrupt("the segment's header does not verify", path=path, offset=0)
    fields = _HEADER.unpack_from(area)
    try:
        identity = Identity(_text(fields[13]), _text(fields[14]), fields[11])
    except ValueError as error:
        raise Corrupt("the segment's header names no owner", path=path, offset=0) from error
    return SegmentHeader(
        size=fields[2],
        sequence=fields[3],
        seed=fields[4],
        previous_end=fields[5],
        previous_crc=fields[6],
        kind=fields[7],
        next_index=fields[8],
        base_index=fields[9],
        base_term=fields[10],
        identity=identity,
        store_id=fields[12],
    )


def decode_slots(page: bytes, *, seed: int) -> tuple[Slot | None, Slot | None]:
    """Both slots; None for one that does not verify."""
    first, second = (_decode_slot(page, seed=seed, offset=offset) for offset in SLOT_OFFSETS)
    return first, second


def page_blemishes(page: bytes, *, seed: int) -> list[tuple[int, str]]:
    """Offsets and descriptions of bytes of a header page that are not as written."""
    found: list[tuple[int, str]] = []
    for offset in (0, _COPY_AT):
        if not _verifies(page[offset : offset + _HEADER_AREA]):
            found.append((offset, "this copy of the segment's header does not verify"))
    slots = decode_slots(page, seed=seed)
    for slot, offset in zip(slots, SLOT_OFFSETS, strict=True):
        if slot is None:
            found.append((offset, "slot does not verify (torn by a crash, or damaged)"))
        if any(page[offset + _SLOT_AREA : offset + 1024]):
            found.append((offset + _SLOT_AREA, "unused bytes of the header page are not zero"))
    return found


def check_owner(header: SegmentHeader, path: Path, *, identity: Identity, kind: int) -> None:
    """Raise WrongIdentity unless the segment belongs to this store."""
    found = header.identity
    is_ours = (found.cluster_id, found.member) == (identity.cluster_id, identity.member)
    if header.kind != kind or not is_ours or found.incarnation > identity.incarnation:
        raise WrongIdentity(
            f"{path} belongs to member {found.member!r} of cluster {found.cluster_id!r} "
            f"(incarnation {found.incarnation}, kind {header.kind}), not to {identity}",
            path=path,
        )


def _verifies(area: bytes) -> bool:
    return len(area) == _HEADER_AREA and crc32(area[:-4]) == int.from_bytes(area[-4:], "little")


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode()


def _decode_slot(page: bytes, *, seed: int, offset: int) -> Slot | None:
    area = page[offset : offset + _SLOT_AREA]
    if len(area) < _SLOT_AREA:
        return None
    if crc32(area[:-4], seed ^ offset) != int.from_bytes(area[-4:], "little"):
        return None
    generation, synced_upto, flags, term, vote_length, vote = _SLOT.unpack_from(area)
    return Slot(
        generation=generation,
        synced_upto=synced_upto,
        hard=HardState(term=term, voted_for=vote[:vote_length].decode() or None),
        is_sealed=bool(flags & _SLOT_SEALED),
    )
