"""Streams of events and of output: what is sent, and that they can be taken up again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import ASGIApp

from scheduler.controller.errors import ServiceError
from scheduler.http import events, logs
from scheduler.protocol.logframes import BEAT, DATA, END, HEAD, HEADER, LogFrame, decode_header

from .asgi import call
from .fake import FakeService, attempt_view, job_view


def event(index: int, thing: str = "42") -> dict[str, Any]:
    return {"index": index, "object": thing, "kind": "job"}


def frames(body: bytes) -> list[LogFrame]:
    found = []
    while body:
        kind, offset, length = decode_header(body[: HEADER.size])
        found.append(LogFrame(kind, offset, body[HEADER.size : HEADER.size + length]))
        body = body[HEADER.size + length :]
    return found


def given_log(service: FakeService, *pieces: tuple[int, bytes] | Exception, **attempt: Any) -> None:
    service.known_jobs = {42: job_view(42)}
    service.known_attempts = {42: [attempt_view("42/main/0#1", **attempt)]}
    service.log = list(pieces)


async def test_the_id_of_an_index_follows_its_last_event(
    app: ASGIApp, service: FakeService
) -> None:
    service.events = [event(5), event(6), event(6), event(7, "43/main/0#1")]
    answer = await call(app, "GET", "/v1/events?after=5", until=b"id: 7")
    assert answer.headers["content-type"].startswith("text/event-stream")
    text = [line for line in answer.body.decode().splitlines() if line[:3] in ("dat", "id:")]
    assert [line.partition(" ")[0] for line in text] == ["data:", "data:", "id:", "data:", "id:"]
    assert text[2] == "id: 6"


async def test_last_event_id_wins_over_after_and_only_named_objects_are_sent(
    app: ASGIApp, service: FakeService
) -> None:
    service.events = [event(5), event(6, "421"), event(7, "42/main/0#1"), event(8, "node:a1")]
    target = "/v1/events?after=0&object=42,node:a1"
    answer = await call(app, "GET", target, headers={"Last-Event-ID": "5"}, until=b"id: 8")
    assert b'"421"' not in answer.body
    assert answer.body.count(b"data:") == 2
    bad = await call(app, "GET", "/v1/events", headers={"Last-Event-ID": "x"})
    assert (bad.status, bad.code) == (400, "bad_event_id")


async def test_without_an_index_only_what_comes_from_now_on_is_sent(
    app: ASGIApp, service: FakeService
) -> None:
    service.events = [event(99)]
    going = asyncio.create_task(call(app, "GET", "/v1/events", until=b"id: 101"))
    await asyncio.sleep(0)
    service.events.append(event(101))
    while not going.done():
        service.news.set()
        await asyncio.sleep(0)
    assert b'"index":99' not in (await going).body


async def test_events_that_are_not_kept_any_more_are_marked_as_a_gap(
    app: ASGIApp, service: FakeService
) -> None:
    service.kept_after = 50
    service.events = [event(51)]
    answer = await call(app, "GET", "/v1/events?after=10", until=b"id: 51")
    lines = answer.body.decode().splitlines()
    assert '"kind":"gap"' in answer.body.decode()
    assert lines.index("id: 50") < lines.index("id: 51")


async def test_a_silent_stream_gives_signs_of_life(
    app: ASGIApp, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BEAT_S", 0.001)
    answer = await call(app, "GET", "/v1/events", until=b": beat\n\n: beat")
    assert not answer.is_complete


async def test_a_stopping_controller_ends_its_streams(app: ASGIApp, service: FakeService) -> None:
    service.is_stopping = True
    assert (await call(app, "GET", "/v1/events")).is_complete


async def test_frames_tell_the_attempt_the_places_and_that_it_is_all(
    app: ASGIApp, service: FakeService
) -> None:
    known = {"bytes": 9, "sha256": "ab", "truncated": True}
    given_log(service, (0, b"abc"), (6, b"ghi"), phase="Succeeded", stdout=known)
    answer = await call(app, "GET", "/v1/jobs/42/logs?format=frames")
    head, first, second, end = frames(answer.body)
    assert (head.kind, head.document()["attempt"]) == (HEAD, "42/main/0#1")
    assert (first.kind, first.offset, first.payload) == (DATA, 0, b"abc")
    assert (second.offset, second.payload) == (6, b"ghi")
    assert (end.kind, end.offset) == (END, 9)
    assert end.document() == {"code": "complete", **known}


async def test_output_is_taken_up_at_an_offset(app: ASGIApp, service: FakeService) -> None:
    given_log(service, (0, b"abcdef"))
    answer = await call(app, "GET", "/v1/jobs/42/logs?format=frames&offset=4&stream=stderr")
    head, data, end = frames(answer.body)
    assert (head.offset, data.offset, data.payload) == (4, 4, b"ef")
    assert end.document()["code"] == "so_far"
    assert dict(service.asked)["open_log"][1:] == ("stderr", 4, None, False)


async def test_a_stream_that_breaks_off_ends_with_where_to_go_on(
    app: ASGIApp, service: FakeService
) -> None:
    broken = ServiceError("log_interrupted", "cut", kind="unavailable", retry_after_s=0.5)
    given_log(service, (0, b"abc"), broken)
    end = frames((await call(app, "GET", "/v1/jobs/42/logs?format=frames")).body)[-1]
    assert (end.kind, end.offset, end.document()["code"]) == (END, 3, "moved")


async def test_raw_output_that_breaks_off_is_no_complete_answer(
    app: ASGIApp, service: FakeService
) -> None:
    given_log(service, (0, b"abc"))
    answer = await call(app, "GET", "/v1/jobs/42/logs")
    assert (answer.body, answer.is_complete) == (b"abc", True)
    broken = ServiceError("log_interrupted", "cut", kind="unavailable", retry_after_s=0.5)
    service.log = [(0, b"abc"), broken]
    answer = await call(app, "GET", "/v1/jobs/42/logs")
    assert (answer.body, answer.is_complete) == (b"abc", False)


@pytest.mark.parametrize("form", ["raw", "frames"])
async def test_a_log_that_is_not_there_is_told_by_the_status(
    app: ASGIApp, service: FakeService, form: str
) -> None:
    given_log(service, ServiceError("log_missing", "missing from a1", kind="not_found"))
    answer = await call(app, "GET", f"/v1/jobs/42/logs?format={form}")
    assert (answer.status, answer.code) == (404, "log_missing")


async def test_a_silent_log_gives_signs_of_life(
    app: ASGIApp, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "BEAT_S", 0.001)
    monkeypatch.setattr(logs, "FIRST_BYTES_WAIT_S", 0.001)
    given_log(service)
    service.is_log_endless = True
    target = "/v1/jobs/42/logs?format=frames&follow"
    answer = await call(app, "GET", target, until=HEADER.pack(BEAT, 0, 0))
    assert [one.kind for one in frames(answer.body)][:2] == [HEAD, BEAT]


async def test_which_attempt_is_meant(app: ASGIApp, service: FakeService) -> None:
    given_log(service, (0, b"x"))
    second = attempt_view("42/main/0#2", phase="Pending", uid=None, started_at=None)
    service.known_attempts[42].append(second)
    answer = await call(app, "GET", "/v1/jobs/42/logs")
    assert answer.headers["pertinax-attempt"] == "42/main/0#1"
    answer = await call(app, "GET", "/v1/jobs/42/logs?attempt=2")
    assert (answer.status, answer.code) == (409, "not_started")
    answer = await call(app, "GET", "/v1/jobs/42/logs?attempt=3")
    assert (answer.status, answer.code) == (404, "unknown_attempt")
    service.known_attempts[42].append(attempt_view("42/main/1#1"))
    answer = await call(app, "GET", "/v1/jobs/42/logs")
    assert (answer.status, answer.code) == (409, "several_workers")


async def test_an_attempt_that_never_began_has_an_empty_log(
    app: ASGIApp, service: FakeService
) -> None:
    given_log(service, (0, b"not asked for"), phase="Killed", started_at=None)
    answer = await call(app, "GET", "/v1/jobs/42/logs?format=frames")
    assert [one.kind for one in frames(answer.body)] == [HEAD, END]
    assert "open_log" not in dict(service.asked)


@pytest.mark.parametrize(("query", "retries"), [("", False), ("?follow", True)])
async def test_an_absent_node_is_waited_for_only_by_those_who_follow(
    app: ASGIApp, service: FakeService, query: str, retries: bool
) -> None:
    away = ServiceError("node_unreachable", "a1", kind="unavailable", retry_after_s=2.0)
    given_log(service, away)
    answer = await call(app, "GET", f"/v1/jobs/42/logs{query}")
    assert (answer.status, answer.code) == (503, "node_unreachable")
    assert ("retry-after" in answer.headers) == retries


async def test_the_source_is_closed_when_the_caller_goes_away(
    app: ASGIApp, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FIRST_BYTES_WAIT_S", 0.001)
    given_log(service, (0, b"abc"))
    service.is_log_endless = True
    await call(app, "GET", "/v1/jobs/42/logs?follow", until=b"abc")
    assert service.asked[-1] == ("log_closed", None)
