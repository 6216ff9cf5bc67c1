"""A keyed store's records, and what a directory of them amounts to. Pure.

A record's payload: u32 crc32 of the next 10 bytes and the key, u64 hash of the key of the record
before, u16 length of the key, key, value. So a damaged record's key is known if its own front part
survived, or else by the hash in its successor. `index` numbers the records without gaps (a gap is a
lost record); `term` is the number of the record that first put the key: the order of `items`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from wal.frame import Frame, RecordType, frame_bytes
from wal.recovery import SegmentFacts
from wal.salvage import Hole, Salvaged, SalvagedSegment
from wal.settings import PAGE_BYTES

_FRONT: Final = Struct("<IQH")
FRONT_BYTES: Final = _FRONT.size
_RECORD_BYTES_MIN: Final = frame_bytes(FRONT_BYTES + 1)


class Damaged(NamedTuple):
    """A record that was durable and is lost."""

    #: Whose it was; None if that cannot be told: then any key may have lost its newest record.
    key: bytes | None
    #: File and offset, for people.
    where: str


@dataclass(slots=True)
class Live:
    """A key's newest record."""

    value: bytes
    #: Number of the record that first put the key.
    order: int
    #: Number of the record that holds the value now.
    number: int
    size_bytes: int


@dataclass(slots=True)
class Loaded:
    """The contents of a directory."""

    live: dict[bytes, Live] = field(default_factory=dict)
    damaged: list[Damaged] = field(default_factory=list)
    #: Number and key hash of the last record.
    number: int = 0
    previous_hash: int = 0
    #: Records up to this number are given up.
    base: int = 0
    #: Segments that count, and names of those that do not.
    kept: list[SegmentFacts] = field(default_factory=list)
    obsolete: list[str] = field(default_factory=list)


def encode_keyed(key: bytes, value: bytes, *, previous_hash: int) -> bytes:
    """A keyed record's payload."""
    rest = _FRONT.pack(0, previous_hash, len(key))[4:]
    return crc32(key, crc32(rest)).to_bytes(4, "little") + rest + key + value


def decode_keyed(payload: bytes) -> tuple[bytes, bytes, int] | None:
    """Key, value and the hash of the key before; None if the front part does not verify."""
    if len(payload) < FRONT_BYTES:
        return None
    crc, previous_hash, length = _FRONT.unpack_from(payload)
    end = FRONT_BYTES + length
    if len(payload) < end or crc32(payload[4:end]) != crc:
        return None
    return payload[FRONT_BYTES:end], payload[end:], previous_hash


def hash_key(key: bytes) -> int:
    """What a record says of the key before it."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def load(found: Salvaged) -> Loaded:
    """Replay what was salvaged, records in order, holes named where that can be told."""
    result = Loaded()
    for segment in found.segments:
        result.base = max(result.base, segment.header.base_index)
        for item in segment.items:
            if isinstance(item, Frame) and item.type == RecordType.BASE:
                result.base = max(result.base, item.index)
    result.number = result.base
    replay = _Replay(result)
    for segment, following in zip(found.segments, [*found.segments[1:], None], strict=False):
        if following is not None and following.header.next_index - 1 <= result.base:
            result.obsolete.append(segment.name)
            continue
        replay.segment(segment)
        end = max(
            (item.end for item in segment.items if isinstance(item, Frame)), default=PAGE_BYTES
        )
        result.kept.append(SegmentFacts(segment.name, segment.header, end, result.number + 1))
    replay.finish(found.unreadable)
    result.live = dict(sorted(result.live.items(), key=lambda item: item[1].order))
    return result


@dataclass(frozen=True, slots=True)
class _Loss:
    """Records missing between two valid ones, or behind the last."""

    #: Number of the first one, and how many there are at most.
    first: int
    count: int
    #: Hash of the last one's key, told by the record behind it; 0 if there is none.
    last_hash: int
    hole: Hole


class _Replay:
    def __init__(self, result: Loaded) -> None:
        self._result = result
        self._hole: Hole | None = None
        #: Every key seen, by hash; and for each the number of its newest record.
        self._keys: dict[int, bytes] = {}
        self._seen: dict[bytes, int] = {}
        self._losses: list[_Loss] = []

    def segment(self, segment: SalvagedSegment) -> None:
        for item in segment.items:
            if isinstance(item, Hole):
                # Two in a row: how much is lost is no longer known by size.
                self._hole = replace(self._hole, size_bytes=0) if self._hole else item
            elif item.type in {RecordType.PUT, RecordType.DELETE}:
                self._record(item, Hole(segment.name, item.offset))

    def _record(self, frame: Frame, here: Hole) -> None:
        result = self._result
        decoded = decode_keyed(frame.payload)
        if decoded is None or frame.index <= result.base:
            return
        key, value, previous_hash = decoded
        missing = frame.index - result.number - 1
        if self._hole is not None or missing > 0:
            hole, self._hole = self._hole or here, None
            self._losses.append(_Loss(result.number + 1, max(missing, 1), previous_hash, hole))
        result.number = max(result.number, frame.index)
        result.previous_hash = hash_key(key)
        self._keys[result.previous_hash] = key
        self._seen[key] = frame.index
        if frame.type == RecordType.DELETE:
            result.live.pop(key, None)
        else:
            size = frame_bytes(len(frame.payload))
            result.live[key] = Live(value, frame.term, frame.index, size)

    def finish(self, unreadable: list[str]) -> None:
        """Name the lost records, now that every key is known."""
        result = self._result
        if self._hole is not None:
            # Nothing behind them counts them: at most as many as fit. Their numbers are not given
            # again, so that the next opening comes to the same.
            is_one = frame_bytes(len(self._hole.claimed)) == self._hole.size_bytes
            fitting = max(1, (self._hole.size_bytes or PAGE_BYTES) // _RECORD_BYTES_MIN)
            loss = _Loss(result.number + 1, 1 if is_one else fitting, 0, self._hole)
            self._losses.append(loss)
            result.number += loss.count
        for loss in self._losses:
            self._name(loss)
        result.damaged.extend(Damaged(None, f"{name}: header page") for name in unreadable)

    def _name(self, loss: _Loss) -> None:
        """List the keys that can be told, and None if that is not all."""
        claimed = decode_keyed(loss.hole.claimed)
        last = self._keys.get(loss.last_hash)
        named: dict[int, bytes] = {}
        if last is not None:
            named[loss.first + loss.count - 1] = last
        if claimed is not None:
            named[loss.first] = claimed[0]
        for number, key in named.items():
            # A newer record of the key makes the lost one meaningless.
            if self._seen.get(key, 0) < number:
                self._result.damaged.append(Damaged(key, str(loss.hole)))
        if len(named) < loss.count:
            self._result.damaged.append(Damaged(None, str(loss.hole)))
