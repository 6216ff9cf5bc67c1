"""Cells, the identity and snapshots."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash.disk import Image, MemoryDisk, Replayer
from wal import (
    Cell,
    Corrupt,
    Identity,
    OutOfSpace,
    RecordTooLarge,
    SnapshotStore,
    UnsupportedVersion,
    WrongIdentity,
    create_directory,
    read_identity,
)
from wal.cell import CELL_BYTES_MAX
from wal.snapshots import CHUNK_BYTES_MAX, verify

ROOT = Path("/d")


def cuts(disk: MemoryDisk, start: Image, *, limit: int = 16) -> list[Image]:
    """Every power cut in what the disk did since `start`."""
    replayer, random = Replayer(start), Random(1)
    found: list[Image] = []
    for event in disk.events:
        replayer.apply(event)
        found.extend(replayer.images(random, limit=limit))
    return found


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk({ROOT: None})


def test_cell(disk: MemoryDisk) -> None:
    cell = Cell(ROOT / "cell", fs=disk)
    assert cell.read() is None
    for value in (b"", b"one", bytes(3000)):
        cell.write(value)
        assert Cell(ROOT / "cell", fs=disk).read() == value
    with pytest.raises(RecordTooLarge):
        cell.write(bytes(CELL_BYTES_MAX + 1))
    assert cell.read() == bytes(3000)


def test_cell_is_old_or_new_after_a_power_cut(disk: MemoryDisk) -> None:
    Cell(ROOT / "cell", fs=disk).write(b"old" * 400)
    start = disk.image()
    after = MemoryDisk(start)
    Cell(ROOT / "cell", fs=after).write(b"new" * 500)
    seen = {Cell(ROOT / "cell", fs=MemoryDisk(image)).read() for image in cuts(after, start)}
    assert seen == {b"old" * 400, b"new" * 500}


def test_every_flipped_byte_of_a_cell_is_noticed(disk: MemoryDisk) -> None:
    Cell(ROOT / "cell", fs=disk).write(b"value")
    whole = disk.read(ROOT / "cell")
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 2
        copy = MemoryDisk({ROOT: None, ROOT / "cell": bytes(damaged)})
        with pytest.raises((Corrupt, UnsupportedVersion)):
            Cell(ROOT / "cell", fs=copy).read()


def test_identity_is_founded_once(disk: MemoryDisk) -> None:
    mine = Identity("cluster-ü", "a", 2)
    create_directory(ROOT / "data", mine, fs=disk)
    create_directory(ROOT / "data", mine, fs=disk)
    assert read_identity(ROOT / "data", fs=disk) == mine
    for other in (Identity("x", "a", 2), Identity("cluster-ü", "b", 2), Identity("cluster-ü", "a")):
        with pytest.raises(WrongIdentity):
            create_directory(ROOT / "data", other, fs=disk)


def test_every_flipped_bit_of_the_identity_is_noticed(disk: MemoryDisk) -> None:
    create_directory(ROOT, Identity("c", "a"), fs=disk)
    whole = disk.read(ROOT / "identity")
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            copy = MemoryDisk({ROOT: None, ROOT / "identity": bytes(damaged)})
            with pytest.raises(Corrupt):
                read_identity(ROOT, fs=copy)


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_names_are_bounded(name: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        Identity(name, "a")
    with pytest.raises(ValueError, match="bytes"):
        Identity("c", name)


@pytest.fixture
def store(disk: MemoryDisk) -> SnapshotStore:
    store = SnapshotStore(ROOT / "snapshots", fs=disk)
    store.open()
    return store


def write(store: SnapshotStore, index: int, body: bytes) -> Path:
    with store.writer(index, 3) as writer:
        writer.write(body)
        return writer.commit().path


def body_of(store: SnapshotStore, index: int) -> bytes:
    return b"".join(store.open_reader(index))


def test_snapshot_reads_back(store: SnapshotStore, disk: MemoryDisk) -> None:
    assert store.newest_valid() is None
    body = Random(1).randbytes(CHUNK_BYTES_MAX + 17)
    path = write(store, 40, body)
    chunks = list(store.open_reader(40))
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES_MAX, 17]
    assert b"".join(chunks) == body
    info = store.newest_valid()
    assert info is not None
    assert (info.index, info.term, info.path, info.size_bytes) == (40, 3, path, disk.size(path))
    with pytest.raises(FileNotFoundError):
        store.open_reader(41)


def test_a_large_snapshot_is_synced_on_the_way(
    store: SnapshotStore, disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal.snapshots.SYNC_BYTES", 1000)
    seen = len(disk.events)
    with store.writer(40, 3) as writer:
        for _ in range(10):
            writer.write(bytes(500))
        syncs = [event.kind for event in disk.events[seen:]].count("sync")
        path = writer.commit().path
    assert syncs == 5
    other = SnapshotStore(ROOT / "other", fs=disk)
    other.open()
    seen = len(disk.events)
    content = disk.read(path)
    other.install(content[at : at + 500] for at in range(0, len(content), 500))
    assert [event.kind for event in disk.events[seen:]].count("sync") == 1 + len(content) // 1000
    assert body_of(other, 40) == bytes(5000)


def test_empty_snapshot(store: SnapshotStore) -> None:
    write(store, 1, b"")
    assert body_of(store, 1) == b""


def test_abandoned_snapshot_leaves_nothing(store: SnapshotStore, disk: MemoryDisk) -> None:
    with store.writer(5, 1) as writer:
        writer.write(b"half")
    assert disk.names(ROOT / "snapshots") == []


def test_two_are_kept_and_a_damaged_one_is_passed_over(
    store: SnapshotStore, disk: MemoryDisk
) -> None:
    paths = [write(store, index, b"body %d" % index) for index in (10, 20, 30)]
    assert store.prune() == 1
    assert [info.index for info in store.infos()] == [30, 20]
    file = disk.open(paths[2], writable=True)
    file.pwrite(b"\xff", 60)
    newest = store.newest_valid()
    assert newest is not None
    assert newest.index == 20
    with pytest.raises(Corrupt) as caught:
        body_of(store, 30)
    assert caught.value.path == paths[2]


def test_every_flipped_byte_and_every_cut_of_a_snapshot_is_noticed(
    store: SnapshotStore, disk: MemoryDisk
) -> None:
    with store.writer(7, 2) as writer:
        writer.write(b"first chunk")
        writer.write(b"second")
        path = writer.commit().path
    whole = disk.read(path)
    damaged = [whole[:size] for size in range(len(whole))]
    damaged.append(whole + b"\0")
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 8
        damaged.append(bytes(flipped))
    for content in damaged:
        with pytest.raises((Corrupt, UnsupportedVersion)):
            verify(path, fs=MemoryDisk({path: content}))


def test_install_takes_whole_snapshots_only(store: SnapshotStore, disk: MemoryDisk) -> None:
    raw = disk.read(write(store, 9, b"the state"))
    other = SnapshotStore(ROOT / "other", fs=disk)
    other.open()
    for bad in ([raw[:-1]], [raw, b"x"], [], [raw[:20], raw[21:]]):
        with pytest.raises(Corrupt):
            other.install(bad)
        assert disk.names(ROOT / "other") == []
    info = other.install([raw[:5], raw[5:]])
    assert (info.index, info.term) == (9, 3)
    assert body_of(other, 9) == b"the state"


def test_snapshot_on_a_full_disk(store: SnapshotStore, disk: MemoryDisk) -> None:
    write(store, 1, b"old")
    disk.capacity_bytes = disk._used_bytes() + 100
    with pytest.raises(OutOfSpace), store.writer(2, 1) as writer:
        writer.write(bytes(4096))
    raw = disk.read(store.infos()[0].path)
    with pytest.raises(OutOfSpace):
        store.install([raw, bytes(4096)])
    assert [info.index for info in store.infos()] == [1]
    assert len(disk.names(ROOT / "snapshots")) == 1


def test_snapshot_is_whole_or_absent_after_a_power_cut(
    store: SnapshotStore, disk: MemoryDisk
) -> None:
    write(store, 1, b"old" * 300)
    start = disk.image()
    after = MemoryDisk(start)
    write(SnapshotStore(ROOT / "snapshots", fs=after), 2, b"new" * 400)
    seen = set()
    for image in cuts(after, start):
        found = SnapshotStore(ROOT / "snapshots", fs=MemoryDisk(image))
        found.open()
        assert found.infos()[0] == found.newest_valid()
        seen.add(found.infos()[0].index)
    assert seen == {1, 2}
