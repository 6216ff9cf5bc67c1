"""The state machine's restore: beside the present state, then at once."""

from __future__ import annotations

import gc

import pytest

from scheduler.controller.metrics import Metrics
from scheduler.controller.state_machine import ClusterMachine
from scheduler.controller.watch import EventHub
from scheduler.core.snapshot import CHUNK_BYTES_MAX, BadSnapshot, snapshot_chunks
from tests.unit.core.harness import Core


def machine_of(core: Core) -> ClusterMachine:
    machine = ClusterMachine(EventHub(), Metrics())
    machine.restore(snapshot_chunks(core.state.view()), index=len(core.log), term=1)
    return machine


def core_with(jobs: int) -> Core:
    core = Core()
    for _ in range(jobs):
        core.submit(job={"name": "n" * 1_000})
    return core


def test_a_prepared_state_takes_its_place_in_one_step() -> None:
    machine, newer = machine_of(core_with(1)), core_with(3)
    before, old = machine.digest(), machine.state
    prepared = machine.prepare_restore(snapshot_chunks(newer.state.view()), index=77, term=1)
    assert (machine.state, machine.digest()) == (old, before)
    discard = prepared.adopt()
    assert machine.applied_index == 77
    assert machine.digest() == newer.state.digest()
    discard()
    assert len(list(machine.state.jobs.sorted_rows())) == 3
    assert not old.tokens
    with pytest.raises(IndexError):
        old.jobs.get(1)


def test_a_prepared_state_can_be_dropped() -> None:
    machine = machine_of(core_with(1))
    before = machine.digest()
    chunks = snapshot_chunks(core_with(3).state.view())
    machine.prepare_restore(chunks, index=77, term=1).discard()
    assert machine.digest() == before


def test_a_refused_snapshot_changes_nothing() -> None:
    machine = machine_of(core_with(1))
    before, index = machine.digest(), machine.applied_index
    data = b"".join(snapshot_chunks(core_with(3).state.view()))
    with pytest.raises(BadSnapshot):
        machine.restore([data[:-1]], index=77, term=1)
    assert (machine.digest(), machine.applied_index) == (before, index)
    assert gc.isenabled()


def test_a_view_is_written_in_small_chunks() -> None:
    chunks = list(snapshot_chunks(core_with(200).state.view()))
    assert len(chunks) > 3
    assert max(map(len, chunks)) <= CHUNK_BYTES_MAX
