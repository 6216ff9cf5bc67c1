"""Streams: what is sent for a request, without a connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.bulk import CHUNK_BYTES, serve_stream
from scheduler.protocol.messages import BulkData, BulkEnd, Message, OpenBulk


class Reader:
    """Collects what a stream sends; may leave after some messages."""

    def __init__(self, *, leaves_after: int | None = None) -> None:
        self.messages: list[Message] = []
        self._leaves_after = leaves_after

    @property
    def is_open(self) -> bool:
        return self._leaves_after is None or len(self.messages) < self._leaves_after

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def data(self) -> bytes:
        return b"".join(m.data for m in self.messages if isinstance(m, BulkData))


def request(**fields: object) -> OpenBulk:
    return OpenBulk(**{"request": "r", "token": "t", "stream": "stdout", **fields})


async def test_a_whole_stream_in_chunks_then_its_size(tmp_path: Path) -> None:
    content = b"x" * (2 * CHUNK_BYTES + 5)
    (tmp_path / "stdout").write_bytes(content)
    reader = Reader()
    await serve_stream(request(), tmp_path, reader, is_over=lambda: True)
    assert reader.data == content
    assert [m.offset for m in reader.messages[:-1]] == [0, CHUNK_BYTES, 2 * CHUNK_BYTES]
    assert reader.messages[-1] == BulkEnd(code="complete", size_bytes=len(content))


async def test_from_an_offset_and_from_the_tail(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"0123456789")
    for fields, expected in (
        ({"offset": 4}, b"456789"),
        ({"tail_bytes": 3}, b"789"),
        ({"tail_bytes": 100}, b"0123456789"),
        ({"offset": 10}, b""),
        ({"offset": 99}, b""),
    ):
        reader = Reader()
        await serve_stream(request(**fields), tmp_path, reader, is_over=lambda: True)
        assert reader.data == expected
        assert isinstance(reader.messages[-1], BulkEnd)


async def test_following_sends_what_was_written_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"one ")
    looks = 0

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            with path.open("ab") as file:
                file.write(b"two")
        # From the third look on it is over; what was written before must all have been sent.
        return looks >= 3

    reader = Reader()
    await serve_stream(request(is_following=True), tmp_path, reader, is_over=is_over)
    assert reader.data == b"one two"


async def test_following_ends_when_the_reader_left(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"one")
    reader = Reader(leaves_after=1)
    async with asyncio.timeout(60):
        await serve_stream(request(is_following=True), tmp_path, reader, is_over=lambda: False)
    assert reader.data == b"one"


async def test_an_unknown_stream_is_an_error(tmp_path: Path) -> None:
    reader = Reader()
    await serve_stream(request(stream="../x"), tmp_path, reader, is_over=lambda: True)
    (end,) = reader.messages
    assert isinstance(end, BulkEnd)
    assert end.code == "error"
