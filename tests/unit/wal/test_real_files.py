"""The real file system and the housekeeping thread."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic, sleep

import pytest

from wal import Identity, Locked, WalSettings, WriteAheadLog, create_directory
from wal.check import check
from wal.files import REAL_FILES
from wal.segment import decode_header, decode_slots

IDENTITY = Identity("cluster", "a")
SETTINGS = WalSettings(segment_bytes=16384, reserve_bytes=8192, record_bytes_max=2048)
DEADLINE_S = 30.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    create_directory(tmp_path / "data", IDENTITY)
    return tmp_path / "data"


def open_log(directory: Path) -> WriteAheadLog:
    return WriteAheadLog.open(directory, identity=IDENTITY, settings=SETTINGS)


def wait_until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = monotonic() + DEADLINE_S
    while not condition():
        assert monotonic() < deadline, what
        sleep(0.005)


def marked_upto(path: Path) -> int:
    page = path.read_bytes()[:4096]
    slots = decode_slots(page, seed=decode_header(page, path).seed)
    return max(slot.synced_upto for slot in slots if slot)


def test_idle_log_is_marked(directory: Path) -> None:
    log = open_log(directory)
    log.append(b"x" * 100, index=1, term=1)
    log.sync()
    path = next((directory / "wal").glob("*.seg"))
    wait_until(lambda: marked_upto(path) == 4096 + 136, "the mark was never written")
    log.close()


def test_spare_is_made_ahead(directory: Path) -> None:
    log = open_log(directory)
    for index in range(1, 8):
        log.append(b"x" * 1000, index=index, term=1)
    log.sync()
    spare = directory / "wal" / "spare.tmp"
    wait_until(spare.exists, "no spare segment appeared")
    assert spare.stat().st_size == SETTINGS.segment_bytes
    assert check(directory).notes == []
    log.close()


def test_batches_in_a_worker_beside_votes(directory: Path) -> None:
    log = open_log(directory)
    for index in range(1, 31):
        log.append(b"x" * 700, index=index, term=1)
        batch = log.take_batch()
        assert batch is not None
        worker = threading.Thread(target=log.write_batch, args=(batch,))
        worker.start()
        log.set_hard_state(index, "a")
        worker.join()
        log.finish_batch(batch)
    log.close()
    again = open_log(directory)
    assert (again.last_index, again.term, again.voted_for) == (30, 30, "a")
    again.close()


def test_check_beside_a_live_writer(directory: Path) -> None:
    log = open_log(directory)
    is_over = threading.Event()

    def write() -> None:
        index = 0
        while not is_over.is_set():
            for _ in range(5):
                index += 1
                log.append(b"x" * 300, index=index, term=1)
            log.sync()
            if index > 200:
                log.truncate_prefix(index - 200)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            assert check(directory).problems == []
    finally:
        is_over.set()
        writer.join()
        log.close()
    assert check(directory).last_index == log.last_index


def test_lock_excludes_and_names_the_holder(directory: Path) -> None:
    log = open_log(directory)
    with pytest.raises(Locked, match="pid "):
        open_log(directory)
    log.close()
    open_log(directory).close()


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = REAL_FILES.create(path)
    file.allocate(3 << 20)
    file.pwrite(b"abc", 5)
    file.sync()
    assert file.pread(4, 4) == b"\0abc"
    file.close()
    file.close()
    assert REAL_FILES.size(path) == 3 << 20
    REAL_FILES.rename(path, tmp_path / "g")
    REAL_FILES.sync_directory(tmp_path)
    assert REAL_FILES.names(tmp_path) == ["g"]
    REAL_FILES.remove(tmp_path / "g")
    REAL_FILES.remove(tmp_path / "g")
    assert REAL_FILES.free_bytes(tmp_path) > 0
    assert len(REAL_FILES.entropy(16)) == 16
