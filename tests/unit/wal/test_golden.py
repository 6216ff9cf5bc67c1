"""The bytes on disk, as the first release writes them. `python -m tests.unit.wal.test_golden` adds
the directory of a new format; those that are there are never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.disk import Image, MemoryDisk
from tests.crash.workload import IDENTITY, ROOT, SETTINGS, State
from wal import Cell, Entry, KeyedStore, SnapshotStore, WriteAheadLog, create_directory
from wal.check import check

FORMAT = 1
GOLDEN = Path(__file__).parents[2] / "golden" / "wal" / str(FORMAT)
LOG, LEDGER, SNAPSHOTS, CELL = (ROOT / n for n in ("log", "ledger", "snapshots", "value.cell"))
STATE = State(
    base_index=2,
    base_term=3,
    entries=(
        *(Entry(b"%d" % index * 900, index, 3) for index in range(3, 9)),
        Entry(b"in place of nine", 9, 4),
        Entry(b"", 10, 4),
    ),
)
ITEMS = [(b"a", b"second"), (b"c", b"3")]


def open_log(disk: MemoryDisk) -> WriteAheadLog:
    return WriteAheadLog.open(LOG, identity=IDENTITY, settings=SETTINGS, fs=disk)


def open_ledger(disk: MemoryDisk) -> KeyedStore:
    return KeyedStore.open(LEDGER, identity=IDENTITY, settings=SETTINGS, fs=disk)


def write_log(disk: MemoryDisk) -> None:
    create_directory(LOG, IDENTITY, fs=disk)
    log = open_log(disk)
    log.set_hard_state(3, "a")
    for index in range(1, 11):
        log.append(b"%d" % index * 900, index=index, term=3)
        if index % 4 == 0:
            log.note_commit_index(log.durable_index)
            log.sync()
    log.set_hard_state(4, "b")
    log.truncate_suffix(9)
    log.append(b"in place of nine", index=9, term=4)
    log.append(b"", index=10, term=4)
    log.truncate_prefix(2)
    log.sync()
    log.close()


def write_all() -> Image:
    disk = MemoryDisk({ROOT: None}, seed=2026)
    write_log(disk)
    ledger = open_ledger(disk)
    for key, value in ((b"a", b"first"), (b"b", b"2"), (b"c", b"3"), (b"a", b"second")):
        ledger.put(key, value)
    ledger.delete(b"b")
    ledger.sync()
    ledger.close()
    Cell(CELL, fs=disk).write(b"the value")
    store = SnapshotStore(SNAPSHOTS, fs=disk)
    store.open()
    with store.writer(2, 3) as writer:
        writer.write(b"the state, ")
        writer.write(b"in two chunks")
        writer.commit()
    # A lock's note holds a pid, and the reserve holds nothing.
    return {
        path: content
        for path, content in disk.image().items()
        if path.name not in {"lock", "reserve"}
    }


def golden() -> Image:
    image: Image = {ROOT: None}
    for path in sorted(GOLDEN.rglob("*")):
        image[ROOT / path.relative_to(GOLDEN)] = path.read_bytes() if path.is_file() else None
    return image


def test_the_bytes_have_not_changed() -> None:
    wanted, written = golden(), write_all()
    assert sorted(wanted) == sorted(written)
    for path, content in wanted.items():
        assert written[path] == content, path


def test_the_first_release_is_read() -> None:
    disk = MemoryDisk(golden())
    assert check(LOG, fs=disk).is_sound
    log = open_log(disk)
    assert State.of(log) == STATE
    assert (log.term, log.voted_for, log.commit_index) == (4, "b", 4)
    assert log.recovered is None
    ledger = open_ledger(disk)
    assert ledger.items() == ITEMS
    assert ledger.damaged == []
    assert Cell(CELL, fs=disk).read() == b"the value"
    newest = SnapshotStore(SNAPSHOTS, fs=disk).newest_valid()
    assert newest is not None
    assert (newest.index, newest.term) == (2, 3)
    chunks = SnapshotStore(SNAPSHOTS, fs=disk).open_reader(2)
    assert list(chunks) == [b"the state, ", b"in two chunks"]


def test_the_golden_files_are_there() -> None:
    if not GOLDEN.is_dir():
        pytest.fail(f"{GOLDEN} is missing")


def main() -> None:
    if GOLDEN.exists():
        raise SystemExit(f"{GOLDEN} exists: golden bytes are added, never changed")
    for path, content in write_all().items():
        target = GOLDEN / path.relative_to(ROOT)
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.write_bytes(content)


if __name__ == "__main__":
    main()
