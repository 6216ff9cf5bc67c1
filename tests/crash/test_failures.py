"""Syncs that fail, and a disk that is full."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.crash.disk import MemoryDisk, Replayer
from tests.crash.test_power_cuts import judge
from tests.crash.workload import Allowed, Crash, Life, State, crashes, open_log
from wal import Closed, OutOfSpace, SyncFailed, WriteAheadLog


def fail_sync(disk: MemoryDisk, number: int) -> None:
    """Let the `number`-th sync from now on fail, and all after it."""
    left = [number]

    def fault(kind: str) -> None:
        if kind == "sync":
            left[0] -= 1
            if left[0] <= 0:
                raise OSError(errno.EIO, "input/output error")

    disk.fault = fault


def restart_after_failed_sync(seed: int) -> None:
    """A sync fails, the process restarts on the page cache, and then the power is cut.

    The cache shows what the disk lacks: what the restarted log calls durable must survive the cut.
    """
    disk = MemoryDisk(seed=seed)
    life = Life(disk, seed)
    life.begin()
    life.steps(20)
    life.sync()
    for _ in range(3):
        life.append()
    fail_sync(disk, 1)
    batch = life.log.take_batch()
    assert batch is not None
    with pytest.raises(SyncFailed):
        life.log.write_batch(batch)
    disk.fault = None
    life.log.close()
    again = open_log(disk)
    kept = State.of(again)
    assert again.durable_index == again.last_index
    replayer = Replayer()
    for event in disk.events:
        replayer.apply(event)
    for image in replayer.images(Random(seed), limit=8):
        log = open_log(MemoryDisk(image, seed=seed))
        assert State.of(log) == kept, f"seed {seed}"


@pytest.mark.parametrize("seed", range(300, 310))
def test_a_restart_does_not_trust_the_page_cache(seed: int) -> None:
    restart_after_failed_sync(seed)


@pytest.mark.parametrize("number", range(1, 40, 3))
def test_a_failed_sync_is_fatal_and_nothing_is_acknowledged_after_it(number: int) -> None:
    disk = MemoryDisk(seed=number)
    life = Life(disk, 400)
    life.begin()
    fail_sync(disk, number)
    with pytest.raises(SyncFailed):
        life.steps(400)
    durable = life.log.durable_index
    # The step that failed may have been a restart: then the log is closed.
    with pytest.raises((SyncFailed, Closed)):
        life.log.write_mark()
    with pytest.raises((SyncFailed, Closed)):
        life.log.set_hard_state(99, "a")
    with pytest.raises((SyncFailed, Closed)):
        append_and_sync(life.log)
    assert life.log.durable_index == durable
    life.log.close()
    for crash in crashes(disk, Random(number), limit=2):
        judge(crash, 400)


def append_and_sync(log: WriteAheadLog) -> None:
    log.append(b"more", index=log.last_index + 1, term=1)
    log.sync()


def make_full(disk: MemoryDisk) -> None:
    # What is allocated stays usable.
    disk.capacity_bytes = disk._used_bytes()


def fill(log: WriteAheadLog, *, may_use_reserve: bool) -> int:
    """Append and sync until it is refused; returns how many fitted."""
    for count in range(1000):
        try:
            log.append(
                bytes(1000),
                index=log.last_index + 1,
                term=1,
                may_use_reserve=may_use_reserve,
            )
        except OutOfSpace:
            return count
        log.sync()
    raise AssertionError("never full")


def test_full_disk_refuses_entries_but_neither_votes_nor_what_frees_work() -> None:
    disk = MemoryDisk(seed=1)
    life = Life(disk, 1)
    life.begin()
    log = life.log
    make_full(disk)
    plain = fill(log, may_use_reserve=False)
    assert plain > 0
    last = log.last_index
    assert log.stats().is_full
    log.set_hard_state(7, "b")
    assert fill(log, may_use_reserve=True) > 0
    assert log.last_index > last
    log.set_hard_state(8, "c")
    assert log.durable_index == log.last_index
    judge(Crash(disk.image(), Allowed((State.of(log),), ((8, "c"),)), 0), 1)
    assert not log.prepare_spare()
    disk.capacity_bytes = None
    assert log.prepare_spare()
    assert fill_some(log, 20) == 20


def fill_some(log: WriteAheadLog, count: int) -> int:
    for _ in range(count):
        log.append(bytes(1000), index=log.last_index + 1, term=1)
        log.sync()
    return count


def test_batch_without_room_can_be_written_again() -> None:
    disk = MemoryDisk(seed=2)
    life = Life(disk, 2)
    life.begin()
    log = life.log
    make_full(disk)
    # More in one batch than the segment and the reserve hold together.
    for _ in range(12):
        log.append(bytes(1000), index=log.last_index + 1, term=1)
    batch = log.take_batch()
    assert batch is not None
    with pytest.raises(OutOfSpace):
        log.write_batch(batch)
    assert log.durable_index == 0
    disk.capacity_bytes = None
    log.write_batch(batch)
    log.finish_batch(batch)
    assert log.durable_index == 12
    wanted = State.of(log)
    log.close()
    with pytest.raises(Closed):
        log.append(b"", index=13, term=1)
    assert State.of(open_log(disk)) == wanted
