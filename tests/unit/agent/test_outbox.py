"""The outbox: numbers, what is due when, and what survives on disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agent.outbox import IN_FLIGHT_MAX, RESEND_MS, Outbox, OutboxDisk, Writes
from scheduler.protocol.messages import ITEMS_MAX, Report
from wal.errors import OutOfSpace

RNG = random.Random(1)


def report(token: str, kind: str = "started") -> Report:
    return Report(kind=kind, token=token)


def filled(count: int) -> Outbox:
    outbox = Outbox()
    for number in range(count):
        outbox.add(report(f"t{number}"))
    outbox.mark_written(count)
    return outbox


def test_reports_are_numbered_from_one_and_sent_in_that_order() -> None:
    outbox = filled(3)
    assert [r.sequence for r in outbox.take_batch(0, RNG)] == [1, 2, 3]


def test_nothing_is_sent_before_it_is_durable() -> None:
    outbox = Outbox()
    outbox.add(report("a"))
    outbox.add(report("b"))
    assert outbox.take_batch(0, RNG) == ()
    outbox.mark_written(1)
    assert [r.token for r in outbox.take_batch(0, RNG)] == ["a"]


def test_batches_and_flight_are_bounded() -> None:
    outbox = filled(IN_FLIGHT_MAX + 100)
    sizes = []
    while batch := outbox.take_batch(0, RNG):
        sizes.append(len(batch))
    assert sizes == [ITEMS_MAX] * (IN_FLIGHT_MAX // ITEMS_MAX)
    outbox.commit(range(1, 101))
    assert len(outbox.take_batch(0, RNG)) == 100


def test_an_unanswered_report_is_due_again_ever_later() -> None:
    outbox, rng = filled(1), random.Random(5)
    outbox.take_batch(0, rng)
    at_ms, sent_ms, waits = 0, 0, []
    while len(waits) < 12:
        at_ms += 50
        if outbox.take_batch(at_ms, rng):
            waits.append(at_ms - sent_ms)
            sent_ms = at_ms
    assert min(waits) >= RESEND_MS
    assert waits[0] <= RESEND_MS + 1_050
    assert max(waits) > RESEND_MS + 10_000
    assert max(waits) <= RESEND_MS + 30_050


def test_committed_reports_are_gone_and_said_once() -> None:
    outbox = filled(2)
    outbox.take_batch(0, RNG)
    assert [r.token for r in outbox.commit([1, 2, 99])] == ["t0", "t1"]
    assert outbox.commit([1]) == []
    assert len(outbox) == 0
    assert outbox.take_batch(1 << 40, RNG) == ()


def test_refused_reports_come_again_at_their_time() -> None:
    outbox = filled(1)
    outbox.take_batch(0, RNG)
    outbox.refuse([1], retry_at_ms=90_000)
    assert outbox.take_batch(89_999, RNG) == ()
    assert len(outbox.take_batch(90_000, RNG)) == 1


def test_a_refusal_of_what_is_not_in_flight_changes_nothing() -> None:
    outbox = filled(1)
    outbox.refuse([1, 7], retry_at_ms=90_000)
    assert len(outbox.take_batch(0, RNG)) == 1


def test_a_report_dropped_before_it_came_to_disk_needs_no_put() -> None:
    outbox = Outbox()
    outbox.add(report("a"))
    outbox.drop_token("a")
    writes = outbox.take_writes()
    assert writes == Writes(puts=(), drops=(1,), last_sequence=1)


def test_only_the_named_kinds_of_a_token_are_dropped() -> None:
    outbox = Outbox()
    outbox.add(report("a", "not_started"))
    outbox.add(report("a", "finished"))
    outbox.drop_token("a", ("not_started",))
    assert not outbox.has("a", "not_started")
    assert outbox.has("a", "finished")


def test_the_oldest_unanswered_report_is_known() -> None:
    outbox = filled(2)
    assert outbox.oldest_in_flight_ms() is None
    outbox.take_batch(70, RNG)
    outbox.commit([1])
    assert outbox.oldest_in_flight_ms() == 70
    outbox.commit([2])
    assert outbox.oldest_in_flight_ms() is None


def opened(path: Path) -> tuple[OutboxDisk, Outbox]:
    disk = OutboxDisk(path, cluster_id="c", name="a1")
    reports, last = disk.load()
    return disk, Outbox.restore(reports, last_sequence=last)


def write(disk: OutboxDisk, outbox: Outbox) -> None:
    writes = outbox.take_writes()
    assert writes is not None
    disk.write(writes)
    outbox.mark_written(writes.last_sequence)


def test_reports_and_numbers_survive_a_restart(tmp_path: Path) -> None:
    disk, outbox = opened(tmp_path)
    for name in ("a", "b", "c"):
        outbox.add(report(name))
    write(disk, outbox)
    outbox.commit([2])
    write(disk, outbox)
    disk.close()
    disk, outbox = opened(tmp_path)
    assert [(r.token, r.sequence) for r in outbox.take_batch(0, RNG)] == [("a", 1), ("c", 3)]
    assert outbox.add(report("d")).sequence == 4
    disk.close()


def test_numbers_never_count_back_when_the_newest_was_committed(tmp_path: Path) -> None:
    disk, outbox = opened(tmp_path)
    outbox.add(report("a"))
    write(disk, outbox)
    outbox.commit([1])
    write(disk, outbox)
    disk.close()
    disk, outbox = opened(tmp_path)
    assert len(outbox) == 0
    assert outbox.add(report("b")).sequence == 2
    disk.close()


def test_a_full_disk_is_tried_again_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, outbox = opened(tmp_path)
    for name in ("a", "b", "c"):
        outbox.add(report(name))
    writes = outbox.take_writes()
    assert writes is not None
    store = disk._store
    put, keys = store.put, []

    def full_at_the_second(key: bytes, value: bytes) -> None:
        if len(keys) == 1:
            keys.append(b"refused")
            raise OutOfSpace("full")
        keys.append(key)
        put(key, value)

    monkeypatch.setattr(store, "put", full_at_the_second)
    with pytest.raises(OutOfSpace):
        disk.write(writes)
    disk.write(writes)
    disk.close()
    assert len(keys) == 4
    disk, outbox = opened(tmp_path)
    assert len(outbox) == 3
    disk.close()
