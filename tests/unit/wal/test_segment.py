from __future__ import annotations

from pathlib import Path

import pytest

from wal import Corrupt, Identity, UnsupportedVersion, WrongIdentity
from wal.segment import (
    KIND_KEYED,
    KIND_LOG,
    SLOT_OFFSETS,
    HardState,
    SegmentHeader,
    Slot,
    check_owner,
    decode_header,
    decode_slots,
    encode_page,
    page_blemishes,
    segment_name,
    sequence_of,
)

PATH = Path("x.seg")
HEADER = SegmentHeader(
    sequence=3,
    seed=99,
    size=8192,
    previous_end=8000,
    previous_crc=77,
    next_index=41,
    base_index=12,
    base_term=2,
    identity=Identity("cluster-ü", "a", 4),
    kind=KIND_LOG,
    store_id=bytes(range(16)),
)
SLOTS = (
    Slot(generation=8, synced_upto=5000, hard=HardState(term=6, voted_for="b")),
    Slot(generation=7, synced_upto=4096, hard=HardState(term=5), is_sealed=True),
)
PAGE = encode_page(HEADER, SLOTS)


def test_page_reads_back() -> None:
    assert len(PAGE) == 4096
    assert decode_header(PAGE, PATH) == HEADER
    assert decode_slots(PAGE, seed=HEADER.seed) == SLOTS
    assert page_blemishes(PAGE, seed=HEADER.seed) == []


def test_every_flipped_byte_of_the_page_is_noticed() -> None:
    for place in range(len(PAGE)):
        damaged = bytearray(PAGE)
        damaged[place] ^= 0x10
        assert page_blemishes(bytes(damaged), seed=HEADER.seed), place


def test_damaged_header_is_refused_and_its_copy_serves_who_asks() -> None:
    damaged = bytearray(PAGE)
    damaged[20] ^= 1
    with pytest.raises(Corrupt) as caught:
        decode_header(bytes(damaged), PATH)
    assert caught.value.offset == 0
    assert decode_header(bytes(damaged), PATH, use_copy=True) == HEADER


def test_one_damaged_slot_leaves_the_other() -> None:
    for number, offset in enumerate(SLOT_OFFSETS):
        damaged = bytearray(PAGE)
        damaged[offset] ^= 1
        slots = decode_slots(bytes(damaged), seed=HEADER.seed)
        assert slots[number] is None
        assert slots[1 - number] == SLOTS[1 - number]


def test_newer_format_is_unsupported_and_not_damage() -> None:
    newer = bytearray(PAGE)
    newer[8] = newer[3072 + 8] = 2
    with pytest.raises(UnsupportedVersion):
        decode_header(bytes(newer), PATH)
    newer[3072 + 8] = 1
    with pytest.raises(Corrupt):
        decode_header(bytes(newer), PATH)


@pytest.mark.parametrize(
    ("identity", "kind"),
    [
        (Identity("other", "a", 4), KIND_LOG),
        (Identity("cluster-ü", "b", 4), KIND_LOG),
        (Identity("cluster-ü", "a", 3), KIND_LOG),
        (Identity("cluster-ü", "a", 4), KIND_KEYED),
    ],
)
def test_foreign_segments_are_refused(identity: Identity, kind: int) -> None:
    with pytest.raises(WrongIdentity):
        check_owner(HEADER, PATH, identity=identity, kind=kind)


def test_older_incarnation_of_the_member_is_its_own() -> None:
    check_owner(HEADER, PATH, identity=Identity("cluster-ü", "a", 5), kind=KIND_LOG)


def test_names() -> None:
    assert segment_name(12) == "0000000000000012.seg"
    assert sequence_of(segment_name(12)) == 12
    assert sequence_of("spare.tmp") is None
    assert sequence_of("12.seg") is None


def test_vote_that_does_not_fit_is_refused() -> None:
    slot = Slot(generation=1, synced_upto=4096, hard=HardState(term=1, voted_for="x" * 65))
    with pytest.raises(ValueError, match="64"):
        encode_page(HEADER, (slot, slot))
