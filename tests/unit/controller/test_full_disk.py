"""A leader on a full disk: nothing new is taken, and everything that ends is kept."""

from __future__ import annotations

import pytest

from replication.errors import DiskFull
from scheduler.controller.errors import ServiceError, from_proposal
from scheduler.controller.urgency import is_urgent
from scheduler.core.commands import (
    AttemptReports,
    ConfigChanged,
    Entry,
    KillRequested,
    Placed,
    SubmitJobs,
)
from scheduler.http.problems import of_service
from scheduler.protocol.messages import Report, Start
from tests.unit.controller.world import World, play


def reports(*kinds: str) -> AttemptReports:
    items = tuple(Report(kind=kind, token="t") for kind in kinds)
    return AttemptReports(node="a1", node_uuid="u", reports=items)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (SubmitJobs(jobs=()), False),
        (Placed(placements=()), False),
        (ConfigChanged(changes={}), False),
        (KillRequested(target="1"), True),
        (reports("finished"), True),
        (reports("progress", "finished"), True),
        (reports("progress", "ready"), False),
    ],
)
def test_urgent_is_what_frees_work(entry: Entry, expected: bool) -> None:
    assert is_urgent(entry) is expected


def test_a_submit_is_refused_as_503_with_what_to_do() -> None:
    async def scenario(world: World) -> None:
        world.log.set_full(is_full=True)
        with pytest.raises(ServiceError) as raised:
            await world.submit()
        error = raised.value
        assert (error.code, error.kind) == ("disk_full", "unavailable")
        assert not error.outcome_unknown
        assert "free space" in error.hint
        assert error.retry_after_s is not None
        world.log.set_full(is_full=False)
        assert await world.submit() == 1

    play(scenario)


def test_what_runs_ends_and_can_be_killed_and_nothing_new_is_placed_until_there_is_room() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        first, order = await world.running(agent)
        second, _ = await world.running(agent)
        waiting = await world.submit(cpu_millis=8000)
        world.log.set_full(is_full=True)
        agent.report_finished(order)
        await world.until(lambda: world.phase(first) == "Succeeded")
        await world.service.kill(str(second), user="ana", why="", if_version=None)
        await world.service.kill(str(waiting), user="ana", why="", if_version=None)
        assert world.phase(waiting) == "Killed"

    play(scenario)


def test_a_placement_refused_for_want_of_room_is_made_when_there_is_room() -> None:
    async def scenario(world: World) -> None:
        job = await world.submit()
        world.log.set_full(is_full=True)
        agent = await world.joined()
        await world.wait(5)
        assert world.phase(job) == "Pending"
        assert agent.all(Start) == []
        world.log.set_full(is_full=False)
        order = await agent.next(Start)
        assert order.work.attempt == f"{job}/main/0#1"

    play(scenario)


def test_a_full_disk_does_not_keep_a_leader_from_taking_over_nor_nodes_from_coming_back() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        world.log.set_leader("c2")
        world.log.set_full(is_full=True)
        world.log.set_leader("c1")
        await world.led()
        agent.dial()
        await agent.join(agent.running_item(order))
        agent.report_finished(order)
        await world.until(lambda: world.phase(job) == "Succeeded")

    play(scenario)


def test_the_answer_says_when_to_come_back() -> None:
    error = from_proposal(DiskFull("full", retry_after_s=1.0), leader_http=None)
    answer = of_service(error).response()
    assert answer.status_code == 503
    assert float(answer.headers["Retry-After"]) >= 1
    assert b'"code":"disk_full"' in answer.body
