"""What a full disk refuses, what the reserve is kept for, and that room coming back is enough."""

from __future__ import annotations

import pytest

from tests.crash.disk import MemoryDisk
from tests.crash.test_failures import fill, make_full
from tests.crash.workload import IDENTITY, ROOT, SETTINGS, State, found, open_log
from wal import OutOfSpace, WriteAheadLog
from wal.log import LEADING_ROOM_BYTES
from wal.settings import WalSettings
from wal.writer import RESERVE_NAME

RESERVE = ROOT / "wal" / RESERVE_NAME


def full_log(*, settings: WalSettings = SETTINGS) -> tuple[MemoryDisk, WriteAheadLog]:
    """A log that found no room for its next segment, with the reserve untouched."""
    disk = MemoryDisk(seed=1)
    found(disk)
    log = open_log(disk) if settings is SETTINGS else open_with(disk, settings)
    make_full(disk)
    assert not log.prepare_spare()
    return disk, log


def open_with(disk: MemoryDisk, settings: WalSettings) -> WriteAheadLog:
    return WriteAheadLog.open(ROOT, identity=IDENTITY, settings=settings, fs=disk)


def append(log: WriteAheadLog, *, may_use_reserve: bool, size: int = 1000) -> None:
    log.append(bytes(size), index=log.last_index + 1, term=1, may_use_reserve=may_use_reserve)


def test_ordinary_entries_fill_the_segment_and_leave_the_reserve_alone() -> None:
    disk, log = full_log()
    plain = fill(log, may_use_reserve=False)
    assert plain == 3
    assert disk.exists(RESERVE)
    assert not log.stats().is_full
    urgent = fill(log, may_use_reserve=True)
    assert urgent == 3, "the whole reserve is theirs"
    assert not disk.exists(RESERVE)
    assert log.durable_index == plain + urgent
    log.set_hard_state(9, "b")
    kept = State.of(log)
    log.close()
    again = open_log(disk)
    assert (State.of(again), again.term, again.voted_for) == (kept, 9, "b")


def test_entries_of_one_batch_are_counted_before_they_are_written() -> None:
    _, log = full_log()
    for _ in range(3):
        append(log, may_use_reserve=True)
    with pytest.raises(OutOfSpace):
        append(log, may_use_reserve=False)
    with pytest.raises(OutOfSpace):
        append(log, may_use_reserve=True)
    log.sync()
    append(log, may_use_reserve=True)
    log.sync()
    assert log.durable_index == log.last_index == 4


def test_room_coming_back_brings_the_reserve_back() -> None:
    disk, log = full_log()
    fill(log, may_use_reserve=False)
    fill(log, may_use_reserve=True)
    assert not log.prepare_spare()
    disk.capacity_bytes = None
    assert log.prepare_spare()
    assert disk.exists(RESERVE)
    for _ in range(20):
        append(log, may_use_reserve=False)
        log.sync()


def test_a_disk_known_to_be_full_is_not_written_to_once_more() -> None:
    disk, log = full_log()
    before = len(disk.events)
    assert not log.prepare_spare()
    assert len(disk.events) == before


def test_a_member_has_room_while_it_could_record_that_it_leads() -> None:
    settings = WalSettings(
        segment_bytes=1 << 16, reserve_bytes=1 << 16, record_bytes_max=2048, housekeeping=False
    )
    disk, log = full_log(settings=settings)
    fill(log, may_use_reserve=False)
    assert log.has_room, "there is the reserve"
    while log.has_room:
        append(log, may_use_reserve=True)
        log.sync()
    left = fill(log, may_use_reserve=True)
    assert 0 < left * 1000 < LEADING_ROOM_BYTES
    disk.capacity_bytes = None
    assert log.prepare_spare()
    assert log.has_room


def test_a_log_opened_on_a_full_disk_knows_what_is_left() -> None:
    disk, log = full_log()
    fill(log, may_use_reserve=False)
    log.close()
    log = open_log(disk)
    assert not log.prepare_spare()
    assert fill(log, may_use_reserve=False) == 0
    assert fill(log, may_use_reserve=True) == 3
    log.close()
    log = open_log(disk)
    with pytest.raises(OutOfSpace):
        append(log, may_use_reserve=False)
    assert log.stats().is_full
    assert not log.has_room
