"""Each of these bugs is planted, and must be found: else the harness shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.crash.disk import MemoryDisk
from tests.crash.test_failures import restart_after_failed_sync
from tests.crash.test_power_cuts import judge
from tests.crash.workload import Life, crashes, open_log
from wal import Corrupt
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


def is_found(make: Callable[[int], MemoryDisk], *, limit: int = 4, seeds: range = SEEDS) -> bool:
    for seed in seeds:
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
    assert not is_found(honest, seeds=SEEDS[:2])


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
    def resurrected() -> bool:
        """A batch of two is torn in its first record; a new record of that size takes its place."""
        disk = MemoryDisk(seed=1)
        life = Life(disk, 1)
        life.begin()
        before = len(disk.events)
        for letter in b"xy":
            payload = bytes([letter]) * 480
            life.log.append(payload, index=life.log.last_index + 1, term=9)
        life.log.sync()
        image = disk.image()
        write = next(event for event in disk.events[before:] if event.kind == "write")
        path = next(path for path in image if path.suffix == ".seg")
        content = bytearray(image[path] or b"")
        content[write.offset : write.offset + 512] = bytes(512)
        image[path] = bytes(content)
        again = MemoryDisk(image)
        log = open_log(again)
        assert log.last_index == 0
        log.append(b"z" * 480, index=1, term=10)
        log.sync()
        return open_log(MemoryDisk(again.image())).last_index == 2

    assert not resurrected()
    original = SegmentWriter.resume

    def resume(self: SegmentWriter, chain: Chain) -> None:
        chain.torn = None
        original(self, chain)

    monkeypatch.setattr(SegmentWriter, "resume", resume)
    assert resurrected()


def test_trusting_what_a_failed_sync_left_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SegmentWriter.resume

    def resume(self: SegmentWriter, chain: Chain) -> None:
        chain.unsynced = (PAGE_BYTES, b"")
        original(self, chain)

    monkeypatch.setattr(SegmentWriter, "resume", resume)
    with pytest.raises((AssertionError, Corrupt)):
        restart_after_failed_sync(SEEDS[0])
