"""Who is placed where, what the apply refuses, and why something waits."""

from __future__ import annotations

from random import Random

import pytest

from scheduler.core import placement
from scheduler.core.commands import NodeChanged, Placed, Placement
from scheduler.core.pending import PendingIndex, Queue, make_shape
from scheduler.core.results import PlacedAnswer
from scheduler.protocol.spec import Resources
from tests.unit.core.harness import Core


def nodes_of(core: Core) -> list[str]:
    plan = placement.plan_placement(core.state, now_ms=core.now_ms)
    return [choice.node for choice in plan]


def order_of(core: Core) -> list[int]:
    plan = placement.plan_placement(core.state, now_ms=core.now_ms)
    return [int(choice.attempt.split("/")[0]) for choice in plan]


def test_the_highest_priority_goes_first_then_the_oldest() -> None:
    core = Core()
    core.node(cpu=3000)
    for priority in (0, 5, 0, 5):
        core.submit(priority=priority)
    assert order_of(core) == [2, 4, 1]


def test_shapes_are_merged_in_order_and_a_full_one_does_not_stop_the_others() -> None:
    core = Core()
    core.node(cpu=4000)
    for cpu in (1000, 8000, 1000, 500):
        core.submit(cpu=cpu, job={"wait_for_capacity": True})
    assert order_of(core) == [1, 3, 4]


def test_the_freest_node_gets_the_next() -> None:
    core = Core()
    core.node("a1", cpu=3000)
    core.node("a2", cpu=5000)
    for _ in range(4):
        core.submit()
    assert nodes_of(core) == ["a2", "a2", "a1", "a2"]


def test_a_named_node_is_the_only_one() -> None:
    core = Core()
    core.node("a1", cpu=9000)
    core.node("a2", cpu=1000)
    core.submit(node="a2")
    core.submit(node="a2")
    assert nodes_of(core) == ["a2"]


def test_gpus_are_assigned_by_index_and_never_twice() -> None:
    core = Core()
    core.node(gpu=3)
    first = core.submit(gpu=2)
    second = core.submit(gpu=1)
    third = core.submit(gpu=1)
    plan = placement.plan_placement(core.state)
    assert [choice.gpu_indices for choice in plan] == [(0, 1), (2,)]
    core.apply(Placed(placements=plan))
    assert core.reasons(third) == ["Resources"]
    token = core.attempt(first).placed.token  # type: ignore[union-attr]
    core.report(core.finished(token))
    assert core.attempt(second).ended is None
    [choice] = placement.plan_placement(core.state)
    assert choice.gpu_indices == (0,)


def test_a_limit_bounds_a_pass() -> None:
    core = Core()
    core.node()
    for _ in range(5):
        core.submit()
    assert len(placement.plan_placement(core.state, 3)) == 3


def test_two_planners_give_one_placement() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    plan = placement.plan_placement(core.state)
    assert len(core.apply(Placed(placements=plan)).tokens) == 1
    again = core.apply(Placed(placements=plan))
    assert again == PlacedAnswer({}, ((f"{job_id}/main/0#1", "not_waiting"),))


def placed(core: Core, attempt: str = "1/main/0#1", node: str = "a1", **more: object) -> str:
    """Why a placement is skipped; empty when it is not."""
    choice = Placement(attempt=attempt, node=node, **more)  # type: ignore[arg-type]
    answer = core.apply(Placed(placements=(choice,)))
    return answer.skipped[0][1] if answer.skipped else ""


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"attempt": "1/main/0#2"}, "no_such_attempt"),
        ({"attempt": "rubbish"}, "no_such_attempt"),
        ({"node": "a9"}, "node_not_online"),
        ({"node": "a2"}, "lacks_cpu"),
        ({"node": "a3"}, "node_unschedulable"),
        ({}, "wrong_gpus"),
        ({"gpu_indices": (0, 0)}, "wrong_gpus"),
        ({"gpu_indices": (5,)}, "gpu_taken"),
        ({"gpu_indices": (1,)}, ""),
    ],
)
def test_what_no_longer_holds_is_skipped(choice: dict[str, object], why: str) -> None:
    core = Core()
    core.node("a1", gpu=2)
    core.node("a2", cpu=100, gpu=2)
    core.node("a3", gpu=2)
    core.apply(NodeChanged(node="a3", unschedulable=True))
    core.submit(gpu=1)
    assert placed(core, **choice) == why  # type: ignore[arg-type]
    assert (core.attempt(1).placed is None) == bool(why)


def test_a_killed_or_misdirected_attempt_is_skipped() -> None:
    core = Core()
    core.node("a1")
    core.node("a2")
    core.submit(node="a2")
    assert placed(core) == "wrong_node"
    core.kill("1")
    assert placed(core, node="a2") == "not_waiting"


def test_the_last_of_two_for_one_place_is_skipped() -> None:
    core = Core()
    core.node(cpu=1000)
    core.submit()
    core.submit()
    both = tuple(Placement(attempt=f"{n}/main/0#1", node="a1") for n in (1, 2))
    answer = core.apply(Placed(placements=both))
    assert list(answer.tokens) == ["1/main/0#1"]
    assert answer.skipped == (("2/main/0#1", "lacks_cpu"),)


# ---- why ---------------------------------------------------------------------------------------


def message(core: Core, job_id: int) -> tuple[str, str]:
    [reason] = core.view(job_id)["pending_reasons"]
    return reason["code"], reason["message"]


def test_every_reason_says_what_would_help() -> None:
    core = Core()
    assert message(core, core.submit()) == ("NoNodes", "no node has joined yet")
    core.node("a1", cpu=2000)
    core.node("a2", cpu=1500)
    assert message(core, 1)[0] == "Priority"
    core.place()
    token = core.attempt(1).placed.token  # type: ignore[union-attr]
    assert message(core, 1) == ("Starting", "assigned to a1 0.0 s ago, no start report yet")
    core.report(core.started(token))
    full = core.submit(cpu=2000)
    assert message(core, full) == ("Resources", "needs 2 cpu; 1 nodes match, most free is 1") or (
        message(core, full) == ("Resources", "needs 2 cpu; 2 nodes match, most free is 1.5")
    )
    core.offline("a2")
    small = core.submit(node="a2")
    assert message(core, small) == ("Constraints", "none of 1 nodes that could run it is Online")
    nowhere = core.submit(node="zz", job={"wait_for_capacity": True})
    assert message(core, nowhere) == ("Constraints", "there is no node zz")


# ---- the index -----------------------------------------------------------------------------------


def test_a_queue_serves_in_order_whatever_is_added_and_removed() -> None:
    random = Random(7)
    queue, model = Queue(), set[tuple[int, str, int, int]]()
    for _ in range(3000):
        key = (random.randrange(60), "main", 0, 1)
        if key in model:
            queue.remove(key)
            model.discard(key)
        else:
            queue.add(key)
            model.add(key)
        assert len(queue) == len(model)
        served, position = [], 0
        while True:
            found, position = queue.nth(position)
            if found is None:
                break
            served.append(found)
        assert served == sorted(model)


def test_what_waits_for_a_time_is_released_by_it_and_what_waits_for_proof_is_not() -> None:
    index = PendingIndex()
    shape = make_shape(Resources(), priority=0, node="", avoid="")
    key, fenced = (1, "main", 0, 2), (2, "main", 0, 2)
    index.add(key, shape, ready_ms=500, now_ms=100)
    index.add(fenced, shape, ready_ms=None, now_ms=100)
    assert (index.ready_count, index.next_ready_ms(), len(index)) == (0, 500, 2)
    index.release(499)
    assert index.ready_count == 0
    index.add(key, shape, ready_ms=700, now_ms=499)  # Moved: the old time means nothing now.
    index.release(500)
    assert (index.ready_count, index.next_ready_ms()) == (0, 700)
    index.release(10**9)
    assert list(index.groups) == [shape]
    assert fenced in index
    index.discard(key)
    assert index.groups == {}
