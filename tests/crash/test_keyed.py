"""Power cuts and damage on a keyed store."""

from __future__ import annotations

from random import Random

import pytest

from tests.crash.damage import DAMAGES, remove_file
from tests.crash.disk import Image, MemoryDisk, Replayer
from tests.crash.keyed_workload import ROOT, AllowedItems, KeyedLife, open_store
from wal import Corrupt, WrongIdentity


def live(seed: int) -> tuple[MemoryDisk, KeyedLife]:
    disk = MemoryDisk(seed=seed)
    life = KeyedLife(disk, seed)
    life.steps(60)
    life.sync()
    return disk, life


def cut_power(seed: int, *, limit: int) -> int:
    random = Random(seed)
    disk, _ = live(seed)
    replayer, allowed, count = Replayer(), AllowedItems(((),)), 0
    for number, event in enumerate(disk.events):
        replayer.apply(event)
        if isinstance(event.note, AllowedItems):
            allowed = event.note
            continue
        for image in replayer.images(random, limit=limit):
            count += 1
            copy = MemoryDisk(image, seed=5)
            copy.make_directory(ROOT.parent)
            store = open_store(copy)
            where = f"seed {seed}, event {number}"
            assert tuple(store.items()) in allowed.states, where
            assert store.damaged == [], where
    return count


def examine_damage(seed: int, *, images: int) -> int:
    """Every loss is named, by its key or as of unknown key; no value is wrong. Counts losses."""
    random = Random(seed)
    disk, life = live(seed)
    life.store.write_mark()
    truth, losses = dict(life.store.items()), 0
    image = disk.image()
    kinds = [kind for kind in DAMAGES if kind is not remove_file]
    for _ in range(images):
        hurt: Image = dict(image)
        what = random.choice(kinds)(hurt, random)
        try:
            store = open_store(MemoryDisk(hurt, seed=6))
        except (Corrupt, WrongIdentity):
            assert hurt[ROOT / "identity"] != image[ROOT / "identity"], f"seed {seed}, {what}"
            continue
        found, named = dict(store.items()), {item.key for item in store.damaged}
        losses += bool(named)
        for key in truth.keys() | found.keys():
            is_right = truth.get(key) == found.get(key)
            assert is_right or key in named or None in named, f"seed {seed}, {what}: {key!r}"
        # It goes on, and what is written after the damage is safe.
        store.put(b"after", b"1")
        store.sync()
        store.close()
    return losses


@pytest.mark.parametrize("seed", range(4))
def test_power_cuts(seed: int) -> None:
    assert cut_power(seed, limit=4) > 200


def test_damage_is_always_named() -> None:
    assert sum(examine_damage(seed, images=25) for seed in range(12)) > 30


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_many_power_cuts_and_damages() -> None:
    count = 0
    for seed in range(1000, 1012):
        count += cut_power(seed, limit=16)
        examine_damage(seed, images=200)
    assert count > 5_000
