"""Power cuts: at every write, sync and name change, with every kind of loss that may follow."""

from __future__ import annotations

from random import Random

import pytest

from tests.crash.disk import MemoryDisk
from tests.crash.workload import Crash, Life, crashes, violation
from wal import WalError


def live(seed: int, *, steps: int = 60) -> MemoryDisk:
    disk = MemoryDisk(seed=seed)
    life = Life(disk, seed)
    life.begin()
    life.steps(steps)
    life.sync()
    return disk


def judge(crash: Crash, seed: int) -> None:
    try:
        found = violation(crash)
    except WalError as error:
        found = f"refused: {error}"
    assert found is None, f"seed {seed}, event {crash.event_number}: {found}"


def explore(seed: int, *, limit: int) -> int:
    random = Random(seed)
    count = 0
    for crash in crashes(live(seed), random, limit=limit):
        judge(crash, seed)
        count += 1
    return count


def explore_recovery(seed: int, *, limit: int) -> int:
    """Power cuts during the recovery from a power cut, and during the life that follows it."""
    random = Random(seed)
    count = 0
    for crash in crashes(live(seed), random, limit=2):
        if not crash.allowed.is_founded or random.random() > 1 / 40:
            continue
        disk = MemoryDisk(crash.image, seed=seed + 1)
        disk.note(crash.allowed)
        life = Life(disk, seed)
        life.resume()
        life.steps(6)
        for second in crashes(disk, random, limit=limit, start=crash.image):
            judge(second, seed)
            count += 1
    return count


@pytest.mark.parametrize("seed", range(8))
def test_recovery_finds_what_was_acknowledged(seed: int) -> None:
    assert explore(seed, limit=6) > 250


def test_recovery_survives_being_interrupted() -> None:
    assert sum(explore_recovery(seed, limit=4) for seed in range(100, 105)) > 400


@pytest.mark.ci
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_thousand_states(part: int) -> None:
    count, seed = 0, 10_000 * (part + 1)
    while count < 25_500:
        count += explore(seed, limit=16) + explore_recovery(seed, limit=8)
        seed += 1
