"""Frames between agent and keeper."""

from __future__ import annotations

import pytest

from agent.keeper.wire import FRAME_BYTES_MAX, Reader, WireError, encode

MESSAGE = {"do": "start", "id": 3, "work": {"argv": ["\udcff", b"\xff", "é"], "n": None}}


def test_messages_survive_any_cut() -> None:
    data = encode(MESSAGE) + encode({"is": "answer"})
    for cut in range(len(data)):
        reader = Reader()
        assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == [MESSAGE, {"is": "answer"}]


@pytest.mark.parametrize(
    "data",
    [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\1\x90", b"\0\0\0\2\x01\x01"],
)
def test_what_is_no_message_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        Reader().feed(data)


def test_too_large_a_message_is_not_sent() -> None:
    with pytest.raises(WireError):
        encode({"x": b"\0" * FRAME_BYTES_MAX})
