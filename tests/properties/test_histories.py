"""Generated histories: every invariant after every entry, and an end for every job (spec 4)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from scheduler.core import contact, fencing
from scheduler.core.apply import apply
from scheduler.core.commands import decode_entry
from scheduler.core.snapshot import restore_state, snapshot_chunks
from scheduler.core.state import ClusterState
from tests.properties.world import World

#: Entries in one of the quick histories, and histories.
STEPS = 200
SEEDS = 10


def run(seed: int, *, steps: int = STEPS) -> World:
    """One history: faults for `steps`, then healing until every job is final."""
    random = Random(seed)
    world = World(random)
    for _ in range(steps):
        world.step(random.randrange(10_000))
    world.heal()
    return world


class Histories(RuleBasedStateMachine):
    """Hypothesis picks the rules, and shortens what fails."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Random(0))

    @rule(number=st.integers(0, 9_999), seed=st.integers(0, 2**32))
    def step(self, number: int, seed: int) -> None:
        self.world.random.seed(seed)
        self.world.step(number)

    @precondition(lambda self: len(self.world.log) > 20)
    @rule()
    def restart(self) -> None:
        """A replica that restores a snapshot is the same as one that applied it all."""
        self.world.state = restored(self.world.state)

    def teardown(self) -> None:
        self.world.random.seed(1)
        self.world.heal()


TestHistories = Histories.TestCase
# Shrinking takes minutes; a failing example prints its steps anyway.
TestHistories.settings = settings(
    max_examples=6,
    stateful_step_count=50,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


def restored(state: ClusterState) -> ClusterState:
    return restore_state(list(snapshot_chunks(state.view())))


def replayed(log: list[bytes]) -> ClusterState:
    state = ClusterState()
    for index, data in enumerate(log, start=1):
        apply(state, decode_entry(data), index)
    return state


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_job_ends_and_no_invariant_breaks(seed: int) -> None:
    run(seed)


@pytest.mark.ci
@pytest.mark.parametrize("block", range(8))
def test_every_job_ends_in_many_histories(block: int) -> None:
    for seed in range(1_000 + block * 50, 1_050 + block * 50):
        run(seed)


@pytest.mark.parametrize("seed", [3, 5])
def test_replay_and_restore_at_any_index_give_the_same_bytes(seed: int) -> None:
    log = run(seed, steps=100).log
    whole, mixed = ClusterState(), ClusterState()
    for index, data in enumerate(log, start=1):
        apply(whole, decode_entry(data), index)
        apply(mixed, decode_entry(data), index)
        if index % 7 == seed:
            mixed = restored(mixed)
        assert whole.digest() == mixed.digest(), index
    assert b"".join(snapshot_chunks(whole.view())) == b"".join(snapshot_chunks(mixed.view()))


def test_a_view_is_not_changed_by_what_is_applied_later() -> None:
    log = run(9, steps=120).log
    half = len(log) // 2
    state = replayed(log[:half])
    view = state.view()
    expected = b"".join(snapshot_chunks(view))
    for index, data in enumerate(log[half:], start=half + 1):
        apply(state, decode_entry(data), index)
    assert b"".join(snapshot_chunks(view)) == expected
    assert b"".join(snapshot_chunks(state.view())) != expected


# ---- the checks can fail -----------------------------------------------------------------------


def fails(seeds: range) -> bool:
    for seed in seeds:
        try:
            run(seed)
        except AssertionError:
            return True
    return False


def no_fence(_state: ClusterState, attempt: Any, _worker: Any) -> int:
    return int(attempt.not_before_ms)


def short_fence(state: ClusterState, _attempt: Any, *, cleanup: str) -> int:
    return state.clock_ms + 2_000


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "planted"), [("ready_ms", no_fence), ("fence_until_ms", short_fence)]
)
def test_a_missing_fence_is_found(name: str, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, name, planted)
    assert fails(range(150))


@pytest.mark.ci
def test_a_since_that_moves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(state: ClusterState, index: int) -> Any:
        return state.takeovers[-1] if state.takeovers else None

    monkeypatch.setattr(contact, "first_takeover_after", newest)
    assert fails(range(150))
