"""Jobs over HTTP: what is asked of the service, and what callers are told."""

from __future__ import annotations

import json

import pytest
from starlette.types import ASGIApp

from scheduler.controller.errors import NotLeaderHere, ServiceError
from scheduler.http.bodies import JOBS_MAX, REQUEST_BYTES_MAX, SPEC_BYTES_MAX

from .asgi import call
from .fake import FakeService, attempt_view, job_view

JOB = {"kind": "job", "name": "first", "tasks": {"main": {"command": ["true"]}}}


async def test_submit_answers_201_with_the_job_its_place_and_the_index(
    app: ASGIApp, service: FakeService
) -> None:
    answer = await call(app, "POST", "/v1/jobs", body=JOB, headers={"Idempotency-Key": "k"})
    assert answer.status == 201
    assert answer.headers["location"] == "/v1/jobs/1"
    assert answer.headers["pertinax-index"] == "101"
    assert answer.headers["pertinax-leader"] == "c1"
    document = answer.json()
    assert (document["job"]["id"], document["job"]["name"]) == (1, "first")
    assert document["as_of"] == {"index": 101, "time": "2026-01-01T00:00:00.123Z"}
    [(_, (specs, user, key, _))] = [one for one in service.asked if one[0] == "submit"]
    assert (specs[0].name, user, key) == ("first", "admin", "k")


async def test_meanings_of_exit_codes_are_part_of_what_a_key_stands_for(app: ASGIApp) -> None:
    headers = {"Idempotency-Key": "k"}
    answers = [
        await call(app, "POST", "/v1/jobs", body=_with_exit_codes(codes), headers=headers)
        for codes in (
            {"3": "success", "75": "retry"},
            {"75": "retry", "3": "success"},
            {"3": "retry"},
        )
    ]
    assert [one.status for one in answers] == [201, 201, 409]


def _with_exit_codes(codes: dict[str, str]) -> dict[str, object]:
    return {"kind": "job", "tasks": {"main": {"command": ["true"], "exit_codes": codes}}}


async def test_the_same_key_gives_the_same_job_and_another_body_is_refused(app: ASGIApp) -> None:
    headers = {"Idempotency-Key": "k"}
    first = await call(app, "POST", "/v1/jobs", body=JOB, headers=headers)
    reordered = dict(reversed(JOB.items()))
    again = await call(app, "POST", "/v1/jobs", body=reordered, headers=headers)
    assert first.json()["job"]["id"] == again.json()["job"]["id"]
    assert again.headers["pertinax-replayed"] == "true"
    other = await call(app, "POST", "/v1/jobs", body=JOB | {"name": "x"}, headers=headers)
    assert (other.status, other.code) == (409, "key_reused")


async def test_the_admin_may_act_under_a_users_name(app: ASGIApp, service: FakeService) -> None:
    await call(app, "POST", "/v1/jobs", body=JOB, headers={"Pertinax-User": "ana"})
    assert service.known_jobs[1]["user"] == "ana"
    bad = await call(app, "POST", "/v1/jobs", body=JOB, headers={"Pertinax-User": "a b\x01"})
    assert (bad.status, bad.code) == (400, "bad_user")


async def test_many_jobs_are_taken_together(app: ASGIApp, service: FakeService) -> None:
    body = {"jobs": [JOB, JOB | {"name": "second"}]}
    answer = await call(app, "POST", "/v1/jobs?fields=name", body=body)
    assert answer.status == 201
    assert answer.json()["jobs"] == [{"id": 1, "name": "first"}, {"id": 2, "name": "second"}]
    assert [name for name, _ in service.asked].count("submit") == 1


async def test_all_mistakes_of_all_jobs_are_told_and_nothing_is_submitted(
    app: ASGIApp, service: FakeService
) -> None:
    wrong = {"name": "x", "priorty": 3, "tasks": {"main": {"command": [], "timeout": "soon"}}}
    answer = await call(app, "POST", "/v1/jobs", body={"jobs": [JOB, wrong]})
    assert (answer.status, answer.code) == (422, "invalid_spec")
    paths = {one["path"] for one in answer.json()["mistakes"]}
    assert {"jobs[1].priorty", "jobs[1].tasks.main.timeout"} <= paths
    assert "priority" in answer.body.decode()
    assert "submit" not in {name for name, _ in service.asked}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_json"),
        (b"{", 400, "bad_json"),
        (b"[]", 422, "invalid_spec"),
        (b"\xff\xfe", 400, "bad_json"),
        (b'{"jobs": []}', 422, "invalid_spec"),
        (b'{"jobs": [], "x": 1}', 422, "invalid_spec"),
        (b'{"jobs": [3]}', 422, "invalid_spec"),
        (b'{"tasks": ' + b"[" * 100_000, 400, "bad_json"),
        (b'{"name": "' + b"x" * SPEC_BYTES_MAX + b'"}', 413, "too_large"),
        (json.dumps({"jobs": [{}] * (JOBS_MAX + 1)}).encode(), 413, "too_large"),
    ],
)
async def test_a_body_that_is_no_submit_is_refused(
    app: ASGIApp, service: FakeService, body: bytes, status: int, code: str
) -> None:
    answer = await call(app, "POST", "/v1/jobs", body=body)
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert "submit" not in {name for name, _ in service.asked}


async def test_a_request_is_bounded_as_it_comes_and_as_it_announces(app: ASGIApp) -> None:
    announced = {"Content-Length": str(REQUEST_BYTES_MAX + 1)}
    answer = await call(app, "POST", "/v1/jobs", headers=announced)
    assert (answer.status, answer.code) == (413, "too_large")
    parts = [b" " * (REQUEST_BYTES_MAX // 2)] * 3
    answer = await call(app, "POST", "/v1/jobs", body=parts)
    assert (answer.status, answer.code) == (413, "too_large")


async def test_a_list_passes_the_filters_on_and_shows_only_the_fields_asked_for(
    app: ASGIApp, service: FakeService
) -> None:
    service.known_jobs = {one: job_view(one) for one in (1, 2, 3)}
    answer = await call(
        app, "GET", "/v1/jobs?state=Running,Failed&user=ana&limit=2&fields=phase&overdue=true"
    )
    assert answer.json()["jobs"] == [{"id": 3, "phase": "Running"}, {"id": 2, "phase": "Running"}]
    assert answer.json()["next"] == "cursor"
    asked = dict(service.asked)["jobs"]
    assert asked["states"] == ("Running", "Failed")
    assert (asked["user"], asked["is_overdue"], asked["limit"]) == ("ana", True, 2)


async def test_every_mistake_in_a_query_is_told_with_what_was_meant(app: ASGIApp) -> None:
    answer = await call(app, "GET", "/v1/jobs?stat=Running&limit=0&fields=phse&user=a&user=b")
    assert (answer.status, answer.code) == (400, "bad_query")
    detail = answer.json()["detail"]
    for text in ("did you mean 'state'", "limit", "did you mean 'phase'", "user is given twice"):
        assert text in detail, detail


async def test_reads_are_linearizable_unless_told_and_can_wait_for_an_index(
    app: ASGIApp, service: FakeService
) -> None:
    service.known_jobs = {1: job_view(1)}
    await call(app, "GET", "/v1/jobs/1")
    assert service.asked[0] == ("read_linearizable", None)
    service.asked.clear()
    await call(app, "GET", "/v1/jobs/1?consistency=stale&min_index=77")
    assert service.asked[0] == ("read_stale", 77)


async def test_a_job_is_shown_itself_with_its_version_as_tag(
    app: ASGIApp, service: FakeService
) -> None:
    service.known_jobs = {42: job_view(42)}
    answer = await call(app, "GET", "/v1/jobs/42")
    assert answer.json()["id"] == 42
    assert answer.headers["etag"] == '"7"'
    assert answer.json()["as_of"]["index"] == 100


@pytest.mark.parametrize(
    "path",
    ["/v1/jobs/999", "/v1/jobs/999/attempts", "/v1/jobs/nonsense", "/v1/jobs/%ff", "/v1/jobs/0"],
)
async def test_what_does_not_exist_is_404_and_named(app: ASGIApp, path: str) -> None:
    answer = await call(app, "GET", path)
    assert (answer.status, answer.code) == (404, "not_found")


async def test_an_attempt_is_named_in_a_path_percent_encoded(
    app: ASGIApp, service: FakeService
) -> None:
    service.known_jobs = {42: job_view(42)}
    service.known_attempts = {42: [attempt_view("42/main/0#1"), attempt_view("42/main/0#2")]}
    answer = await call(app, "GET", "/v1/jobs/42%2Fmain%2F0%232/attempts")
    assert [one["id"] for one in answer.json()["attempts"]] == ["42/main/0#2"]
    killed = await call(app, "POST", "/v1/attempts/42%2Fmain%2F0%231:kill", body={"why": "old"})
    assert killed.status == 200
    assert dict(service.asked)["kill"] == ("42/main/0#1", "admin", "old", None)


async def test_a_kill_takes_reason_and_version_and_its_refusals_keep_their_kind(
    app: ASGIApp, service: FakeService
) -> None:
    headers = {"If-Match": '"7"'}
    answer = await call(app, "POST", "/v1/jobs/42:kill", body={"why": "x"}, headers=headers)
    assert answer.json()["is_done"] is False
    assert dict(service.asked)["kill"] == ("42", "admin", "x", 7)
    for kind, status in (("conflict", 409), ("version", 412), ("not_found", 404)):
        refusal = ServiceError("some_code", "no", hint="clone it", kind=kind)  # type: ignore[arg-type]
        service.failures["kill"] = refusal
        answer = await call(app, "POST", "/v1/jobs/42:kill")
        assert (answer.status, answer.code, answer.json()["hint"]) == (
            status,
            "some_code",
            "clone it",
        )
    bad = await call(app, "POST", "/v1/jobs/42:kill", headers={"If-Match": "x"})
    assert (bad.status, bad.code) == (400, "bad_version")
    bad = await call(app, "POST", "/v1/jobs/42:kill", body={"wy": "x"})
    assert bad.status == 422
    assert "why" in bad.json()["detail"]


async def test_what_cannot_be_confirmed_says_so_and_when_to_come_back(
    app: ASGIApp, service: FakeService
) -> None:
    service.failures["submit"] = ServiceError(
        "leadership_lost", "?", kind="unavailable", retry_after_s=0.5, outcome_unknown=True
    )
    answer = await call(app, "POST", "/v1/jobs", body=JOB)
    assert (answer.status, answer.json()["outcome_unknown"]) == (503, True)
    assert answer.headers["retry-after"] == "0.5"
    service.failures["submit"] = NotLeaderHere(None, None)
    answer = await call(app, "POST", "/v1/jobs", body=JOB)
    assert (answer.status, answer.code) == (503, "no_leader")
    assert "outcome_unknown" not in answer.json()
    service.failures["submit"] = ServiceError("low_disk", "full", kind="unavailable")
    answer = await call(app, "POST", "/v1/jobs", body=JOB)
    assert "retry-after" not in answer.headers


async def test_why_shows_the_reasons_alone(app: ASGIApp, service: FakeService) -> None:
    reasons = [{"code": "Unsatisfiable", "message": "4096 cpu", "count": 1}]
    service.known_jobs = {1: job_view(1, phase="Pending", pending_reasons=reasons)}
    shown = (await call(app, "GET", "/v1/jobs/1/why")).json()
    assert shown["pending_reasons"] == reasons
    assert "spec" not in shown
