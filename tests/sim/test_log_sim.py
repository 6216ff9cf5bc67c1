"""The log's simulator over fixed seeds, and the proof that it finds planted bugs."""

from __future__ import annotations

import pytest

from tests.sim.plants import PLANTS, planted
from tests.sim.world import run_seed

QUICK_SEEDS = range(40)
MANY_SEEDS = range(1_000, 1_300)


@pytest.mark.parametrize("first", range(0, len(QUICK_SEEDS), 10))
def test_no_seed_breaks_a_promise(first: int) -> None:
    for seed in QUICK_SEEDS[first : first + 10]:
        result = run_seed(seed)
        assert result.violations == [], f"replay: python -m tests.sim --seed {seed}"
        assert result.acked > 0


@pytest.mark.ci
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, len(MANY_SEEDS), 50))
def test_no_seed_of_many_breaks_a_promise(first: int) -> None:
    for seed in MANY_SEEDS[first : first + 50]:
        result = run_seed(seed)
        assert result.violations == [], f"replay: python -m tests.sim --seed {seed}"


def test_a_seed_replays_exactly() -> None:
    assert run_seed(3) == run_seed(3)


#: Bugs that show at once, and how many seeds may be needed.
QUICK_PLANTS = {
    "ack_before_sync": 20,
    "truncate_on_match": 20,
    "commit_unverified": 20,
    "read_before_noop": 20,
    "count_joiners": 60,
}
#: Bugs that need more. The others of PLANTS need thousands of seeds; unit tests show those cures.
SLOW_PLANTS = {"read_without_round": 300, "resume_at_the_end": 20}


def is_found(plant: str, seeds: int) -> bool:
    with planted(plant):
        return any(run_seed(seed).violations for seed in range(seeds))


@pytest.mark.parametrize("plant", QUICK_PLANTS)
def test_a_planted_bug_is_found(plant: str) -> None:
    assert is_found(plant, QUICK_PLANTS[plant])


@pytest.mark.ci
@pytest.mark.timeout(900)
@pytest.mark.parametrize("plant", SLOW_PLANTS)
def test_a_rare_planted_bug_is_found(plant: str) -> None:
    assert plant in PLANTS
    assert is_found(plant, SLOW_PLANTS[plant])
