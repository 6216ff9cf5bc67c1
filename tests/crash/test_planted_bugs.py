"""Each of these bugs is planted, and must be found: else the harness shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.crash.disk import MemoryDisk
from tests.crash.test_power_cuts import explore_recovery, judge
from tests.crash.workload import Life, crashes
from wal.batch import Batch
from wal.files import File
from wal.recovery import Chain
from wal.settings import PAGE_BYTES
from wal.writer import SegmentWriter

SEEDS = range(200, 230)


class ForgetfulDisk(MemoryDisk):
    """Does not make a segment's first page durable."""

    def sync(self, node: int) -> None:
        last = self.events[-1]
        if not (last.kind == "write" and last.node == node and last.offset == 0):
            super().sync(node)


def is_found(make: Callable[[int], MemoryDisk], *, limit: int = 4) -> bool:
    for seed in SEEDS:
        disk = make(seed)
        life = Life(disk, seed)
        try:
            life.begin()
            life.steps(60)
            for crash in crashes(disk, Random(seed), limit=limit):
                judge(crash, seed)
        except AssertionError:
            return True
    return False


def honest(seed: int) -> MemoryDisk:
    return MemoryDisk(seed=seed)


def test_no_bug_is_found_where_none_is() -> None:
    global_seeds = SEEDS[:3]
    for seed in global_seeds:
        disk = honest(seed)
        life = Life(disk, seed)
        life.begin()
        life.steps(60)
        for crash in crashes(disk, Random(seed), limit=4):
            judge(crash, seed)


@pytest.mark.parametrize("lie", ["sync", "syncdir"])
def test_a_sync_that_is_skipped(lie: str) -> None:
    def lying(seed: int) -> MemoryDisk:
        disk = honest(seed)
        disk.lies = frozenset({lie})
        return disk

    assert is_found(lying)


def test_acknowledging_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[File] = []

    def sync(self: SegmentWriter, file: File) -> None:
        # Each sync is done when the next one is due.
        for earlier in late:
            earlier.sync()
        late[:] = [file]

    monkeypatch.setattr(SegmentWriter, "_sync", sync)
    assert is_found(honest)


def test_a_segment_named_before_its_header_is_durable() -> None:
    assert is_found(lambda seed: ForgetfulDisk(seed=seed))


def test_leaving_a_segment_before_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SegmentWriter._write_batch

    def write(self: SegmentWriter, batch: Batch) -> None:
        first, *rest = batch.pieces
        if rest and first.data and not first.is_done:
            self._require_active().file.pwrite(first.data, first.offset)
            first.is_done = True
        original(self, batch)

    monkeypatch.setattr(SegmentWriter, "_write_batch", write)
    # Sealing syncs the same file, so only the moment before that can show it.
    assert is_found(honest, limit=16)


def test_deleting_segments_before_that_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SegmentWriter._write_batch

    def write(self: SegmentWriter, batch: Batch) -> None:
        self._remove(batch.obsolete)
        original(self, batch)

    monkeypatch.setattr(SegmentWriter, "_write_batch", write)
    assert is_found(honest)


def test_leaving_a_torn_tail_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SegmentWriter.resume

    def resume(self: SegmentWriter, chain: Chain) -> None:
        chain.torn = None
        original(self, chain)

    monkeypatch.setattr(SegmentWriter, "resume", resume)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            explore_recovery(seed, limit=4)


def test_trusting_what_a_failed_sync_left_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SegmentWriter.resume

    def resume(self: SegmentWriter, chain: Chain) -> None:
        chain.unsynced = (PAGE_BYTES, b"")
        original(self, chain)

    monkeypatch.setattr(SegmentWriter, "resume", resume)
    from tests.crash.test_failures import restart_after_failed_sync

    with pytest.raises(AssertionError):
        for seed in SEEDS:
            restart_after_failed_sync(seed)
