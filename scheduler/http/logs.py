"""/v1/jobs/{id}/logs: the output of an attempt, from its node through the leader.

`format=frames` (scheduler.protocol.logframes) carries positions, signs of life and an end that says
whether the output is complete, so it can be taken up again by offset. `format=raw` is the bytes
alone: an error in the middle then breaks the connection off without a last chunk.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from starlette.responses import Response

from scheduler.controller.errors import ServiceError
from scheduler.http import params
from scheduler.http.ahead import Ahead
from scheduler.http.events import BEAT_S, NO_STORE
from scheduler.http.exchange import READ_PARAMS, Exchange, Operation
from scheduler.http.jobs import attempt_of
from scheduler.http.port import View
from scheduler.http.problems import Problem, of_service
from scheduler.http.stream import Stream
from scheduler.protocol.logframes import (
    BEAT,
    DATA,
    END,
    HEAD,
    MEDIA_TYPE,
    PAYLOAD_BYTES_MAX,
    encode_frame,
    encode_note,
)

#: Longest wait for the first bytes before the head of the answer is sent, seconds: an error that
#: comes sooner gets a status of its own.
FIRST_BYTES_WAIT_S: Final = 1.0

Piece = tuple[int, bytes]


async def logs(exchange: Exchange) -> Response:
    """GET /v1/jobs/{id}/logs"""
    as_of = await exchange.read()
    attempt = attempt_of(exchange, exchange.query.get("attempt"))
    source: Ahead[Piece] = Ahead(_source(exchange, attempt))
    await source.is_ready(FIRST_BYTES_WAIT_S)
    try:
        source.raise_if_failed()
    except ServiceError as error:
        await source.close()
        raise _refusal(exchange, error) from error
    headers = {
        **NO_STORE,
        "Pertinax-Index": str(as_of.index),
        "Pertinax-Attempt": attempt["id"],
        "X-Content-Type-Options": "nosniff",
    }
    if exchange.query.get("format", "raw") == "frames":
        body = _Frames(exchange, attempt).body(source)
        return Stream(body, headers=headers, media_type=MEDIA_TYPE)
    return Stream(_raw(source), headers=headers, media_type="application/octet-stream")


def _refusal(exchange: Exchange, error: ServiceError) -> Problem:
    """Who follows a job waits for its node to come back; who wants to see its log hears at once."""
    problem = of_service(error)
    if error.code == "node_unreachable" and not exchange.query.get("follow", False):
        problem.retry_after_s = None
    return problem


def _source(exchange: Exchange, attempt: View) -> AsyncIterator[Piece]:
    if attempt["started_at"] is None:
        return _nothing()  # it ended before it began: no node has output of it
    kept = attempt.get(exchange.query.get("stream", "stdout"))
    if isinstance(kept, dict) and kept["bytes"] == 0:
        return _nothing()  # its node makes a file at the first byte, so there is none
    return exchange.service.open_log(
        attempt["uid"],
        exchange.query.get("stream", "stdout"),
        offset=exchange.query.get("offset", 0),
        tail_bytes=exchange.query.get("tail_bytes"),
        follow=exchange.query.get("follow", False),
    )


async def _nothing() -> AsyncIterator[Piece]:
    pieces: tuple[Piece, ...] = ()
    for piece in pieces:
        yield piece


async def _raw(source: Ahead[Piece]) -> AsyncGenerator[bytes, None]:
    try:
        while (piece := await source.next()) is not None:
            yield piece[1]
    finally:
        await source.close()


class _Frames:
    """One answer in frames."""

    def __init__(self, exchange: Exchange, attempt: View) -> None:
        self._service = exchange.service
        self._attempt = attempt
        self._stream: str = exchange.query.get("stream", "stdout")
        self._offset: int = exchange.query.get("offset", 0)

    async def body(self, source: Ahead[Piece]) -> AsyncGenerator[bytes, None]:
        """Head, data and signs of life, and an end: also when the source breaks off."""
        is_begun = False
        try:
            while True:
                while not await source.is_ready(BEAT_S):
                    yield b"" if is_begun else self._head(self._offset)
                    is_begun = True
                    yield encode_frame(BEAT, self._offset)
                piece = await source.next()
                if not is_begun:
                    yield self._head(self._offset if piece is None else piece[0])
                    is_begun = True
                if piece is None:
                    yield self._end()
                    return
                for part in self._data(*piece):
                    yield part
        except ServiceError as error:
            yield b"" if is_begun else self._head(self._offset)
            yield self._broken_end(error)
        finally:
            await source.close()

    def _head(self, offset: int) -> bytes:
        note = {
            "attempt": self._attempt["id"],
            "token": self._attempt["uid"],
            "node": self._attempt["node"],
            "stream": self._stream,
        }
        return encode_note(HEAD, offset, note)

    def _data(self, offset: int, data: bytes) -> list[bytes]:
        self._offset = offset + len(data)
        return [
            encode_frame(DATA, offset + at, data[at : at + PAYLOAD_BYTES_MAX])
            for at in range(0, len(data), PAYLOAD_BYTES_MAX)
        ]

    def _end(self) -> bytes:
        """`complete` once the attempt is final, else `so_far`; with what its record says."""
        attempt = (self._service.attempts(self._attempt["id"]) or [self._attempt])[-1]
        is_final = attempt["phase"] in ("Succeeded", "Failed", "Killed")
        known: dict[str, Any] = attempt.get(self._stream) or {}
        note = {
            "code": "complete" if is_final else "so_far",
            "bytes": known.get("bytes"),
            "sha256": known.get("sha256"),
            "truncated": known.get("truncated"),
        }
        return encode_note(END, self._offset, note)

    def _broken_end(self, error: ServiceError) -> bytes:
        """`moved` when asking again from the offset helps, else the error's own code."""
        code = error.code if error.retry_after_s is None else "moved"
        note = {"code": code, "reason": error.code, "message": error.message, "hint": error.hint}
        return encode_note(END, self._offset, note)


OPERATIONS: Final = (
    Operation(
        "GET",
        "/v1/jobs/{id}/logs",
        logs,
        "Output of a job's only worker, of a worker or of an attempt.",
        (
            params.choice("stream", "stdout unless told", "stdout", "stderr"),
            params.integer("attempt", "its number; the newest that started unless told", low=1),
            params.integer("offset", "first byte that is wanted"),
            params.integer("tail_bytes", "only the last so many bytes", low=1, high=2**40),
            params.flag("follow", "go on until the attempt has ended"),
            params.choice("format", "raw unless told", "raw", "frames"),
            *READ_PARAMS,
        ),
        is_leaders=True,
        is_endless=True,
        media_type="application/octet-stream",
    ),
)
