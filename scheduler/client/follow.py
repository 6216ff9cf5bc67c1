"""Following events and output through broken connections and leader changes.

Both resume where they were: events by log index, output by byte offset. Blocking.
"""

from __future__ import annotations

import http.client
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.client import calls
from scheduler.client.calls import Call
from scheduler.client.connection import Body
from scheduler.client.errors import ApiError, Document, LogLost, NoLeader
from scheduler.protocol.errors import DecodeError
from scheduler.protocol.logframes import DATA, END, HEAD, HEADER, LogFrame, decode_header

Open = Callable[[Call], Body]
ReadJob = Callable[[str], Document]

#: Pause before a broken stream is opened again, seconds; doubled while nothing new comes.
PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5
#: Longest line of an event stream, bytes.
LINE_BYTES_MAX: Final = 4 * 1024 * 1024
#: First guess at how long a line of output is, bytes, when the last N are asked for.
LINE_BYTES_GUESS: Final = 256
#: The whole of what a node keeps of one stream, unless told otherwise (`log_limit`).
TAIL_BYTES_MAX: Final = 64 * 1024 * 1024

_FINAL: Final = ("Succeeded", "Failed", "Killed")
#: Code of the error for output whose node is not connected.
_AWAY: Final = "node_unreachable"
#: What reading a broken connection raises.
_BROKEN: Final = (OSError, http.client.HTTPException, DecodeError)


class _Pause:
    """Growing pauses between tries that bring nothing."""

    def __init__(self) -> None:
        self._seconds = PAUSE_FIRST_S

    def reset(self) -> None:
        self._seconds = PAUSE_FIRST_S

    def sleep(self) -> None:
        time.sleep(self._seconds)
        self._seconds = min(PAUSE_MAX_S, self._seconds * 1.5)


class EventStream:
    """Server-sent events, resumed by `Last-Event-ID`."""

    def __init__(self, open_: Open, *, objects: Sequence[str], after: int | None) -> None:
        self._open = open_
        self._objects = tuple(objects)
        self._after = after

    def __iter__(self) -> Iterator[Document]:
        pause = _Pause()
        while True:
            body = self._open(calls.events(after=self._after, objects=self._objects))
            try:
                for index, event in read_events(body):
                    if index is not None:
                        self._after = index
                    if event is not None:
                        pause.reset()
                        yield event
            except _BROKEN:
                pass  # resumed below, at the last index
            finally:
                body.close()
            pause.sleep()


def read_events(body: Body) -> Iterator[tuple[int | None, Document | None]]:
    """(id, event) of each message of a stream; the event is None for a bare id or comment.

    An id is given only once all events of its index have come, so resuming loses none.
    """
    index: int | None = None
    data: list[str] = []
    while raw := body.readline(LINE_BYTES_MAX):
        if not raw.endswith(b"\n"):
            raise DecodeError("an event stream that breaks off within a line")
        line = raw.rstrip(b"\r\n").decode()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data or index is not None:
                yield index, _event("\n".join(data)) if data else None
            index, data = None, []
        elif name == "data":
            data.append(value)
        elif name == "id" and value.isdigit():
            index = int(value)


def _event(text: str) -> Document:
    try:
        event = json.loads(text)
    except ValueError:
        raise DecodeError("an event that is no JSON") from None
    if not isinstance(event, dict):
        raise DecodeError("an event that is no JSON object")
    return event


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Consecutive bytes of one stream of one attempt."""

    #: `42/main/0#1`.
    attempt: str
    stream: str
    #: Position of the first byte.
    offset: int
    data: bytes
    #: Bytes before this chunk that were printed but not kept.
    lost_bytes: int = 0


@dataclass(slots=True)
class _Position:
    """Where a stream of output is: what has been handed out already."""

    attempt: str = ""
    number: int = 0
    offset: int = 0


class LogStream:
    """The output of a target, attempt after attempt when it is followed."""

    def __init__(
        self,
        open_: Open,
        read_job: ReadJob,
        target: str | int,
        *,
        stream: str,
        attempt: int | None,
        is_following: bool,
    ) -> None:
        self._open = open_
        self._read_job = read_job
        self._target = str(target)
        self._job = self._target.split("/", 1)[0].split("#", 1)[0]
        self._stream = stream
        self._number = attempt
        self._is_following = is_following
        self._goes_on = is_following and attempt is None and "#" not in self._target
        self._at = _Position()

    def chunks(
        self, *, offset: int, tail_bytes: int | None, tail_lines: int | None
    ) -> Iterator[LogChunk]:
        self._at.offset = offset
        if tail_lines is not None:
            yield from self._last_lines(tail_lines)
            self._number = self._at.number or self._number
            if not self._is_following:
                return
        yield from self._attempt(tail_bytes)
        while self._goes_on and self._at.number:
            self._number = self._at.number + 1
            self._at = _Position()
            yield from self._attempt(None)

    def _call(self, tail_bytes: int | None) -> Call:
        return calls.logs(
            self._target,
            stream=self._stream,
            attempt=self._number,
            offset=0 if tail_bytes else self._at.offset,
            tail_bytes=tail_bytes,
            follow=self._is_following,
        )

    def _attempt(self, tail_bytes: int | None) -> Iterator[LogChunk]:
        """All of one attempt's output from the present offset on, resumed until it is complete."""
        body = self._first_body(tail_bytes)
        pause = _Pause()
        while body is not None:
            end: Document = {"code": "moved"}  # holds for a body that breaks off without an end
            for frame in read_frames(body):
                if frame.kind == DATA:
                    tail_bytes = None  # from here on it resumes by offset
                    pause.reset()
                    if chunk := self._take(frame):
                        yield chunk
                elif frame.kind == HEAD:
                    self._begin(frame)
                elif frame.kind == END:
                    end = frame.document()
            if self._is_at_end(end):
                return
            pause.sleep()
            body = self._open_again(tail_bytes)

    def _begin(self, frame: LogFrame) -> None:
        head = frame.document()
        self._at.attempt = str(head.get("attempt", self._target))
        number = self._at.attempt.rpartition("#")[2]
        self._at.number = int(number) if number.isdigit() else 0
        # A stream that is resumed stays with its attempt, also when a newer one was placed.
        self._number = self._at.number or self._number
        if self._at.offset == 0:
            self._at.offset = frame.offset

    def _take(self, frame: LogFrame) -> LogChunk | None:
        data = frame.payload[max(0, self._at.offset - frame.offset) :]
        if not data:
            return None
        start = frame.offset + len(frame.payload) - len(data)
        lost = start - self._at.offset
        self._at.offset = start + len(data)
        return LogChunk(self._at.attempt, self._stream, start, data, lost_bytes=lost)

    def _is_at_end(self, end: Document) -> bool:
        """False when more may come and is to be asked for again. Raises LogLost."""
        code = str(end.get("code", ""))
        if code == "so_far":
            # The output ended, but the attempt's end is not in the log yet.
            return not self._is_following
        if code in ("complete", "moved"):
            return code == "complete"
        message = str(end.get("message") or f"the log is not there: {code}")
        raise LogLost(message, code=code, offset=self._at.offset)

    def _first_body(self, tail_bytes: int | None) -> Body | None:
        """The output of the wanted attempt; when following, waited for until it started.

        None when the job ends without it.
        """
        if not self._is_following:
            return self._open(self._call(tail_bytes))
        pause = _Pause()
        while True:
            # Read before the attempt is looked for: a final job gets no further one.
            is_final = self._read_job(self._job).get("phase") in _FINAL
            try:
                return self._open(self._call(tail_bytes))
            except ApiError as error:
                if error.code not in ("not_started", "unknown_attempt"):
                    raise
            except NoLeader as error:
                if error.code != _AWAY or is_final:
                    raise
            if is_final:
                return None
            pause.sleep()

    def _open_again(self, tail_bytes: int | None) -> Body | None:
        """The rest of the output; None when its node stays away and a successor was placed."""
        while True:
            job = self._read_job(self._job)
            try:
                return self._open(self._call(tail_bytes))
            except NoLeader as error:
                if error.code != _AWAY or not self._is_following or job.get("phase") in _FINAL:
                    raise
            newest = max((one.get("attempt") or 0 for one in job.get("workers", ())), default=0)
            if self._goes_on and newest > self._at.number:
                return None

    def _last_lines(self, lines: int) -> Iterator[LogChunk]:
        """The last `lines` lines as one chunk; asks for more until they are all there."""
        window = max(64 * 1024, lines * LINE_BYTES_GUESS)
        is_following, self._is_following = self._is_following, False
        while True:
            parts: deque[LogChunk] = deque(self._attempt(window))
            data = b"".join(part.data for part in parts)
            is_whole = not parts or parts[0].offset == 0 or window >= TAIL_BYTES_MAX
            if is_whole or data.count(b"\n") > lines:
                break
            window *= 8
            self._at.offset = 0
        self._is_following = is_following
        kept = last_lines(data, lines)
        if kept:
            yield LogChunk(self._at.attempt, self._stream, self._at.offset - len(kept), kept)


def last_lines(data: bytes, lines: int) -> bytes:
    """The last `lines` lines of `data`; an unfinished line counts as one."""
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        end = data.rfind(b"\n", 0, max(end, 0))
        if end < 0:
            return data
    return data[end + 1 :] if lines > 0 else b""


def read_frames(body: Body) -> Iterator[LogFrame]:
    """The frames of a body until its end frame, or until the connection breaks. Closes it."""
    try:
        while len(header := body.read(HEADER.size)) == HEADER.size:
            kind, offset, length = decode_header(header)
            payload = body.read(length) if length else b""
            if len(payload) < length:
                return
            yield LogFrame(kind, offset, payload)
            if kind == END:
                return
    except _BROKEN:
        return
    finally:
        body.close()
