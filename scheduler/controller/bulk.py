"""Output of attempts, streamed from their nodes over connections of their own (specification 6.5).

The leader asks over the control connection (OpenBulk); the agent dials a second connection, names
the request, and sends. A slow reader stops the reading of that connection and nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from scheduler.controller.errors import ServiceError
from scheduler.controller.wire import AgentLink, Close
from scheduler.protocol.messages import (
    AgentMessage,
    BulkData,
    BulkEnd,
    BulkHello,
    CloseBulk,
    OpenBulk,
)

#: Streams open at once on one controller.
STREAMS_MAX: Final = 256
#: The agent must have dialled by then.
DIAL_TIMEOUT_S: Final = 10.0
#: Bytes read ahead of the reader; above it the connection is not read.
AHEAD_BYTES_MAX: Final = 1024 * 1024


class BulkStream:
    """One stream being read. Event loop; one reader."""

    def __init__(self, request: str, node: str) -> None:
        self.request = request
        self.node = node
        self.link: AgentLink | None = None
        self._chunks: deque[tuple[int, bytes]] = deque()
        self._ahead_bytes = 0
        self._end: BulkEnd | None = None
        self._lost = ""
        self._news = asyncio.Event()

    def attach(self, link: AgentLink) -> None:
        """The agent's connection for this request has come."""
        self.link = link
        link.sink = self._on_message
        link.on_sink_closed = self._on_closed
        self._news.set()

    def lose(self, why: str) -> None:
        """Nothing can come any more."""
        if self._end is None:
            self._lost = self._lost or why
            self._news.set()

    async def chunks(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """(offset, bytes) until the end. Raises ServiceError when the stream breaks or is gone."""
        await self._wait_attached()
        while True:
            while self._chunks:
                offset, data = self._chunks.popleft()
                self._ahead_bytes -= len(data)
                if self._ahead_bytes <= AHEAD_BYTES_MAX and self.link is not None:
                    self.link.resume_reading()
                yield offset, data
            if self._end is not None:
                _check_end(self._end, self.node)
                return
            if self._lost:
                raise _interrupted(self.node, self._lost)
            self._news.clear()
            await self._news.wait()

    async def _wait_attached(self) -> None:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                while self.link is None and not self._lost:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise _interrupted(self.node, "it did not open a stream in time") from None

    def _on_message(self, message: AgentMessage) -> None:
        if isinstance(message, BulkData):
            self._chunks.append((message.offset, message.data))
            self._ahead_bytes += len(message.data)
            if self._ahead_bytes > AHEAD_BYTES_MAX and self.link is not None:
                self.link.pause_reading()
        elif isinstance(message, BulkEnd):
            self._end = message
        elif self.link is not None:
            self.link.abort()  # A bulk connection carries nothing else.
        self._news.set()

    def _on_closed(self, how: Close) -> None:
        self.lose(f"the stream's connection closed ({how.value})")


class BulkStreams:
    """All streams of this leadership."""

    def __init__(self) -> None:
        self._by_request: dict[str, BulkStream] = {}

    async def read(
        self,
        link: AgentLink,
        *,
        node: str,
        token: str,
        stream: str,
        offset: int,
        tail_bytes: int,
        is_following: bool,
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Ask `node` over its control connection `link` and yield what comes.

        Closing the iterator tells the agent to stop. Raises ServiceError.
        """
        if len(self._by_request) >= STREAMS_MAX:
            raise ServiceError(
                "too_many_streams",
                f"{STREAMS_MAX} log streams are open on this controller",
                kind="overloaded",
                retry_after_s=1.0,
            )
        bulk = BulkStream(secrets.token_hex(16), node)
        self._by_request[bulk.request] = bulk
        try:
            link.send(
                OpenBulk(
                    request=bulk.request,
                    token=token,
                    stream=stream,
                    offset=offset,
                    tail_bytes=tail_bytes,
                    is_following=is_following,
                )
            )
            async for chunk in bulk.chunks():
                yield chunk
        finally:
            del self._by_request[bulk.request]
            link.send(CloseBulk(request=bulk.request))
            if bulk.link is not None:
                bulk.link.close()

    def on_hello(self, link: AgentLink, hello: BulkHello) -> bool:
        """Give a new connection to the stream that waits for it; False when none does."""
        bulk = self._by_request.get(hello.request)
        if bulk is None or bulk.link is not None or bulk.node != hello.name:
            return False
        bulk.attach(link)
        return True

    def lose_node(self, node: str, why: str) -> None:
        """The node's control connection ended: its streams that did not begin never will."""
        for bulk in list(self._by_request.values()):
            if bulk.node == node and bulk.link is None:
                bulk.lose(why)

    def close(self) -> None:
        """This controller leads no longer: readers are sent to the new leader."""
        for bulk in list(self._by_request.values()):
            bulk.lose("the leader changed")
            if bulk.link is not None:
                bulk.link.close()


def _check_end(end: BulkEnd, node: str) -> None:
    if end.code == "complete":
        return
    message = end.message or f"the output is {end.code}"
    if end.code in {"missing", "gone"}:
        raise ServiceError(f"log_{end.code}", f"missing from {node}: {message}", kind="not_found")
    raise ServiceError("log_error", f"{node}: {message}", kind="unavailable", retry_after_s=1.0)


def _interrupted(node: str, why: str) -> ServiceError:
    return ServiceError(
        "log_interrupted",
        f"the output of {node} was interrupted: {why}",
        hint="go on from the last offset",
        kind="unavailable",
        retry_after_s=0.5,
    )
