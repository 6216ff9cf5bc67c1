"""The server on the loopback: what slow, idle and too many callers get, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler.http import server
from scheduler.http.server import listen, serve


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the body."""
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


@asynccontextmanager
async def serving(app: ASGIApp = echo) -> AsyncIterator[int]:
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with serve(app, listener, cert=None, key=None):
        yield port


async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def is_cut_off(reader: asyncio.StreamReader) -> bool:
    """Waits until the server ends the connection."""
    try:
        return await asyncio.wait_for(reader.read(), 30) == b""
    except ConnectionError:
        return True


async def exchange(port: int) -> bytes:
    reader, writer = await dial(port)
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc")
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


@pytest.mark.parametrize(
    "begin",
    [b"", b"GET / HTTP/1.1\r\nhost", b"\r\n", b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc"],
)
async def test_a_request_that_does_not_come_in_time_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.01)
    monkeypatch.setattr(server, "BODY_S", 0.01)
    async with serving() as port:
        reader, writer = await dial(port)
        writer.write(begin)
        assert await is_cut_off(reader)
        writer.close()


async def test_a_second_request_on_a_connection_has_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as port:
        reader, writer = await dial(port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(server, "HEAD_S", 0.01)
        writer.write(b"GET / HTTP")
        assert await is_cut_off(reader)
        writer.close()


async def test_above_the_limit_the_longest_idle_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)
    async with serving() as port:
        idle = [await dial(port) for _ in range(3)]
        assert b"\r\n3\r\n" in await exchange(port)
        assert await is_cut_off(idle[0][0])
        for _, writer in idle:
            writer.close()


async def test_a_reader_that_stalls_is_cut_off_and_the_application_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "STALL_S", 0.01)
    let_go = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(_disconnect(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        let_go.set()

    async def _disconnect(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(endless) as port:
        _, writer = await dial(port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(let_go.wait(), 30)
        writer.close()


async def test_the_end_waits_for_requests_and_cuts_off_what_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "GRACE_S", 0.05)
    began, is_cancelled = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            is_cancelled.set()

    async with serving(slow) as port:
        idle, idle_writer = await dial(port)
        busy, busy_writer = await dial(port)
        busy_writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await began.wait()
    assert is_cancelled.is_set()
    assert await is_cut_off(idle)
    await busy.read()
    for writer in (idle_writer, busy_writer):
        writer.close()


def test_an_address_in_use_is_named() -> None:
    first = listen("127.0.0.1", 0)
    with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1:"):
        listen("127.0.0.1", first.getsockname()[1])
    first.close()
