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
from scheduler.core.tables import DIGEST_MODULUS, encode_record, hash_record

MAGIC: Final = "pertinax-state"
FORMAT: Final = 1
#: Rows in one block, and bytes in one chunk.
BLOCK_ROWS: Final = 256
CHUNK_BYTES_MAX: Final = 1024 * 1024
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
    """The canonical bytes of a view, in pieces of at most 1 MiB. Any thread."""
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
        rows: list[Any] = []
        for row in view.tables[name].sorted_rows():
            digest += hash_record(name, row)
            count += 1
            rows.append(row)
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
    try:
        _check_header(next(blocks, b""))
        meta = _META.decode(next(blocks, b""))
        rows, trailer = _read_rows(blocks)
    except BadSnapshot:
        raise
    except (msgspec.MsgspecError, ValueError, UnicodeDecodeError, RecursionError) as error:
        raise BadSnapshot(f"this is no snapshot of the state: {error}") from None
    if trailer is None or trailer[0] != sum(len(part) for _, part in rows):
        raise BadSnapshot("the snapshot is cut short")
    state = ClusterState()
    state.load(meta, rows)
    if state.digest() != trailer[1]:
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


def _read_rows(
    blocks: Iterator[bytes],
) -> tuple[list[tuple[str, list[Any]]], tuple[int, str] | None]:
    rows: list[tuple[str, list[Any]]] = []
    for block in blocks:
        # A block of rows is `[text, array]`, the trailer `[integer, text]`.
        if block[1:2] and block[1] & 0xE0 == 0xA0:
            name, raw = _BLOCK.decode(block)
            decoder = _ROWS.get(name)
            if decoder is None:
                raise NewerSnapshot(f"the snapshot has a table {name!r}: an upgrade is needed")
            rows.append((name, decoder.decode(raw)))
        else:
            trailer = _TRAILER.decode(block)
            if next(blocks, None) is not None:
                raise BadSnapshot("there is something behind the snapshot's end")
            return rows, trailer
    return rows, None


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
