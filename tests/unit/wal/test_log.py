from __future__ import annotations

import pytest

from tests.crash.disk import MemoryDisk
from tests.crash.workload import ROOT, SETTINGS, State, open_log
from wal import (
    Closed,
    Corrupt,
    Entry,
    Identity,
    Locked,
    RecordTooLarge,
    WalSettings,
    WriteAheadLog,
    WrongIdentity,
    create_directory,
)
from wal.identity import raise_incarnation


def append(log: WriteAheadLog, *payloads: bytes, term: int = 1) -> None:
    for payload in payloads:
        log.append(payload, index=log.last_index + 1, term=term)


def reopen(log: WriteAheadLog, disk: MemoryDisk) -> WriteAheadLog:
    log.close()
    return open_log(disk)


def test_new_log_is_empty(log: WriteAheadLog) -> None:
    assert (log.first_index, log.last_index, log.durable_index) == (1, 0, 0)
    assert (log.base_index, log.base_term, log.commit_index) == (0, 0, 0)
    assert (log.term, log.voted_for) == (0, None)
    assert log.take_batch() is None
    assert log.entries(1, 1) == []


def test_entries_are_read_before_and_after_they_are_durable(
    log: WriteAheadLog, disk: MemoryDisk
) -> None:
    append(log, b"a", b"b")
    append(log, b"c", term=2)
    assert log.entry(2) == Entry(b"b", 2, 1) == (b"b", 2, 1)
    assert log.entries(2, 4) == [(b"b", 2, 1), (b"c", 3, 2)]
    assert log.entries(3, 99) == [(b"c", 3, 2)]
    assert log.term_at(0) == 0
    assert log.term_at(3) == 2
    assert log.durable_index == 0
    log.sync()
    assert log.durable_index == 3
    again = reopen(log, disk)
    assert again.entries(1, 4) == [(b"a", 1, 1), (b"b", 2, 1), (b"c", 3, 2)]
    assert again.durable_index == 3
    assert again.recovered is None


def test_what_was_not_synced_is_gone(log: WriteAheadLog, disk: MemoryDisk) -> None:
    append(log, b"a")
    log.sync()
    append(log, b"b")
    assert reopen(log, disk).last_index == 1


@pytest.mark.parametrize("index", [0, 4, -1])
def test_entry_outside_the_log_is_an_error(log: WriteAheadLog, index: int) -> None:
    append(log, b"a", b"b", b"c")
    with pytest.raises(IndexError):
        log.entry(index)


def test_index_must_follow(log: WriteAheadLog) -> None:
    with pytest.raises(AssertionError):
        log.append(b"", index=2, term=1)


def test_batch_is_one_write_and_one_sync(log: WriteAheadLog, disk: MemoryDisk) -> None:
    append(log, *[b"x" * 100] * 10)
    batch = log.take_batch()
    assert batch is not None
    before = len(disk.events)
    log.write_batch(batch)
    assert [event.kind for event in disk.events[before:]] == ["write", "sync"]
    log.write_batch(batch)
    assert len(disk.events) == before + 2
    assert log.durable_index == 0
    log.finish_batch(batch)
    log.finish_batch(batch)
    assert log.durable_index == 10


def test_what_comes_during_a_write_is_the_next_batch(log: WriteAheadLog) -> None:
    append(log, b"a")
    first = log.take_batch()
    assert first is not None
    append(log, b"b")
    assert log.take_batch() is None
    log.write_batch(first)
    log.finish_batch(first)
    assert log.durable_index == 1
    second = log.take_batch()
    assert second is not None
    log.write_batch(second)
    log.finish_batch(second)
    assert log.durable_index == 2


def test_sync_finishes_the_batch_that_is_out(log: WriteAheadLog) -> None:
    append(log, b"a")
    batch = log.take_batch()
    assert batch is not None
    append(log, b"b")
    log.sync()
    assert log.durable_index == 2
    log.write_batch(batch)
    log.finish_batch(batch)
    assert log.durable_index == 2


def test_truncation_during_a_write_keeps_the_new_entries_undurable(
    log: WriteAheadLog, disk: MemoryDisk
) -> None:
    append(log, b"a", b"b", b"c")
    batch = log.take_batch()
    assert batch is not None
    log.truncate_suffix(2)
    append(log, b"B", term=2)
    log.write_batch(batch)
    log.finish_batch(batch)
    # The disk has b at index 2 and not B: acknowledging 2 now would be a lie.
    assert log.durable_index == 1
    log.sync()
    assert log.durable_index == 2
    assert reopen(log, disk).entries(1, 9) == [(b"a", 1, 1), (b"B", 2, 2)]


def test_reset_during_a_write_is_not_undone_by_it(log: WriteAheadLog, disk: MemoryDisk) -> None:
    append(log, *[b"x"] * 9)
    batch = log.take_batch()
    assert batch is not None
    log.reset(4, 3)
    append(log, b"new", term=3)
    log.write_batch(batch)
    log.finish_batch(batch)
    assert log.durable_index == 4
    log.sync()
    assert log.durable_index == 5
    assert State.of(reopen(log, disk)) == State(4, 3, (Entry(b"new", 5, 3),))


def test_truncate_suffix(log: WriteAheadLog, disk: MemoryDisk) -> None:
    append(log, *[b"x" * 500] * 20)
    log.sync()
    log.truncate_suffix(3)
    assert (log.last_index, log.durable_index) == (2, 2)
    log.truncate_suffix(3)
    append(log, b"new", term=4)
    log.sync()
    again = reopen(log, disk)
    assert again.last_index == 3
    assert again.entry(3) == (b"new", 3, 4)


def test_truncate_prefix_drops_segments_and_keeps_the_base(
    log: WriteAheadLog, disk: MemoryDisk
) -> None:
    append(log, *[b"x" * 1000] * 20, term=5)
    log.sync()
    before = len(disk.names(ROOT / "wal"))
    log.truncate_prefix(15)
    log.truncate_prefix(10)
    assert (log.base_index, log.base_term, log.first_index) == (15, 5, 16)
    assert log.term_at(15) == 5
    with pytest.raises(IndexError):
        log.entry(15)
    with pytest.raises(IndexError):
        log.entries(15, 17)
    log.sync()
    assert len(disk.names(ROOT / "wal")) < before
    again = reopen(log, disk)
    assert (again.base_index, again.base_term, again.last_index) == (15, 5, 20)
    again.truncate_prefix(20)
    again.sync()
    empty = reopen(again, disk)
    assert (empty.base_index, empty.base_term, empty.last_index) == (20, 5, 20)
    assert empty.commit_index == 20


def test_reset_goes_on_behind_a_snapshot(log: WriteAheadLog, disk: MemoryDisk) -> None:
    append(log, *[b"x" * 1000] * 20)
    log.sync()
    log.reset(1000, 7)
    assert (log.first_index, log.last_index, log.durable_index) == (1001, 1000, 1000)
    append(log, b"next", term=8)
    log.sync()
    segments = [name for name in disk.names(ROOT / "wal") if name.endswith(".seg")]
    assert len(segments) == 1
    again = reopen(log, disk)
    assert State.of(again) == State(1000, 7, (Entry(b"next", 1001, 8),))


def test_hard_state_is_durable_on_return(log: WriteAheadLog, disk: MemoryDisk) -> None:
    log.set_hard_state(3, None)
    log.set_hard_state(3, "b")
    assert (log.term, log.voted_for) == (3, "b")
    again = open_log(MemoryDisk(disk.image()))
    assert (again.term, again.voted_for) == (3, "b")
    again.set_hard_state(4, None)
    assert again.voted_for is None


def test_hard_state_while_a_batch_is_out(log: WriteAheadLog, disk: MemoryDisk) -> None:
    append(log, b"a", term=2)
    batch = log.take_batch()
    assert batch is not None
    log.set_hard_state(9, "c")
    log.write_batch(batch)
    log.finish_batch(batch)
    again = reopen(log, disk)
    assert (again.term, again.voted_for, again.last_index) == (9, "c", 1)


@pytest.mark.parametrize(("term", "vote"), [(2, "a"), (3, "c"), (3, None)])
def test_hard_state_never_goes_back(log: WriteAheadLog, term: int, vote: str | None) -> None:
    log.set_hard_state(3, "b")
    with pytest.raises(ValueError, match=r"term|voted"):
        log.set_hard_state(term, vote)


def test_hard_state_survives_many_segments(log: WriteAheadLog, disk: MemoryDisk) -> None:
    log.set_hard_state(6, "a")
    for _ in range(40):
        append(log, b"x" * 1000, term=6)
        log.sync()
        log.truncate_prefix(log.last_index)
    log.sync()
    again = reopen(log, disk)
    assert (again.term, again.voted_for) == (6, "a")


def test_commit_index_is_lazy_and_clamped(log: WriteAheadLog, disk: MemoryDisk) -> None:
    append(log, b"a", b"b")
    log.sync()
    log.note_commit_index(5)
    assert log.commit_index == 2
    assert log.take_batch() is None
    append(log, b"c")
    log.sync()
    assert log.commit_index == 3
    log.truncate_suffix(2)
    assert log.commit_index == 1
    log.sync()
    assert reopen(log, disk).commit_index == 1


def test_segments_roll(log: WriteAheadLog, disk: MemoryDisk) -> None:
    payloads = [bytes([number]) * 900 for number in range(30)]
    append(log, *payloads)
    log.sync()
    assert log.stats().segment_count > 5
    assert log.size_bytes > 30 * 900
    again = reopen(log, disk)
    assert [entry.payload for entry in again.entries(1, 31)] == payloads


def test_spare_is_used(log: WriteAheadLog, disk: MemoryDisk) -> None:
    assert log.prepare_spare()
    append(log, *[b"x" * 900] * 5)
    batch = log.take_batch()
    assert batch is not None
    before = len(disk.events)
    log.write_batch(batch)
    assert "create" not in [event.kind for event in disk.events[before:]]


def test_record_bytes_max(log: WriteAheadLog) -> None:
    append(log, bytes(SETTINGS.record_bytes_max))
    with pytest.raises(RecordTooLarge):
        append(log, bytes(SETTINGS.record_bytes_max + 1))
    assert log.last_index == 1


def test_closed_log_refuses(log: WriteAheadLog) -> None:
    append(log, b"a")
    log.close()
    log.close()
    with pytest.raises(Closed):
        append(log, b"b")
    with pytest.raises(Closed):
        log.set_hard_state(1, None)


def test_directory_is_locked(log: WriteAheadLog, disk: MemoryDisk) -> None:
    with pytest.raises(Locked):
        open_log(disk)
    log.close()
    open_log(disk)


def test_unfounded_directory_is_refused() -> None:
    disk = MemoryDisk()
    disk.make_directory(ROOT)
    with pytest.raises(WrongIdentity, match="cluster init"):
        open_log(disk)


@pytest.mark.parametrize("other", [Identity("x", "a"), Identity("cluster", "b")])
def test_other_owner_is_refused(log: WriteAheadLog, disk: MemoryDisk, other: Identity) -> None:
    log.close()
    with pytest.raises(WrongIdentity, match=r"'cluster'"):
        WriteAheadLog.open(ROOT, identity=other, settings=SETTINGS, fs=disk)


def test_segments_of_another_member_are_refused(log: WriteAheadLog, disk: MemoryDisk) -> None:
    log.close()
    other = MemoryDisk(disk.image())
    path = next(path for path in other.tree if path.suffix == ".seg")
    foreign = MemoryDisk(seed=8)
    foreign.make_directory(ROOT)
    create_directory(ROOT, Identity("cluster", "z"), fs=foreign)
    WriteAheadLog.open(ROOT, identity=Identity("cluster", "z"), settings=SETTINGS, fs=foreign)
    image = disk.image()
    image[path] = foreign.read(path)
    with pytest.raises(WrongIdentity, match="'z'"):
        open_log(MemoryDisk(image))


def test_a_later_incarnation_reads_the_log_and_the_old_one_no_more(
    log: WriteAheadLog, disk: MemoryDisk
) -> None:
    append(log, b"a")
    log.sync()
    log.close()
    later = raise_incarnation(ROOT, 5, fs=disk)
    assert later == Identity("cluster", "a", 5)
    with pytest.raises(ValueError, match="already"):
        raise_incarnation(ROOT, 5, fs=disk)
    with pytest.raises(WrongIdentity):
        open_log(disk)
    again = WriteAheadLog.open(ROOT, identity=later, settings=SETTINGS, fs=disk)
    assert again.last_index == 1


def test_missing_segments_are_a_loss_and_not_a_new_log(
    log: WriteAheadLog, disk: MemoryDisk
) -> None:
    append(log, *[b"x" * 900] * 30)
    log.sync()
    names = [path for path in disk.image() if path.suffix == ".seg"]
    assert len(names) > 3
    for gone in ([names[0]], [names[2]], [names[-1]], names):
        image = {path: content for path, content in disk.image().items() if path not in gone}
        with pytest.raises(Corrupt):
            open_log(MemoryDisk(image))


def test_damage_names_file_offset_and_choices(log: WriteAheadLog, disk: MemoryDisk) -> None:
    append(log, *[b"x" * 100] * 10)
    log.sync()
    log.close()
    image = disk.image()
    path = next(path for path in image if path.suffix == ".seg")
    content = bytearray(image[path] or b"")
    content[4096 + 300] ^= 1
    image[path] = bytes(content)
    with pytest.raises(Corrupt) as caught:
        open_log(MemoryDisk(image))
    assert caught.value.path == path
    assert caught.value.offset == 4096 + 2 * 136
    for expected in (path.name, "4368", "wal check", "cluster replace", "--truncate-at"):
        assert expected in str(caught.value)


def test_torn_tail_is_cut_and_announced(log: WriteAheadLog, disk: MemoryDisk) -> None:
    append(log, b"kept")
    log.sync()
    log.write_mark()
    append(log, b"y" * 100)
    log.sync()
    image = disk.image()
    path = next(path for path in image if path.suffix == ".seg")
    content = bytearray(image[path] or b"")
    content[4096 + 40 + 60] ^= 1
    image[path] = bytes(content)
    torn = MemoryDisk(image)
    again = open_log(torn)
    assert again.last_index == 1
    assert again.recovered is not None
    assert (again.recovered.name, again.recovered.offset) == (path.name, 4096 + 40)
    assert reopen(again, torn).recovered is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_bytes": 5000},
        {"segment_bytes": 1 << 31},
        {"reserve_bytes": 4096},
        {"record_bytes_max": 0},
        {"segment_bytes": 8192, "reserve_bytes": 8192, "record_bytes_max": 4096},
    ],
)
def test_clashing_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="bytes"):
        WalSettings(**wrong)  # type: ignore[arg-type]


def test_presets() -> None:
    assert WalSettings().segment_bytes == 64 << 20
    assert WalSettings.local().segment_bytes == 16 << 20
    assert WalSettings.agent().segment_bytes == 4 << 20
