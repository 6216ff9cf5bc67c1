"""The fields that scripts rely on (specification 6.3), from the real core through the API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from starlette.types import ASGIApp

from scheduler.http import schemas
from scheduler.http.app import make_app
from scheduler.http.auth import AdminTokenAuth
from scheduler.http.forward import Forwarder
from scheduler.protocol.messages import StreamFacts
from tests.unit.controller.world import PlayedAgent, World, play

from .asgi import Answer, call


def app_of(world: World) -> ASGIApp:
    forwarder = Forwarder(name="c1", tls=None)
    return make_app(world.service, AdminTokenAuth("secret"), forwarder=forwarder)


def has_the_fields(document: dict[str, Any], name: str) -> None:
    """Every field of the schema is there and of its type; more may be."""
    msgspec.convert(document, schemas.ANSWERS[name], strict=True)


async def ended(world: World, agent: PlayedAgent) -> int:
    job, order = await world.running(agent)
    stream = StreamFacts(size_bytes=3, sha256="ab")
    agent.report_finished(order, exit_code=3, stdout=stream)
    await world.until(lambda: world.phase(job) == "Failed")
    return job


@pytest.mark.parametrize("state", ["waiting", "running", "ended"])
def test_every_answer_has_the_fields_that_are_promised(state: str) -> None:
    async def scenario(world: World) -> None:
        app = app_of(world)
        if state == "waiting":
            job = await world.submit()
        else:
            agent = await world.joined()
            job = await ended(world, agent) if state == "ended" else (await world.running(agent))[0]

        async def get(path: str) -> dict[str, Any]:
            answer: Answer = await call(app, "GET", path)
            assert answer.status == 200, answer.body
            assert set(answer.json()["as_of"]) == {"index", "time"}
            assert answer.headers["pertinax-index"] == str(answer.json()["as_of"]["index"])
            return answer.json()

        has_the_fields(await get(f"/v1/jobs/{job}"), "Job")
        has_the_fields(await get("/v1/jobs"), "JobPage")
        has_the_fields(await get(f"/v1/jobs/{job}/workers"), "Workers")
        has_the_fields(await get(f"/v1/jobs/{job}/attempts"), "Attempts")
        has_the_fields(await get(f"/v1/jobs/{job}/events"), "Events")
        has_the_fields(await get(f"/v1/jobs/{job}/why"), "WhyAnswer")
        has_the_fields(await get(f"/v1/jobs/{job}%2Fmain%2F0/why"), "WhyAnswer")
        has_the_fields(await get(f"/v1/jobs/{job}%2Fmain%2F0%231/why"), "WhyAnswer")
        has_the_fields(await get("/v1/nodes"), "Nodes")
        has_the_fields(await get("/v1/cluster"), "ClusterStatus")
        has_the_fields(await get("/v1/cluster/config"), "Settings")
        if state != "waiting":
            has_the_fields(await get("/v1/nodes/a1"), "Node")

    play(scenario)


def test_a_job_goes_through_the_api_from_submit_to_kill() -> None:
    async def scenario(world: World) -> None:
        app = app_of(world)
        document = {"kind": "job", "tasks": {"main": {"command": ["sleep", "9"]}}}
        answer = await call(
            app, "POST", "/v1/jobs", body=document, headers={"Pertinax-User": "ana"}
        )
        job = answer.json()["job"]
        has_the_fields(job, "Job")
        assert (job["user"], job["phase"]) == ("ana", "Pending")
        killed = await call(app, "POST", f"/v1/jobs/{job['id']}:kill", body={"why": "enough"})
        has_the_fields(killed.json(), "Killed")
        shown = (await call(app, "GET", f"/v1/jobs/{job['id']}")).json()
        assert (shown["phase"], shown["by"], shown["why"]) == ("Killed", "user:admin", "enough")
        again = await call(app, "POST", f"/v1/jobs/{job['id']}:kill")
        assert again.status == 409
        assert "clone" in again.json()["detail"] + again.json().get("hint", "")
        moved = await call(app, "POST", f"/v1/jobs/{job['id']}:kill", headers={"If-Match": "1"})
        assert moved.status in (409, 412)

    play(scenario)


def test_settings_are_read_as_texts_and_refused_with_every_mistake() -> None:
    async def scenario(world: World) -> None:
        app = app_of(world)
        answer = await call(app, "PATCH", "/v1/cluster/config", body={"rejoin_grace": "30s"})
        assert answer.json()["settings"]["rejoin_grace"] == 30_000
        wrong = {"rejoin_grce": "30s", "heartbeat_timeout": "soon"}
        answer = await call(app, "PATCH", "/v1/cluster/config", body=wrong)
        assert answer.status == 422
        assert "rejoin_grace" in answer.body.decode()
        assert "heartbeat_timeout" in answer.body.decode()

    play(scenario)


def test_pages_follow_their_cursor_to_the_end() -> None:
    async def scenario(world: World) -> None:
        app = app_of(world)
        ids = [await world.submit() for _ in range(5)]
        seen, after = [], ""
        while True:
            page = (await call(app, "GET", f"/v1/jobs?limit=2&fields=phase{after}")).json()
            seen += [job["id"] for job in page["jobs"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert seen == sorted(ids, reverse=True)
        assert (await call(app, "GET", "/v1/jobs?after=x")).status == 400

    play(scenario)


def test_events_are_streamed_as_they_are_applied() -> None:
    async def scenario(world: World) -> None:
        app = app_of(world)
        before = world.log.applied_index
        job = await world.submit()
        target = f"/v1/events?after={before}&object={job}"
        answer = await call(app, "GET", target, until=b"id: ")
        lines = [one for one in answer.body.decode().splitlines() if one.startswith("data: ")]
        events = [msgspec.json.decode(one.removeprefix("data: ")) for one in lines]
        assert {one["object"] for one in events} == {str(job), f"{job}/main/0#1"}
        msgspec.convert(events, list[schemas.Event], strict=True)

    play(scenario)
