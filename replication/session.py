"""One connection between two members: frames in, frames out, requests and their answers.

A frame is a length (4 bytes, big-endian) and that many bytes of msgpack (`messages.py`). The first
frame of each side is a `Hello`; until it is accepted nothing else is, and frames must be short.
Whatever a stranger sends closes his connection and nothing more. Event loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import Final, Protocol, cast

from replication import messages
from replication.errors import MemberUnreachable, Overloaded, RequestFailed
from replication.messages import BadMessage, Hello, Message, Request, Response

logger = logging.getLogger(__name__)

HEADER_BYTES: Final = 4
#: A greeting is short; whoever announces more before he is known is cut off.
HELLO_BYTES_MAX: Final = 4_096
#: Time to say hello.
HELLO_TIMEOUT_S: Final = 5.0
#: Queued bytes above which a member gets heartbeats but no entries.
CONGESTED_BYTES: Final = 1024 * 1024
#: Queued bytes above which the connection is given up: the member reads nothing any more.
BACKLOG_BYTES_MAX: Final = 32 * 1024 * 1024
#: Requests that wait for one member's answer, and that one member may have answered here.
REQUESTS_MAX: Final = 256


class SessionOwner(Protocol):
    """What a session reports to."""

    def check_hello(self, session: Session, hello: Hello) -> str | None:
        """Why the greeting is refused; None when it is accepted."""
        ...

    def session_opened(self, session: Session) -> None: ...
    def session_closed(self, session: Session) -> None: ...
    def message_received(self, session: Session, message: Message) -> None: ...
    async def answer(self, member: str, kind: str, body: bytes) -> bytes: ...


class Session(asyncio.Protocol):
    """See the module. `hello_reply` is what this side says of itself."""

    def __init__(self, owner: SessionOwner, own_hello: Hello, *, is_dialer: bool) -> None:
        self._owner = owner
        self._own_hello = own_hello
        self._is_dialer = is_dialer
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._is_paused = False
        self._hello_timer: asyncio.TimerHandle | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.hello: Hello | None = None
        self.is_closed = False
        self.received_at = time.monotonic()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=CONGESTED_BYTES)
        self._hello_timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._hello_due)
        if self._is_dialer:
            self._write(self._own_hello)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._end()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False

    def data_received(self, data: bytes) -> None:
        self.received_at = time.monotonic()
        self._buffer += data
        try:
            taken = self._take_frames()
        except BadMessage as error:
            self.close(f"refused: {error}")
            return
        if taken:
            del self._buffer[:taken]

    # Use

    @property
    def member(self) -> str:
        """The peer's name; only after its greeting was accepted."""
        assert self.hello is not None
        return self.hello.member

    @property
    def is_open(self) -> bool:
        return self.hello is not None and not self.is_closed

    @property
    def is_congested(self) -> bool:
        return self._is_paused

    def peer_certificate(self) -> dict[str, object] | None:
        """The peer's verified certificate; None without TLS."""
        assert self._transport is not None
        ssl_object = self._transport.get_extra_info("ssl_object")
        return None if ssl_object is None else ssl_object.getpeercert()

    def send(self, message: Message) -> bool:
        """Queue one message; False when the connection is over."""
        if not self.is_open:
            return False
        self._write(message)
        return not self.is_closed

    async def request(self, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        """Ask and wait. Raises as `MemberRequests.request`."""
        if not self.is_open:
            raise MemberUnreachable(self.member if self.hello else "?")
        if len(self._waiting) >= REQUESTS_MAX:
            raise Overloaded(f"too many requests wait for {self.member}", retry_after_s=1.0)
        if len(body) > messages.BODY_BYTES_MAX:
            raise RequestFailed(f"a request of {len(body)} bytes is too large")
        number = next(self._ids)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._write(Request(number, kind, body))
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self._waiting.pop(number, None)

    def close(self, why: str) -> None:
        """End the connection now; what is queued is dropped. Idempotent."""
        if not self.is_closed:
            peer = self.hello.member if self.hello else "unknown"
            logger.info("session_closed peer=%s why=%s", peer, why)
        if self._transport is not None:
            self._transport.abort()
        self._end()

    # Frames

    def _take_frames(self) -> int:
        """Handle every whole frame in the buffer; returns the bytes used."""
        position = 0
        with memoryview(self._buffer) as view:
            while len(view) - position >= HEADER_BYTES and not self.is_closed:
                start = position + HEADER_BYTES
                size = int.from_bytes(view[position:start], "big")
                if size > (messages.FRAME_BYTES_MAX if self.hello else HELLO_BYTES_MAX):
                    raise BadMessage(f"a frame of {size} bytes")
                if len(view) - start < size:
                    break
                with view[start : start + size] as frame:
                    self._handle(frame)
                position = start + size
        return position

    def _handle(self, frame: memoryview) -> None:
        if self.hello is None:
            self._greet(messages.decode_hello(frame))
            return
        message = messages.decode(frame)
        match message:
            case Request():
                self._begin_answer(message)
            case Response():
                self._take_answer(message)
            case Hello():
                raise BadMessage("a second greeting")
            case _:
                self._owner.message_received(self, message)

    def _greet(self, hello: Hello) -> None:
        refusal = self._owner.check_hello(self, hello)
        if refusal is not None:
            raise BadMessage(refusal)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self.hello = hello
        if not self._is_dialer:
            self._write(self._own_hello)
        if not self.opened.done():
            self.opened.set_result(None)
        self._owner.session_opened(self)

    def _hello_due(self) -> None:
        if self.hello is None:
            self.close("no greeting in time")

    def _write(self, message: Message) -> None:
        transport = self._transport
        if transport is None or self.is_closed:
            return
        body = messages.encode(message)
        if len(body) > messages.FRAME_BYTES_MAX:
            raise AssertionError(f"a frame of {len(body)} bytes was built")
        transport.write(len(body).to_bytes(HEADER_BYTES, "big") + body)
        if transport.get_write_buffer_size() > BACKLOG_BYTES_MAX:
            self.close("the peer does not read")

    # Requests

    def _begin_answer(self, request: Request) -> None:
        if len(self._answering) >= REQUESTS_MAX:
            self._write(Response(request.id, False, b"too many requests"))
            return
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, request: Request) -> None:
        try:
            body = await self._owner.answer(self.member, request.kind, request.body)
        except Exception as error:  # noqa: BLE001 - the asker is told; the session lives on
            logger.info("request_failed kind=%s error=%r", request.kind, error)
            self._write(Response(request.id, False, str(error)[:1_000].encode()))
            return
        if len(body) > messages.BODY_BYTES_MAX:
            self._write(Response(request.id, False, b"the answer is too large"))
            return
        self._write(Response(request.id, True, body))

    def _take_answer(self, response: Response) -> None:
        future = self._waiting.get(response.id)
        if future is None or future.done():
            return
        if response.is_ok:
            future.set_result(response.body)
        else:
            future.set_exception(RequestFailed(response.body.decode(errors="replace")))

    def _end(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the connection ended before the greeting"))
            self.opened.exception()  # nobody may be waiting
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(MemberUnreachable(self.hello.member if self.hello else "?"))
        for task in self._answering:
            task.cancel()
        self._owner.session_closed(self)
