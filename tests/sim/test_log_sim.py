"""The log's simulator over fixed seeds, and the proof that it finds planted bugs."""

from __future__ import annotations

import pytest

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
