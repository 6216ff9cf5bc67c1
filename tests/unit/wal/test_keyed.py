from __future__ import annotations

import pytest

from tests.crash.disk import Image, MemoryDisk
from tests.crash.keyed_workload import IDENTITY, ROOT, SETTINGS, open_store
from wal import (
    Closed,
    Corrupt,
    Damaged,
    Identity,
    KeyedStore,
    Locked,
    OutOfSpace,
    RecordTooLarge,
    WrongIdentity,
)


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk(seed=3)
    disk.make_directory(ROOT.parent)
    return disk


@pytest.fixture
def store(disk: MemoryDisk) -> KeyedStore:
    return open_store(disk)


def reopen(store: KeyedStore, disk: MemoryDisk) -> KeyedStore:
    store.close()
    return open_store(disk)


def segments(image: Image) -> list[str]:
    return sorted(path.name for path in image if path.suffix == ".seg")


def damage(disk: MemoryDisk, offset: int, *, segment: int = 0) -> MemoryDisk:
    """A copy of the disk with one bit of a segment turned around."""
    image = disk.image()
    path = ROOT / "wal" / segments(image)[segment]
    content = bytearray(image[path] or b"")
    content[offset] ^= 4
    image[path] = bytes(content)
    return MemoryDisk(image, seed=11)


def test_values_survive(store: KeyedStore, disk: MemoryDisk) -> None:
    assert store.get(b"k") is None
    store.put(b"k", b"1")
    store.put(b"j", b"")
    assert store.get(b"k") == b"1"
    assert b"j" in store
    store.sync()
    store.put(b"k", b"2")
    store.sync()
    again = reopen(store, disk)
    assert again.items() == [(b"k", b"2"), (b"j", b"")]
    assert again.damaged == []
    assert len(again) == 2


def test_unsynced_changes_are_gone(store: KeyedStore, disk: MemoryDisk) -> None:
    store.put(b"k", b"1")
    store.sync()
    store.put(b"k", b"2")
    store.delete(b"k")
    assert reopen(store, disk).items() == [(b"k", b"1")]


def test_sync_is_one_sync(store: KeyedStore, disk: MemoryDisk) -> None:
    for number in range(9):
        store.put(b"%d" % number, b"v")
    before = len(disk.events)
    store.sync()
    assert [event.kind for event in disk.events[before:]] == ["write", "sync"]
    store.sync()
    assert len(disk.events) == before + 2


def test_delete(store: KeyedStore, disk: MemoryDisk) -> None:
    store.put(b"a", b"1")
    store.put(b"b", b"2")
    store.sync()
    assert store.delete(b"a")
    assert not store.delete(b"a")
    store.put(b"a", b"3")
    store.sync()
    # A key that came back stands where it came back.
    assert reopen(store, disk).items() == [(b"b", b"2"), (b"a", b"3")]


def test_compaction_bounds_the_store_and_keeps_order(store: KeyedStore, disk: MemoryDisk) -> None:
    store.put(b"first", b"f" * 50)
    for number in range(400):
        store.put(b"busy", b"%d" % number * 100)
        if number == 200:
            store.put(b"middle", b"m")
        store.sync()
    assert len(segments(disk.image())) <= 3
    wanted = [(b"first", b"f" * 50), (b"busy", b"399" * 100), (b"middle", b"m")]
    assert store.items() == wanted
    again = reopen(store, disk)
    assert again.items() == wanted
    assert again.damaged == []


def test_deleted_keys_do_not_return_through_compaction(store: KeyedStore, disk: MemoryDisk) -> None:
    store.put(b"gone", b"g")
    store.sync()
    store.delete(b"gone")
    for number in range(200):
        store.put(b"busy", b"%d" % number * 100)
        store.sync()
    assert b"gone" not in reopen(store, disk)


def test_store_id_is_random_and_stays(store: KeyedStore, disk: MemoryDisk) -> None:
    found = store.store_id
    assert len(found) == 32
    assert reopen(store, disk).store_id == found
    other = MemoryDisk(seed=4)
    other.make_directory(ROOT.parent)
    assert open_store(other).store_id != found


def write_three(store: KeyedStore) -> list[int]:
    """Three records of 100 bytes of value and a witness; returns where the three begin."""
    starts, place = [], 4096
    for key in (b"a", b"b", b"c"):
        store.put(key, b"v" * 100)
        starts.append(place)
        place += 152
    store.sync()
    store.put(b"z", b"")
    store.sync()
    return starts


@pytest.mark.parametrize("within", [0, 20, 60, 151])
def test_damaged_record_costs_that_record(store: KeyedStore, disk: MemoryDisk, within: int) -> None:
    starts = write_three(store)
    store.close()
    again = open_store(damage(disk, starts[1] + within))
    assert [key for key, _ in again.items()] == [b"a", b"c", b"z"]
    assert [item.key for item in again.damaged] == [b"b"]
    assert "0000000000000001.seg at offset 4248" in again.damaged[0].where


def test_damaged_newer_record_leaves_the_older_value_and_says_so(
    store: KeyedStore, disk: MemoryDisk
) -> None:
    store.put(b"a", b"old")
    store.sync()
    store.put(b"a", b"new" * 30)
    store.sync()
    store.put(b"z", b"")
    store.sync()
    store.close()
    # The damage is in the key itself: the next record tells whose it was.
    again = open_store(damage(disk, 4096 + 56 + 32 + 14))
    assert again.get(b"a") == b"old"
    assert [item.key for item in again.damaged] == [b"a"]


def test_damaged_delete_is_named(store: KeyedStore, disk: MemoryDisk) -> None:
    store.put(b"a", b"1")
    store.delete(b"a")
    store.put(b"z", b"")
    store.sync()
    store.write_mark()
    store.close()
    again = open_store(damage(disk, 4096 + 48 + 4))
    assert again.get(b"a") == b"1"
    assert [item.key for item in again.damaged] == [b"a"]


def test_superseded_damage_is_no_loss(store: KeyedStore, disk: MemoryDisk) -> None:
    starts = write_three(store)
    store.put(b"b", b"newer")
    store.sync()
    store.close()
    again = open_store(damage(disk, starts[1] + 60))
    assert again.get(b"b") == b"newer"
    assert again.damaged == []


def test_damaged_last_record_is_told_by_the_mark(store: KeyedStore, disk: MemoryDisk) -> None:
    write_three(store)
    store.close()
    hurt = damage(disk, 4096 + 3 * 152 + 12)
    again = open_store(hurt)
    assert b"z" not in again
    assert again.damaged == [Damaged(b"z", "0000000000000001.seg at offset 4552")]
    again.put(b"y", b"after")
    again.sync()
    third = reopen(again, hurt)
    assert third.get(b"y") == b"after"
    assert [item.key for item in third.damaged] == [b"z"]


def test_torn_tail_is_no_damage(store: KeyedStore, disk: MemoryDisk) -> None:
    store.put(b"a", b"1")
    store.sync()
    store.write_mark()
    store.put(b"b", b"2" * 100)
    store.sync()
    # No mark speaks of the second batch yet.
    again = open_store(damage(disk, 4096 + 48 + 70))
    assert again.items() == [(b"a", b"1")]
    assert again.damaged == []


def test_lost_header_copy_is_survived(store: KeyedStore, disk: MemoryDisk) -> None:
    write_three(store)
    found = store.store_id
    store.close()
    again = open_store(damage(disk, 30))
    assert len(again) == 4
    assert again.store_id == found
    assert again.damaged == []


def test_unreadable_newest_segment_changes_the_store_id(
    store: KeyedStore, disk: MemoryDisk
) -> None:
    write_three(store)
    found = store.store_id
    store.close()
    hurt = damage(damage(disk, 30), 3072 + 30)
    again = open_store(hurt)
    assert again.store_id != found
    assert again.damaged == [Damaged(None, "0000000000000001.seg: header page")]
    assert hurt.exists(ROOT / "quarantine" / "0000000000000001.seg")
    again.put(b"new", b"1")
    again.sync()
    third = reopen(again, hurt)
    assert third.items() == [(b"new", b"1")]
    assert third.damaged == []


def test_missing_segment_is_noticed(store: KeyedStore, disk: MemoryDisk) -> None:
    for number in range(30):
        store.put(b"%d" % number, b"v" * 600)
        store.sync()
    store.close()
    image = disk.image()
    del image[ROOT / "wal" / segments(image)[1]]
    again = open_store(MemoryDisk(image))
    assert None in [item.key for item in again.damaged]
    assert len(again) < 30


def test_limits(store: KeyedStore) -> None:
    with pytest.raises(ValueError, match="1024"):
        store.put(b"", b"")
    with pytest.raises(ValueError, match="1024"):
        store.put(b"k" * 1025, b"")
    with pytest.raises(RecordTooLarge):
        store.put(b"k", bytes(SETTINGS.record_bytes_max))
    assert len(store) == 0


def fill(store: KeyedStore) -> None:
    for number in range(1000):
        store.put(b"%d" % number, b"v" * 500)
        store.sync()


def test_full_disk(store: KeyedStore, disk: MemoryDisk) -> None:
    disk.capacity_bytes = disk._used_bytes()
    with pytest.raises(OutOfSpace):
        fill(store)
    count = len(store)
    # The segment and the reserve.
    assert count > 12
    disk.capacity_bytes = None
    assert store.prepare_spare()
    store.put(b"more", b"1")
    store.sync()
    assert len(reopen(store, disk)) == count + 1


def test_locked_and_closed(store: KeyedStore, disk: MemoryDisk) -> None:
    with pytest.raises(Locked):
        open_store(disk)
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.put(b"k", b"")
    with pytest.raises(Closed):
        store.sync()


def test_identity(store: KeyedStore, disk: MemoryDisk) -> None:
    store.close()
    with pytest.raises(WrongIdentity):
        KeyedStore.open(ROOT, identity=Identity("other", "n"), settings=SETTINGS, fs=disk)
    image = disk.image()
    image[ROOT / "identity"] = b"{}"
    with pytest.raises(Corrupt):
        KeyedStore.open(ROOT, identity=IDENTITY, settings=SETTINGS, fs=MemoryDisk(image))
