"""A table of frozen records whose view costs a list copy and whose digest costs what changed.

Rows live in shards. A view shares the shards; a shard is copied when it is first written after
that (a few microseconds each), so that taking a view never stops the event loop. Iteration order
of a shard means nothing: whoever needs an order sorts the keys.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V", bound=msgspec.Struct)

#: Shards of a table: a shard of a million rows has a thousand, copied in some 10 microseconds.
SHARDS: Final = 1024
#: Changed rows whose share of the digest is still to be computed: bounds one flush to about 1 ms.
CHANGED_MAX: Final = 256
#: Keys sorted in one go: more would keep every other thread waiting for the interpreter.
SORTED_AT_ONCE_MAX: Final = 4_096
#: Digests are sums modulo this.
DIGEST_MODULUS: Final = 1 << 128

# Maps keep the order in which entries wrote them: the same on every replica, kept by snapshots.
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode_record(record: object) -> bytes:
    """Canonical bytes of a record: the same on every replica and release of one version."""
    return _ENCODER.encode(record)


def hash_record(table: str, record: object) -> int:
    """The record's share of the state digest."""
    return hash_encoded(table, _ENCODER.encode(record))


def hash_encoded(table: str, data: bytes) -> int:
    """As `hash_record`, for a record's canonical bytes."""
    person = table.encode()[:16]
    return int.from_bytes(hashlib.blake2b(data, digest_size=16, person=person).digest(), "big")


def _sorted_keys(shards: Sequence[dict[Any, Any]]) -> list[Any]:
    if sum(map(len, shards)) <= SORTED_AT_ONCE_MAX:
        return sorted(key for shard in shards for key in shard)
    return list(heapq.merge(*[sorted(shard) for shard in shards if shard]))


class TableView(Generic[K, V]):
    """The rows of one moment. Immutable; may be read in any thread."""

    __slots__ = ("_shards", "name")

    def __init__(self, name: str, shards: tuple[dict[K, V], ...]) -> None:
        self.name = name
        self._shards = shards

    def get(self, key: K) -> V | None:
        return self._shards[hash(key) % SHARDS].get(key)

    def sorted_keys(self) -> list[K]:
        return _sorted_keys(self._shards)

    def sorted_rows(self) -> Iterator[V]:
        """Every row, by key."""
        for key in self.sorted_keys():
            yield self._shards[hash(key) % SHARDS][key]

    def __len__(self) -> int:
        return sum(map(len, self._shards))


class Table(Generic[K, V]):
    """Mutable rows. Event loop only."""

    __slots__ = ("_changed", "_count", "_digest", "_shards", "_shared", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._shards: list[dict[K, V]] = [{} for _ in range(SHARDS)]
        self._shared = bytearray(SHARDS)
        self._count = 0
        self._digest = 0
        #: Key -> the row as the digest has it.
        self._changed: dict[K, V | None] = {}

    def get(self, key: K) -> V | None:
        # `hash` only spreads rows here: no order and no stored byte depends on it.
        return self._shards[hash(key) % SHARDS].get(key)

    def __getitem__(self, key: K) -> V:
        return self._shards[hash(key) % SHARDS][key]

    def __contains__(self, key: K) -> bool:
        return key in self._shards[hash(key) % SHARDS]

    def __len__(self) -> int:
        return self._count

    def put(self, key: K, row: V) -> None:
        shard = self._own_shard(hash(key) % SHARDS)
        old = shard.get(key)
        if key not in self._changed:
            self._changed[key] = old
        if old is None:
            self._count += 1
        shard[key] = row
        if len(self._changed) > CHANGED_MAX:
            self._flush()

    def load(self, rows: Iterable[V], key_of: Callable[[V], K]) -> None:
        """Fill an empty part of the table: as `put` for each row, at half the cost."""
        shards, total = self._shards, self._digest
        person, encode, blake2b = self.name.encode()[:16], _ENCODER.encode, hashlib.blake2b
        for row in rows:
            key = key_of(row)
            shards[hash(key) % SHARDS][key] = row
            # As `hash_record`, whose calls would be a tenth of a restore.
            hashed = blake2b(encode(row), digest_size=16, person=person).digest()
            total += int.from_bytes(hashed, "big")
        self._digest = total % DIGEST_MODULUS
        self._count = sum(map(len, shards))

    def dismantle(self) -> None:
        """Let the rows of a table that nobody uses any more go, some at a time. Any thread."""
        self._changed.clear()
        while self._shards:
            self._shards.pop()

    def delete(self, key: K) -> None:
        shard = self._own_shard(hash(key) % SHARDS)
        old = shard.pop(key)
        if key not in self._changed:
            self._changed[key] = old
        self._count -= 1

    def _own_shard(self, number: int) -> dict[K, V]:
        if self._shared[number]:
            self._shards[number] = self._shards[number].copy()
            self._shared[number] = 0
        return self._shards[number]

    def view(self) -> TableView[K, V]:
        """The rows as they are now; later writes do not change it."""
        self._shared = bytearray(b"\1") * SHARDS
        return TableView(self.name, tuple(self._shards))

    def sorted_keys(self) -> list[K]:
        return _sorted_keys(self._shards)

    def sorted_rows(self) -> Iterator[V]:
        for key in self.sorted_keys():
            yield self._shards[hash(key) % SHARDS][key]

    @property
    def digest(self) -> int:
        """Sum of the rows' hashes: O(rows changed since it was last asked for)."""
        self._flush()
        return self._digest

    def _flush(self) -> None:
        total = self._digest
        name = self.name
        for key, old in self._changed.items():
            if old is not None:
                total -= hash_record(name, old)
            new = self._shards[hash(key) % SHARDS].get(key)
            if new is not None:
                total += hash_record(name, new)
        self._digest = total % DIGEST_MODULUS
        self._changed.clear()
