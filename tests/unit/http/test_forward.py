"""A follower's forwarding when the leader goes away: what the caller hears is what is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from starlette.types import ASGIApp

from scheduler.http import forward
from scheduler.http.app import make_app
from scheduler.http.auth import AdminTokenAuth
from scheduler.http.forward import Forwarder

from .asgi import call
from .fake import FakeService

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\npertinax-index: 9\r\nconnection: keep-alive\r\n\r\nok"
)


@asynccontextmanager
async def leader(serve: Serve) -> AsyncIterator[str]:
    """Something that is asked as if it led; gives its base URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
    if b"content-length" in lines:
        return head, await reader.readexactly(int(lines[b"content-length"]))
    if b"transfer-encoding" in lines:
        return head, await reader.readuntil(b"0\r\n\r\n")
    return head, b""


@pytest.fixture
async def follower(service: FakeService) -> AsyncIterator[ASGIApp]:
    service.is_leader, service.leader_name = False, "c2"
    forwarder = Forwarder(name="c1", tls=None)
    yield make_app(service, AdminTokenAuth("secret"), forwarder=forwarder)
    await forwarder.close()


async def test_the_request_goes_on_with_its_headers_and_a_mark_and_connections_are_kept(
    follower: ASGIApp, service: FakeService
) -> None:
    seen: list[tuple[bytes, bytes]] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            seen.append(await read_request(reader))
            writer.write(OK)

    async with leader(serve) as service.leader_url:
        headers = {"Idempotency-Key": "k", "Pertinax-User": "ana", "Content-Length": "2"}
        target = "/v1/attempts/1%2Fmain%2F0%231:kill"
        first = await call(follower, "POST", target, body=b"{}", headers=headers)
        second = await call(follower, "POST", "/v1/jobs?fields=name", body=[b"{", b"}"])
    assert (first.status, first.body, first.headers["pertinax-index"]) == (200, b"ok", "9")
    assert second.is_complete
    assert connections == 1
    head, body = seen[0]
    assert head.startswith(b"POST /v1/attempts/1%2Fmain%2F0%231:kill HTTP/1.1\r\n")
    assert b"authorization: Bearer secret\r\n" in head
    assert b"idempotency-key: k\r\n" in head
    assert b"pertinax-forwarded-by: c1\r\n" in head
    assert body == b"{}"
    assert b"POST /v1/jobs?fields=name " in seen[1][0]
    assert seen[1][1] == b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"


async def test_a_leader_that_dies_with_the_request_leaves_the_outcome_open(
    follower: ASGIApp, service: FakeService
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async with leader(serve) as service.leader_url:
        answer = await call(follower, "POST", "/v1/jobs", body={"tasks": {}})
    assert (answer.status, answer.code) == (503, "outcome_unknown")
    assert answer.json()["outcome_unknown"] is True
    assert "Idempotency-Key" in answer.json()["hint"]
    assert "retry-after" in answer.headers


async def test_a_leader_that_is_silent_is_given_up(
    follower: ASGIApp, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "HEAD_TIMEOUT_S", 0.01)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with leader(serve) as service.leader_url:
        answer = await call(follower, "POST", "/v1/jobs", body={"tasks": {}})
    assert (answer.status, answer.code) == (503, "outcome_unknown")


@pytest.mark.parametrize(
    "answer_bytes", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 99999]
)
async def test_an_answer_that_is_none_leaves_the_outcome_open(
    follower: ASGIApp, service: FakeService, answer_bytes: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer_bytes)
        await reader.read(-1)

    async with leader(serve) as service.leader_url:
        answer = await call(follower, "POST", "/v1/jobs", body={"tasks": {}})
    assert (answer.status, answer.code) == (503, "outcome_unknown")


async def test_a_leader_that_cannot_be_reached_took_nothing(
    follower: ASGIApp, service: FakeService
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    async with leader(serve) as url:
        service.leader_url = url
    answer = await call(follower, "POST", "/v1/jobs", body={"tasks": {}})
    assert (answer.status, answer.code) == (503, "leader_unreachable")
    assert "outcome_unknown" not in answer.json()


async def test_a_log_that_breaks_off_at_the_leader_breaks_off_here(
    follower: ASGIApp, service: FakeService
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")

    async with leader(serve) as service.leader_url:
        answer = await call(follower, "GET", "/v1/jobs/1/logs")
    assert (answer.status, answer.body, answer.is_complete) == (200, b"abc", False)


async def test_the_leader_is_let_go_when_the_caller_goes_away(
    follower: ASGIApp, service: FakeService
) -> None:
    let_go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await reader.read(-1)
        let_go.set()

    async with leader(serve) as service.leader_url:
        await call(follower, "GET", "/v1/jobs/1/logs?follow", until=b"abc")
        await asyncio.wait_for(let_go.wait(), 30)


async def test_more_than_the_limit_is_told_to_come_back(
    follower: ASGIApp, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "FORWARDS_MAX", 0)
    answer = await call(follower, "POST", "/v1/jobs", body={"tasks": {}})
    assert (answer.status, answer.code) == (429, "overloaded")
    assert "retry-after" in answer.headers


async def test_a_body_above_the_limit_is_refused_and_not_sent_on(
    follower: ASGIApp, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "REQUEST_BYTES_MAX", 10)
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read(-1))

    async with leader(serve) as service.leader_url:
        answer = await call(follower, "POST", "/v1/jobs", body=[b"x" * 8, b"x" * 8])
    assert (answer.status, answer.code) == (413, "too_large")
    assert all(b"0\r\n\r\n" not in one for one in got)
