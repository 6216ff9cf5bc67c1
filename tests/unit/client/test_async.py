"""The awaiting client against real servers; skipped where its extra is not installed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from scheduler.client import ApiError, Context, Unreachable, WaitTimeout
from tests.unit.http.fake import attempt_view, job_view

from .live import TOKEN, Controllers
from .test_client import INTERRUPTED, JOB, event

pytest.importorskip("httpx2")

if TYPE_CHECKING:
    from scheduler.client import AsyncClient


@pytest.fixture
def controllers() -> Iterator[Controllers]:
    found = Controllers()
    yield found
    found.close()


@pytest.fixture
async def client(controllers: Controllers) -> AsyncIterator[AsyncClient]:
    from scheduler.client import AsyncClient

    async with AsyncClient(Context(tuple(controllers.urls), token=TOKEN, user="ana")) as found:
        yield found


async def test_a_job_is_submitted_shown_waited_for_and_killed(
    controllers: Controllers, client: AsyncClient
) -> None:
    job = (await client.submit(JOB))["job"]
    assert (job["id"], job["user"]) == (1, "ana")
    assert [one["id"] for one in (await client.jobs(limit=5))["jobs"]] == [1]
    assert (await client.kill(1, why="enough"))["job"] == 1
    with pytest.raises(WaitTimeout):
        await client.wait([1], timeout_s=0.02)
    controllers.services[0].known_jobs[1] = job_view(1, phase="Killed")
    assert (await client.wait([1]))[0]["phase"] == "Killed"
    with pytest.raises(ApiError, match="999"):
        await client.job(999)


async def test_a_dead_leader_is_left_for_the_new_one_and_then_nobody_is_there(
    controllers: Controllers, client: AsyncClient
) -> None:
    await client.submit(JOB)
    controllers.stop(0)
    controllers.lead(1)
    assert (await client.submit(JOB))["job"]["id"] == 2
    assert (await client.cluster_status())["quorum"] is True
    controllers.stop(1)
    from scheduler.client import AsyncClient

    context = Context(tuple(controllers.urls), token=TOKEN, deadline_s=0.3)
    async with AsyncClient(context) as hasty:
        with pytest.raises(Unreachable):
            await hasty.nodes()


async def test_events_and_output_go_on_where_they_were(
    controllers: Controllers, client: AsyncClient
) -> None:
    leader = controllers.services[0]
    leader.events += [event(1), event(2)]
    following = client.follow(after=0)
    assert [(await anext(following))["index"] for _ in range(2)] == [1, 2]
    await following.aclose()  # type: ignore[attr-defined]
    leader.known_jobs[42] = job_view(42, phase="Succeeded")
    leader.known_attempts[42] = [attempt_view("42/main/0#1", phase="Succeeded")]
    leader.log += [(0, b"abc"), INTERRUPTED, (10, b"xyz\n")]
    chunks = [chunk async for chunk in client.logs(42)]
    assert [(one.offset, one.data) for one in chunks] == [(0, b"abc"), (10, b"xyz\n")]
    tail = [chunk async for chunk in client.logs(42, tail_lines=1)]
    assert tail[0].data.endswith(b"xyz\n")
