"""Following events and output through broken connections and leader changes. No sockets.

Both resume where they were: events by log index, output by byte offset. What to do next is decided
by scripts: generators that yield an `Action`, are sent what came of it, and `Give` what they found.
The clients carry the actions out, one blocking and one awaiting, so both follow alike.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduler.client import calls
from scheduler.client.calls import Call
from scheduler.client.errors import ApiError, Document, LogLost, NoLeader
from scheduler.protocol.errors import DecodeError
from scheduler.protocol.logframes import DATA, END, HEAD, HEADER, LogFrame, decode_header

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


@dataclass(frozen=True, slots=True)
class Open:
    """Open the stream of `call`, closing the one before. Gives nothing; raises ClientError."""

    call: Call


@dataclass(frozen=True, slots=True)
class Read:
    """Gives the next bytes of the open stream; none once it ended or broke off."""


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Gives the job's document; raises ClientError."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Give:
    """Hand this to whoever follows: an event or a `LogChunk`."""

    item: Any


Action = Open | Read | ReadJob | Pause | Give
Script = Generator[Action, Any, None]


class _Pauses:
    """Growing pauses between tries that bring nothing."""

    def __init__(self) -> None:
        self._seconds = PAUSE_FIRST_S

    def reset(self) -> None:
        self._seconds = PAUSE_FIRST_S

    def next(self) -> Pause:
        pause = Pause(self._seconds)
        self._seconds = min(PAUSE_MAX_S, self._seconds * 1.5)
        return pause


# ---- events ------------------------------------------------------------------------------------


def event_script(*, objects: Sequence[str], after: int | None) -> Script:
    """Events for ever, from log index `after` on (None: from now on)."""
    pauses = _Pauses()
    while True:
        yield Open(calls.events(after=after, objects=tuple(objects)))
        reader = EventReader()
        while data := (yield Read()):
            try:
                found = list(reader.feed(data))
            except DecodeError:
                break  # not ours, or broken: resumed at the last index
            for index, event in found:
                if index is not None:
                    after = index
                if event is not None:
                    pauses.reset()
                    yield Give(event)
        yield pauses.next()


class EventReader:
    """Bytes of a stream of events to (id, event); an id without an event comes alone.

    An id comes only once all events of its index have come, so resuming at it loses none.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._index: int | None = None
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[tuple[int | None, Document | None]]:
        """What these bytes complete. Raises DecodeError for what is no stream of events."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise DecodeError(f"a line of more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value.decode(errors="replace"))
            elif name == b"id" and value.isdigit():
                self._index = int(value)
            elif not line.rstrip(b"\r") and (self._data or self._index is not None):
                text, index = "\n".join(self._data), self._index
                self._data, self._index = [], None
                yield index, _event(text) if text else None


def _event(text: str) -> Document:
    try:
        event = json.loads(text)
    except ValueError:
        raise DecodeError("an event that is no JSON") from None
    if not isinstance(event, dict):
        raise DecodeError("an event that is no JSON object")
    return event


# ---- output ------------------------------------------------------------------------------------


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


class FrameReader:
    """Bytes of a body to log frames; the rest of one waits for more."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[LogFrame]:
        """The frames that these bytes complete. Raises DecodeError."""
        self._rest += data
        while len(self._rest) >= HEADER.size:
            kind, offset, length = decode_header(bytes(self._rest[: HEADER.size]))
            end = HEADER.size + length
            if len(self._rest) < end:
                return
            payload = bytes(self._rest[HEADER.size : end])
            del self._rest[:end]
            yield LogFrame(kind, offset, payload)


@dataclass(slots=True)
class _Position:
    """What of an attempt's output has been handed out already."""

    attempt: str = ""
    number: int = 0
    offset: int = 0


class Output:
    """The output of a target, attempt after attempt when it is followed."""

    def __init__(
        self, target: str | int, *, stream: str, attempt: int | None, is_following: bool
    ) -> None:
        self._target = str(target)
        self._job = self._target.split("/", 1)[0].split("#", 1)[0]
        self._stream = stream
        self._number = attempt
        self._is_following = is_following
        self._goes_on = is_following and attempt is None and "#" not in self._target
        self._at = _Position()
        #: While the last lines are looked for, what came is kept here instead of given.
        self._held: list[LogChunk] | None = None

    def script(self, *, offset: int, tail_bytes: int | None, tail_lines: int | None) -> Script:
        """Gives `LogChunk`s. Raises LogLost, and what opening a stream raises."""
        self._at.offset = offset
        if tail_lines is not None:
            yield from self._last_lines(tail_lines)
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

    def _attempt(self, tail_bytes: int | None) -> Script:
        """All of one attempt's output from the present offset on, resumed until it is complete."""
        is_open = yield from self._open_first(tail_bytes)
        pauses = _Pauses()
        while is_open:
            end: Document = {"code": "moved"}  # holds for a body that breaks off without an end
            reader = FrameReader()
            while data := (yield Read()):
                for frame in _frames(reader, data):
                    if frame.kind == DATA and (chunk := self._take(frame)):
                        tail_bytes = None  # from here on it resumes by offset
                        pauses.reset()
                        if self._held is None:
                            yield Give(chunk)
                        else:
                            self._held.append(chunk)
                    elif frame.kind == HEAD:
                        self._begin(frame)
                    elif frame.kind == END:
                        end = _note(frame) or end
            if self._is_at_end(end):
                return
            yield pauses.next()
            is_open = yield from self._open_again(tail_bytes)

    def _open_first(self, tail_bytes: int | None) -> Generator[Action, Any, bool]:
        """Open the wanted attempt's output; when following, wait until it started.

        False when the job ends without it.
        """
        if not self._is_following:
            yield Open(self._call(tail_bytes))
            return True
        pauses = _Pauses()
        while True:
            # Read before the attempt is looked for: a final job gets no further one.
            job: Document = yield ReadJob(self._job)
            is_final = job.get("phase") in _FINAL
            try:
                yield Open(self._call(tail_bytes))
                return True
            except ApiError as error:
                if error.code not in ("not_started", "unknown_attempt"):
                    raise
            except NoLeader as error:
                if error.code != _AWAY or is_final:
                    raise
            if is_final:
                return False
            yield pauses.next()

    def _open_again(self, tail_bytes: int | None) -> Generator[Action, Any, bool]:
        """Open the rest; False when the node stays away and a successor was placed."""
        while True:
            job: Document = {}
            if self._is_following:
                job = yield ReadJob(self._job)
            try:
                yield Open(self._call(tail_bytes))
                return True
            except NoLeader as error:
                if error.code != _AWAY or not self._is_following or job.get("phase") in _FINAL:
                    raise
            newest = max((one.get("attempt") or 0 for one in job.get("workers", ())), default=0)
            if self._goes_on and newest > self._at.number:
                return False

    def _begin(self, frame: LogFrame) -> None:
        head = _note(frame)
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

    def _last_lines(self, lines: int) -> Script:
        """Give the last `lines` lines as one chunk; ask for more until they are all there."""
        window = max(64 * 1024, lines * LINE_BYTES_GUESS)
        is_following, self._is_following = self._is_following, False
        data = b""
        try:
            while True:
                self._held, self._at.offset = [], 0
                yield from self._attempt(window)
                data = b"".join(part.data for part in self._held)
                is_whole = not self._held or self._held[0].offset == 0
                if is_whole or window >= TAIL_BYTES_MAX or data.count(b"\n") > lines:
                    break
                window *= 8
        except ApiError as error:
            if not is_following or error.code != "not_started":
                raise  # else all of it is still to come
        finally:
            self._is_following, self._held = is_following, None
        if kept := last_lines(data, lines):
            start = self._at.offset - len(kept)
            yield Give(LogChunk(self._at.attempt, self._stream, start, kept))


def _frames(reader: FrameReader, data: bytes) -> Iterator[LogFrame]:
    """What `data` completes; nothing more from bytes that are no frames: the body broke off."""
    try:
        yield from reader.feed(data)
    except DecodeError:
        return


def _note(frame: LogFrame) -> Document:
    """What a head or end says; nothing when that cannot be read."""
    try:
        return frame.document()
    except DecodeError:
        return {}


def last_lines(data: bytes, lines: int) -> bytes:
    """The last `lines` lines of `data`; an unfinished line counts as one."""
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        end = data.rfind(b"\n", 0, max(end, 0))
        if end < 0:
            return data
    return data[end + 1 :] if lines > 0 else b""
