"""What holds for every path: tokens, methods, faults, and what needs no token."""

from __future__ import annotations

import logging

import pytest
from starlette.types import ASGIApp

from .asgi import call
from .fake import FakeService, job_view


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/nodes", "/v1/cluster", "/v1/events"])
@pytest.mark.parametrize("token", [None, "wrong", "", "s\xe9cret"])
async def test_nothing_is_told_without_the_token(
    app: ASGIApp, service: FakeService, path: str, token: str | None
) -> None:
    answer = await call(app, "GET", path, token=token)
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert service.asked == []
    assert "pertinax-leader" not in answer.headers


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/openapi.json", "/"])
async def test_probes_and_pages_need_no_token(app: ASGIApp, path: str) -> None:
    assert (await call(app, "GET", path, token=None)).status == 200
    assert (await call(app, "HEAD", path, token=None)).status == 200


async def test_a_controller_that_cannot_serve_is_not_ready_but_alive(
    app: ASGIApp, service: FakeService
) -> None:
    service.index = 0
    assert (await call(app, "GET", "/readyz", token=None)).status == 503
    assert (await call(app, "GET", "/livez", token=None)).status == 200


async def test_the_page_may_load_nothing_from_elsewhere(app: ASGIApp) -> None:
    answer = await call(app, "GET", "/", token=None)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert b"http://" not in answer.body
    assert b"https://" not in answer.body


async def test_an_unknown_path_and_a_wrong_method_say_what_there_is(app: ASGIApp) -> None:
    answer = await call(app, "GET", "/v1/jbos")
    assert (answer.status, answer.code) == (404, "unknown_path")
    answer = await call(app, "DELETE", "/v1/jobs")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")
    answer = await call(app, "HEAD", "/v1/events")
    assert answer.status == 405


async def test_a_fault_of_ours_is_an_answer_and_a_line_in_the_log(
    app: ASGIApp, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.failures["kill"] = RuntimeError("bug")
    with caplog.at_level(logging.ERROR, "pertinax.http"):
        answer = await call(app, "POST", "/v1/jobs/1:kill")
    assert (answer.status, answer.code) == (500, "internal")
    assert answer.json()["outcome_unknown"] is True
    assert "bug" not in answer.body.decode()
    assert "request_failed" in caplog.text


async def test_a_node_is_cordoned_and_shown(app: ASGIApp, service: FakeService) -> None:
    service.known_nodes = {"a1": {"name": "a1", "unschedulable": False}}
    answer = await call(app, "POST", "/v1/nodes/a1:cordon", body={"why": "disk"})
    assert answer.json()["unschedulable"] is True
    assert dict(service.asked)["change_node"] == ("a1", True, "disk", "admin")
    assert (await call(app, "GET", "/v1/nodes/a2")).status == 404
    assert (await call(app, "GET", "/v1/nodes")).json()["nodes"][0]["name"] == "a1"


async def test_status_is_answered_without_asking_anybody(
    app: ASGIApp, service: FakeService
) -> None:
    service.is_leader = False
    answer = await call(app, "GET", "/v1/cluster")
    assert answer.json()["quorum"] is False
    assert {name for name, _ in service.asked} == {"read_stale"}


async def test_settings_are_changed_together_or_refused(app: ASGIApp, service: FakeService) -> None:
    answer = await call(app, "PATCH", "/v1/cluster/config", body={"rejoin_grace": "30s"})
    assert answer.status == 200
    assert dict(service.asked)["configure"] == ({"rejoin_grace": "30s"}, "admin")
    for wrong in ({}, {"x": None}, {"x": True}, {"x": [1]}):
        assert (await call(app, "PATCH", "/v1/cluster/config", body=wrong)).status == 422


async def test_a_follower_redirects_on_request_and_refuses_a_second_hop(
    app: ASGIApp, service: FakeService
) -> None:
    service.is_leader = False
    service.leader_name = "c2"
    service.known_jobs = {1: job_view(1)}
    answer = await call(app, "POST", "/v1/attempts/1%2Fmain%2F0%231:kill?redirect")
    assert answer.status == 307
    assert answer.headers["location"] == (
        "https://127.0.0.1:1/v1/attempts/1%2Fmain%2F0%231:kill?redirect"
    )
    hop = {"Pertinax-Forwarded-By": "c3"}
    answer = await call(app, "POST", "/v1/jobs/1:kill", headers=hop)
    assert (answer.status, answer.code) == (503, "no_leader")
    service.leader_url = None
    answer = await call(app, "POST", "/v1/jobs/1:kill")
    assert (answer.status, answer.code) == (503, "no_leader")
    assert (await call(app, "GET", "/v1/jobs/1")).status == 200  # reads are served here
    assert service.asked[-1][0] == "read_stale"


async def test_who_was_just_elected_does_not_forward_to_itself(
    app: ASGIApp, service: FakeService
) -> None:
    service.is_leader = False
    service.leader_name = "c1"
    assert (await call(app, "POST", "/v1/jobs/1:kill")).status == 200
