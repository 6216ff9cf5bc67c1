from __future__ import annotations

import pytest

from wal.frame import (
    Entry,
    FrameReader,
    Operation,
    RecordType,
    encode_frame,
    find_frames,
    frame_bytes,
    is_zero,
)

SEED = 0x1234_5678
START = 4096


def chain(*payloads: bytes, start: int = START) -> bytes:
    parts, offset = [], start
    for index, payload in enumerate(payloads, start=1):
        operation = Operation(RecordType.ENTRY, index, 3, payload)
        parts.append(encode_frame(operation, seed=SEED, offset=offset, synced_upto=start))
        offset += len(parts[-1])
    return bytes(start) + b"".join(parts)


def read(buffer: bytes, *, seed: int = SEED, start: int = START) -> list[bytes]:
    return [frame.payload for frame in FrameReader(buffer, seed=seed, start=start)]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 300])
def test_record_reads_back(size: int) -> None:
    payload = (bytes(range(256)) * 2)[:size]
    buffer = chain(payload)
    frame = next(iter(FrameReader(buffer, seed=SEED, start=START)))
    assert frame.payload == payload
    assert (frame.type, frame.index, frame.term) == (RecordType.ENTRY, 1, 3)
    assert (frame.offset, frame.end) == (START, len(buffer))
    assert frame.end - frame.offset == frame_bytes(size)
    assert frame.end % 8 == 0


def test_every_flipped_bit_ends_the_chain_there() -> None:
    buffer = chain(b"first", b"second", b"third")
    ends = [START + frame_bytes(5), START + frame_bytes(5) + frame_bytes(6), len(buffer)]
    for place in range(START, len(buffer)):
        for bit in range(8):
            damaged = bytearray(buffer)
            damaged[place] ^= 1 << bit
            survivors = sum(place >= end for end in ends)
            assert len(read(bytes(damaged))) == survivors


def test_every_prefix_gives_whole_records_only() -> None:
    buffer = chain(b"first", b"second")
    for size in range(START, len(buffer)):
        assert read(buffer[:size]) == ([b"first"] if size >= START + frame_bytes(5) else [])


def test_record_verifies_in_one_place_only() -> None:
    buffer = chain(b"same", b"same")
    size = frame_bytes(4)
    moved = bytearray(buffer)
    moved[START + size : START + 2 * size] = buffer[START : START + size]
    assert read(bytes(moved)) == [b"same"]
    assert read(buffer, seed=SEED + 1) == []


def test_entries_are_taken_as_iterating_gives_them() -> None:
    buffer = chain(b"a", b"bb", b"") + bytes(64)
    quick, slow = (FrameReader(buffer, seed=SEED, start=START) for _ in range(2))
    sink: list[Entry] = []
    quick.take_entries(1, sink)
    frames = list(slow)
    assert sink == [(frame.payload, frame.index, frame.term) for frame in frames]
    assert (quick.end, quick.last_crc) == (slow.end, slow.last_crc)
    assert quick.synced_upto == slow.synced_upto


def test_entries_are_taken_up_to_the_first_that_does_not_follow() -> None:
    reader = FrameReader(chain(b"a"), seed=SEED, start=START)
    sink: list[Entry] = []
    reader.take_entries(2, sink)
    assert sink == []
    assert reader.end == START


def test_records_behind_damage_are_found() -> None:
    buffer = bytearray(chain(b"first", b"\xde\xc0" * 20, b"third"))
    buffer[START + 9] ^= 1
    found = [f.payload for f in find_frames(bytes(buffer), seed=SEED, start=START)]
    assert found == [b"\xde\xc0" * 20, b"third"]


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 200_000])
def test_zeros(size: int) -> None:
    assert is_zero(b"x" + bytes(size), 1)
    assert not is_zero(bytes(size) + b"x", 0)
