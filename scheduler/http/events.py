"""/v1/events: what happens, as it is applied; taken up again anywhere by log index."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.responses import Response

from scheduler.controller.errors import Lagged
from scheduler.http import params
from scheduler.http.ahead import Ahead
from scheduler.http.exchange import Exchange, Operation
from scheduler.http.port import ServicePort, View
from scheduler.http.problems import bad_request
from scheduler.http.stream import Stream

#: Seconds between signs of life; clients give up after four times as much.
BEAT_S: Final = 5.0
#: Bytes of events put into one chunk.
CHUNK_BYTES_MAX: Final = 64 * 1024
NO_STORE: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def follow(exchange: Exchange) -> Response:
    """GET /v1/events"""
    after = exchange.query.get("after")
    last_id = exchange.request.headers.get("last-event-id")
    if last_id is not None:
        if not (last_id.isascii() and last_id.isdigit() and len(last_id) <= 18):
            raise bad_request("Last-Event-ID wants a log index", code="bad_event_id")
        after = int(last_id)
    as_of = await exchange.service.read(consistency="stale", min_index=None)
    lines = EventLines(as_of.index if after is None else after, exchange.query.get("object", ()))
    headers = {**NO_STORE, "Pertinax-Index": str(as_of.index)}
    body = event_stream(exchange.service, lines)
    return Stream(body, headers=headers, media_type="text/event-stream")


async def event_stream(service: ServicePort, lines: EventLines) -> AsyncGenerator[bytes, None]:
    """Server-sent events after `lines.index`, until the controller stops."""
    yield b": events of the log\n\n"
    is_going = True
    while is_going:
        ahead = Ahead(service.watch(lines.index))
        try:
            is_going = False
            async for part in _paced(ahead, lines):
                yield part
        except Lagged as lagged:
            is_going = True
            yield lines.gap(lagged.resume_index)
        finally:
            await ahead.close()


async def _paced(ahead: Ahead[View], lines: EventLines) -> AsyncGenerator[bytes, None]:
    """What is at hand, in chunks; the index, once nothing more is; a comment while it stays so."""
    while True:
        if not await ahead.is_ready(0):
            if part := lines.flush(is_index_complete=True):
                yield part
            while not await ahead.is_ready(BEAT_S):
                yield b": beat\n\n"
        event = await ahead.next()
        if event is None:
            yield lines.flush(is_index_complete=True)
            return
        lines.add(event)
        if lines.size_bytes >= CHUNK_BYTES_MAX:
            yield lines.flush(is_index_complete=False)


class EventLines:
    """The text of a stream of events, as it grows.

    `id:` is sent once all events of its index were: a client that resumes there misses none.
    """

    def __init__(self, index: int, objects: tuple[str, ...]) -> None:
        #: All events up to here were sent, or were not asked for.
        self.index = index
        self._newest = index
        self._objects = objects
        self._parts: list[bytes] = []
        self.size_bytes = 0

    def add(self, event: View) -> None:
        """Take in the next event. One that became known late carries an older index."""
        if event["index"] > self._newest:
            self._complete()
            self._newest = event["index"]
        if not self._objects or any(is_within(event["object"], one) for one in self._objects):
            self._put(b"data: " + msgspec.json.encode(event) + b"\n\n")

    def flush(self, *, is_index_complete: bool) -> bytes:
        """The text since the last flush."""
        if is_index_complete:
            self._complete()
        found = b"".join(self._parts)
        self._parts.clear()
        self.size_bytes = 0
        return found

    def gap(self, index: int) -> bytes:
        """The text that says: events after `self.index` up to `index` are not at hand any more."""
        event = {"kind": "gap", "index": index, "details": {"after": self.index, "upto": index}}
        self._put(b"data: " + msgspec.json.encode(event) + b"\n\n")
        self._newest = index
        return self.flush(is_index_complete=True)

    def _complete(self) -> None:
        if self._newest > self.index:
            self.index = self._newest
            self._put(b"id: %d\n\n" % self.index)

    def _put(self, part: bytes) -> None:
        self._parts.append(part)
        self.size_bytes += len(part)


def is_within(thing: str, name: str) -> bool:
    """Whether `thing` is `name` or inside it: `42/main/0#1` is within `42`; `421` is not."""
    return thing == name or thing.startswith((f"{name}/", f"{name}#"))


OPERATIONS: Final = (
    Operation(
        "GET",
        "/v1/events",
        follow,
        "Events as they are applied (server-sent events); Last-Event-ID resumes.",
        (
            params.integer("after", "a log index to go on from; now unless told"),
            params.names("object", "only these objects and what is inside them"),
        ),
        is_endless=True,
        media_type="text/event-stream",
    ),
)
