"""The state as canonical bytes, and back (specification 2.2, 2.5).

Blocks of `length (4 bytes, big endian) | msgpack`: a header `[magic, format, state version]`, the
cluster's `Meta`, then `[table, [rows…]]` with tables in the order of `TABLES` and rows by key, and
a trailer `[row count, digest]`. Equal states give equal bytes on every replica. The bytes of
a view may be made in a worker thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from scheduler.core.records import STATE_VERSION, Meta
from scheduler.core.state import TABLES, ClusterState, StateView
from scheduler.core.tables import DIGEST_MODULUS, encode_record, hash_encoded, hash_record

MAGIC: Final = "pertinax-state"
FORMAT: Final = 1
#: Rows in one block, and bytes in one chunk: 1 to 3 ms of work, after which a writer may pause.
BLOCK_ROWS: Final = 256
CHUNK_BYTES_MAX: Final = 64 * 1024
#: Largest block taken when restoring: rows of the largest entries, with room to spare.
BLOCK_BYTES_MAX: Final = 1 << 30

_LENGTH: Final = 4
_BLOCK: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_ROWS: Final = {name: msgspec.msgpack.Decoder(list[kind]) for name, kind in TABLES.items()}  # type: ignore[valid-type]
_META: Final = msgspec.msgpack.Decoder(Meta)
_TRAILER: Final = msgspec.msgpack.Decoder(tuple[int, str])
_HEADER: Final = msgspec.msgpack.Decoder(tuple[str, int, int])


class BadSnapshot(ValueError):
    """Bytes that are no snapshot of ours, or not a whole one."""


class NewerSnapshot(BadSnapshot):
    """A snapshot of a newer release: an upgrade is needed."""


# ---- writing -----------------------------------------------------------------------------------


def snapshot_chunks(view: StateView) -> Iterator[bytes]:
    """The canonical bytes of a view, in pieces of at most 64 KiB. Any thread."""
    buffer = bytearray()
    for block in _blocks(view):
        buffer += len(block).to_bytes(_LENGTH, "big")
        buffer += block
        while len(buffer) >= CHUNK_BYTES_MAX:
            yield bytes(buffer[:CHUNK_BYTES_MAX])
            del buffer[:CHUNK_BYTES_MAX]
    if buffer:
        yield bytes(buffer)


def _blocks(view: StateView) -> Iterator[bytes]:
    yield encode_record((MAGIC, FORMAT, STATE_VERSION))
    yield encode_record(view.meta)
    digest = hash_record("meta", view.meta)
    count = 0
    for name in TABLES:
        rows: list[msgspec.Raw] = []
        for row in view.tables[name].sorted_rows():
            data = encode_record(row)
            digest += hash_encoded(name, data)
            count += 1
            rows.append(msgspec.Raw(data))
            if len(rows) == BLOCK_ROWS:
                yield encode_record((name, rows))
                rows = []
        if rows:
            yield encode_record((name, rows))
    yield encode_record((count, f"{digest % DIGEST_MODULUS:032x}"))


# ---- reading -----------------------------------------------------------------------------------


def restore_state(chunks: Iterable[bytes]) -> ClusterState:
    """The state that a snapshot's bytes hold, checked against their own digest.

    Raises BadSnapshot (a ValueError), or NewerSnapshot for one that only a newer release can read.
    """
    blocks = _split(chunks)
    state = ClusterState()
    try:
        _check_header(next(blocks, b""))
        meta = _META.decode(next(blocks, b""))
        reader = _RowReader(blocks)
        state.load(meta, reader)
    except BadSnapshot:
        raise
    except (msgspec.MsgspecError, ValueError, UnicodeDecodeError, RecursionError) as error:
        raise BadSnapshot(f"this is no snapshot of the state: {error}") from None
    if reader.trailer is None or reader.trailer[0] != reader.count:
        raise BadSnapshot("the snapshot is cut short")
    if state.digest() != reader.trailer[1]:
        raise BadSnapshot("the snapshot's records do not match its digest")
    state.rebuild()
    return state


def _check_header(block: bytes) -> None:
    magic, form, version = _HEADER.decode(block)
    if magic != MAGIC:
        raise BadSnapshot("this is no snapshot of the state")
    if form > FORMAT or version > STATE_VERSION:
        raise NewerSnapshot(
            f"the snapshot has format {form}.{version}, this release reads up to "
            f"{FORMAT}.{STATE_VERSION}: an upgrade is needed"
        )


class _RowReader:
    """Iterates `(table, rows)`, a block at a time, and keeps what is behind the last."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        #: Rows so far.
        self.count = 0
        #: Row count and digest as the snapshot states them; None before they were read.
        self.trailer: tuple[int, str] | None = None

    def __iter__(self) -> Iterator[tuple[str, list[Any]]]:
        for block in self._blocks:
            # A block of rows is `[text, array]`, the trailer `[integer, text]`.
            if not (block[1:2] and block[1] & 0xE0 == 0xA0):
                self.trailer = _TRAILER.decode(block)
                if next(self._blocks, None) is not None:
                    raise BadSnapshot("there is something behind the snapshot's end")
                return
            name, raw = _BLOCK.decode(block)
            decoder = _ROWS.get(name)
            if decoder is None:
                raise NewerSnapshot(f"the snapshot has a table {name!r}: an upgrade is needed")
            rows = decoder.decode(raw)
            self.count += len(rows)
            yield name, rows


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        at = 0
        while len(buffer) - at >= _LENGTH:
            length = int.from_bytes(buffer[at : at + _LENGTH], "big")
            if length > BLOCK_BYTES_MAX:
                raise BadSnapshot(f"a block of {length} bytes")
            if len(buffer) - at - _LENGTH < length:
                break
            yield bytes(buffer[at + _LENGTH : at + _LENGTH + length])
            at += _LENGTH + length
        del buffer[:at]
    if buffer:
        raise BadSnapshot("the snapshot is cut short")
