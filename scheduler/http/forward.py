"""A follower passes what only the leader can do on to it, streaming both ways.

The leader authenticates the caller itself: the request goes on with its own headers. A request that
was forwarded once is not forwarded again, so two members that name each other make no loop. What
the caller hears when the leader goes away says what is known: before the last byte of the request
left, nothing was changed; after it, a change may have been taken (`outcome_unknown`).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httptools
from starlette.types import Message, Receive, Scope, Send

from scheduler.http.bodies import REQUEST_BYTES_MAX, TooLarge
from scheduler.http.problems import Problem
from scheduler.http.stream import until_gone
from scheduler.protocol.peers import is_agent

#: Marks a request that a member passed on; its value is that member's name.
HOP_HEADER: Final = "pertinax-forwarded-by"
#: Requests on their way to the leader at once; above it the caller is told to come back.
FORWARDS_MAX: Final = 256
#: Connections kept open while idle, and for how long: well below the server's own keep-alive.
IDLE_MAX: Final = 32
IDLE_S: Final = 3.0
CONNECT_TIMEOUT_S: Final = 2.0
#: Longest wait for the head of the leader's answer, and between two parts of it, seconds.
HEAD_TIMEOUT_S: Final = 15.0
PART_TIMEOUT_S: Final = 20.0
READ_BYTES: Final = 64 * 1024
#: Largest head of an answer, bytes.
HEAD_BYTES_MAX: Final = 64 * 1024

_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
     b"upgrade", b"host", b"expect", b"date", b"server")
)  # fmt: skip


class LeaderLost(Exception):
    """The leader did not answer. `is_sent`: it may have taken the whole request."""

    def __init__(self, reason: str, *, is_sent: bool) -> None:
        super().__init__(reason)
        self.is_sent = is_sent


class Forwarder:
    """The connections from this member to whoever leads. Event loop only."""

    def __init__(self, *, name: str, tls: ssl.SSLContext | None) -> None:
        #: This member's own name.
        self.name = name
        self._tls = tls
        self._idle: list[_Upstream] = []
        self._busy = 0

    async def close(self) -> None:
        """Close what is idle; requests on their way end by themselves."""
        while self._idle:
            self._idle.pop().close()

    async def forward(self, url: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by the leader at base URL `url`.

        Raises Problem (503, 429, 413) while nothing was sent to the caller; later on it raises
        LeaderLost, and the caller's connection must be broken off.
        """
        if self._busy >= FORWARDS_MAX:
            raise Problem(
                429,
                "overloaded",
                f"{FORWARDS_MAX} requests are on their way to the leader",
                retry_after_s=0.5,
            )
        self._busy += 1
        try:
            await self._forward(url, scope, receive, send)
        finally:
            self._busy -= 1

    async def _forward(self, url: str, scope: Scope, receive: Receive, send: Send) -> None:
        is_change = scope["method"] not in ("GET", "HEAD")
        relay = _Relay(send)
        upstream: _Upstream | None = None
        try:
            upstream = await self._connect(url)
            await upstream.ask(_head(scope, upstream.host, self.name.encode()), scope, receive)
            await until_gone(upstream.relay_answer(relay), receive)
            if upstream.can_be_kept and len(self._idle) < IDLE_MAX:
                upstream.idle_since = time.monotonic()
                self._idle.append(upstream)
                upstream = None
        except LeaderLost as lost:
            if relay.is_begun:
                raise
            raise _problem(lost, is_change=is_change) from lost
        finally:
            if upstream is not None:
                upstream.close()

    async def _connect(self, url: str) -> _Upstream:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 443
        while self._idle:
            upstream = self._idle.pop()
            if (upstream.url, upstream.is_fresh) == (url, True):
                return upstream
            upstream.close()
        tls = self._tls if parts.scheme == "https" else None
        if parts.scheme == "https" and tls is None:
            raise LeaderLost(f"this controller has no CA to check {url} with", is_sent=False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=tls, server_hostname=host if tls else None, limit=READ_BYTES
                )
        except (OSError, TimeoutError) as error:
            raise LeaderLost(f"{url}: {error or 'no answer in time'}", is_sent=False) from None
        if is_agent(writer.get_extra_info("peercert")):
            writer.transport.abort()
            raise LeaderLost(f"{url}: the certificate of an agent answers there", is_sent=False)
        return _Upstream(url, parts.netloc.encode(), reader, writer)


@dataclass(slots=True)
class _Relay:
    """The caller's side of an answer."""

    send: Send
    is_begun: bool = False

    async def __call__(self, message: Message) -> None:
        self.is_begun = True
        await self.send(message)


class _Upstream:
    """One connection to the leader, one request at a time. The parser calls back on it."""

    def __init__(
        self, url: str, host: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.url = url
        self.host = host
        self._reader = reader
        self._writer = writer
        self.idle_since = time.monotonic()
        self.can_be_kept = False

    @property
    def is_fresh(self) -> bool:
        """Still open, and not so long idle that the leader may be closing it right now."""
        is_young = time.monotonic() - self.idle_since < IDLE_S
        return is_young and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def ask(self, head: list[bytes], scope: Scope, receive: Receive) -> None:
        """Send the request. Raises LeaderLost (not sent) or Problem 413."""
        length = dict(scope["headers"]).get(b"content-length")
        has_body = length is not None or scope["method"] not in ("GET", "HEAD")
        if has_body and length is None:
            head.append(b"transfer-encoding: chunked")
        try:
            self._writer.write(b"\r\n".join([*head, b"", b""]))
            if has_body:
                async for part in _request_body(receive):
                    self._writer.write(part if length else b"%x\r\n%s\r\n" % (len(part), part))
                    await self._writer.drain()
                if length is None:
                    self._writer.write(b"0\r\n\r\n")
        except OSError as error:
            raise LeaderLost(f"{self.url}: {error}", is_sent=False) from None

    async def relay_answer(self, relay: _Relay) -> None:
        """Pass the answer on as it comes. Raises LeaderLost when it breaks off."""
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        answer.parser = parser
        while not answer.is_complete:
            data = await self._read(PART_TIMEOUT_S if relay.is_begun else HEAD_TIMEOUT_S)
            try:
                parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise LeaderLost(f"{self.url}: no HTTP answer: {error}", is_sent=True) from None
            answer.seen_bytes += len(data)
            if not answer.is_head_complete and answer.seen_bytes > HEAD_BYTES_MAX:
                raise LeaderLost(f"{self.url}: the head of its answer is too large", is_sent=True)
            for message in answer.take():
                await relay(message)
        self.can_be_kept = answer.should_keep_alive

    async def _read(self, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                data = await self._reader.read(READ_BYTES)
        except TimeoutError:
            raise LeaderLost(f"{self.url} did not answer in time", is_sent=True) from None
        except OSError as error:
            raise LeaderLost(f"{self.url}: {error}", is_sent=True) from None
        if not data:
            raise LeaderLost(f"{self.url} closed the connection", is_sent=True)
        return data


class _Answer:
    """What the parser found: an answer as ASGI messages."""

    def __init__(self) -> None:
        self.parser: httptools.HttpResponseParser | None = None
        self.seen_bytes = 0
        self.is_head_complete = False
        self.is_complete = False
        self.should_keep_alive = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[Message] = []

    def take(self) -> list[Message]:
        found, self._messages = self._messages, []
        return found

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _HOP_BY_HOP:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        status = self.parser.get_status_code()
        if status >= 200:
            self.is_head_complete = True
            head = {"type": "http.response.start", "status": status, "headers": self._headers}
            self._messages.append(head)
        self._headers = []

    def on_body(self, body: bytes) -> None:
        self._messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        assert self.parser is not None
        if self.is_head_complete:
            self.is_complete = True
            self.should_keep_alive = self.parser.should_keep_alive()
            self._messages.append({"type": "http.response.body", "body": b"", "more_body": False})


def _head(scope: Scope, host: bytes, name: bytes) -> list[bytes]:
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    lines = [b"%s %s HTTP/1.1" % (scope["method"].encode(), target), b"host: " + host]
    lines += (b"%s: %s" % (key, value) for key, value in scope["headers"] if key not in _HOP_BY_HOP)
    lines.append(HOP_HEADER.encode() + b": " + name)
    return lines


async def _request_body(receive: Receive) -> AsyncIterator[bytes]:
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise LeaderLost("the caller went away", is_sent=False)
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > REQUEST_BYTES_MAX:
            raise TooLarge("the request", "32 MiB")
        if part:
            yield part
        if not message.get("more_body", False):
            return


def _problem(lost: LeaderLost, *, is_change: bool) -> Problem:
    is_unknown = is_change and lost.is_sent
    return Problem(
        503,
        "outcome_unknown" if is_unknown else "leader_unreachable",
        f"the leader did not answer: {lost}",
        hint="repeat it with the same Idempotency-Key" if is_unknown else "try again in a moment",
        retry_after_s=0.5,
        outcome_unknown=is_unknown,
    )
