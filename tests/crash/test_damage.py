"""Damage: refused or without effect. Never a silent loss, a wrong record or a lost vote."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tests.crash.damage import DAMAGES, flip, specimen
from tests.crash.disk import MemoryDisk
from tests.crash.workload import ROOT, Crash, Life, open_log, violation
from wal import Corrupt, WalError
from wal import recovery as recovery_module
from wal.check import check
from wal.segment import Slot
from wal.settings import PAGE_BYTES
from wal.writer import SegmentWriter, _Active


def examine(seeds: range, *, per_specimen: int) -> Counter[str]:
    """Damage images and count the verdicts; AssertionError for a silent one."""
    verdicts: Counter[str] = Counter()
    for seed in seeds:
        random = Random(seed)
        found = specimen(seed)
        for _ in range(per_specimen):
            crash = random.choice((found.clean, *found.in_flight))
            image = dict(crash.image)
            what = random.choice(DAMAGES)(image, random)
            if image == crash.image:
                verdicts["unchanged"] += 1
                continue
            try:
                wrong = violation(Crash(image, crash.allowed, crash.event_number))
            except WalError:
                verdicts["refused"] += 1
                continue
            assert wrong is None, f"seed {seed}, event {crash.event_number}, {what}: {wrong}"
            verdicts["harmless"] += 1
    return verdicts


def test_damage_is_never_silent() -> None:
    verdicts = examine(range(40), per_specimen=30)
    assert verdicts["refused"] > 300
    assert verdicts["harmless"] > 50


@pytest.mark.ci
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(2))
def test_a_hundred_thousand_damaged_images(part: int) -> None:
    first = 50_000 * (part + 1)
    verdicts = examine(range(first, first + 1020), per_specimen=52)
    assert verdicts.total() > 50_000
    assert verdicts["refused"] > 20_000


def test_undamaged_specimens_open() -> None:
    for seed in range(20):
        found = specimen(seed)
        for crash in (found.clean, *found.in_flight):
            assert violation(crash) is None, f"seed {seed}, event {crash.event_number}"


def test_every_flipped_bit_is_seen_by_check() -> None:
    for seed in range(10):
        random = Random(seed)
        clean = specimen(seed).clean.image
        before = check(ROOT, fs=MemoryDisk(clean))
        assert before.is_sound
        assert not before.notes
        for _ in range(40):
            image = dict(clean)
            what = flip(image, random)
            try:
                report = check(ROOT, fs=MemoryDisk(image))
            except WalError:
                continue
            assert report.problems or report.notes, f"seed {seed}, {what}"


def test_planted_ignoring_the_mark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = recovery_module.decode_slots

    def blind(page: bytes, *, seed: int) -> tuple[Slot | None, Slot | None]:
        first, second = original(page, seed=seed)
        return (
            replace(first, synced_upto=4096) if first else None,
            replace(second, synced_upto=4096) if second else None,
        )

    monkeypatch.setattr(recovery_module, "decode_slots", blind)
    with pytest.raises(AssertionError):
        examine(range(60), per_specimen=30)


def batch_lost_without_a_mark() -> MemoryDisk:
    """Two acknowledged batches of one record, no mark yet, and the first record is damaged."""
    disk = MemoryDisk(seed=1)
    life = Life(disk, 1)
    life.begin()
    for _ in range(2):
        life.log.append(b"x" * 480, index=life.log.last_index + 1, term=9)
        life.log.sync()
    image = disk.image()
    path = next(path for path in image if path.suffix == ".seg")
    content = bytearray(image[path] or b"")
    content[PAGE_BYTES + 100] ^= 1
    image[path] = bytes(content)
    return MemoryDisk(image)


def test_a_record_behind_the_damage_is_heard() -> None:
    with pytest.raises(Corrupt):
        open_log(batch_lost_without_a_mark())


def test_planted_not_hearing_it_loses_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_module, "find_frames", lambda *_, **__: iter(()))
    assert open_log(batch_lost_without_a_mark()).last_index == 0


def test_planted_single_slot_for_the_vote_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(self: SegmentWriter, active: _Active) -> None:
        self._write_slot(active, max(active.marked_upto, active.place.synced))

    monkeypatch.setattr(SegmentWriter, "_write_slots_both", one)
    with pytest.raises(AssertionError):
        examine(range(60), per_specimen=30)
