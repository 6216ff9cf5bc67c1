"""Any bytes from a peer are a message or raise the one error; the core survives any keeper."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.events import KeeperSaid
from agent.keeper import wire
from scheduler.protocol.errors import DecodeError
from scheduler.protocol.framing import FrameReader
from scheduler.protocol.messages import (
    HeartbeatAck,
    Seen,
    Start,
    Verdict,
    Verdicts,
    Work,
    decode_controller_message,
    encode_message,
)

from .bench import START, Bench, token

SEEN = Seen(incarnation="i", term=1, index=1)
MESSAGES = (
    HeartbeatAck(sequence=1, sent_boottime_ms=2, seen=SEEN, lease_ms=3, not_renewed=("t",)),
    Start(
        order_sequence=1,
        session=1,
        seen=SEEN,
        token="t",
        work=Work(attempt="1/main/0#1", argv=("a",), env={"K": "V"}),
    ),
    Verdicts(
        session=1,
        verdicts=(Verdict(token="t", verdict="keep"),),
        is_last=True,
        seen=SEEN,
        lease_ms=1,
        hello_boottime_ms=1,
    ),
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)


def survives(body: bytes) -> None:
    with suppress(DecodeError):
        decode_controller_message(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_controllers_message_or_a_decode_error(body: bytes) -> None:
    survives(body)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_damaged_message_is_a_message_or_a_decode_error(
    message: Any, data: st.DataObject
) -> None:
    body = bytearray(encode_message(message))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    survives(bytes(body))


def test_every_prefix_of_a_message_is_a_decode_error() -> None:
    for message in MESSAGES:
        body = encode_message(message)
        for length in range(len(body)):
            survives(body[:length])


def test_deep_nesting_is_a_decode_error() -> None:
    survives(b"\x91" * 1_000_000)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_in_any_pieces_end_a_keeper_connection_in_order(pieces: list[bytes]) -> None:
    reader = wire.Reader()
    with suppress(wire.WireError):
        for piece in pieces:
            for message in reader.feed(piece):
                assert isinstance(message, dict)


@settings(max_examples=30)
@given(st.lists(PLAIN, max_size=3), st.data())
def test_frames_survive_any_cutting(values: list[Any], data: st.DataObject) -> None:
    frames = b"".join(wire.encode({"v": value}) for value in values)
    reader, found = wire.Reader(), []
    while frames:
        size = data.draw(st.integers(1, len(frames)))
        found += reader.feed(frames[:size])
        frames = frames[size:]
    assert [message["v"] for message in found] == values


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=5), st.integers(1, 7))
def test_protocol_frames_survive_any_cutting(bodies: list[bytes], size: int) -> None:
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    reader, found = FrameReader(), []
    for at in range(0, len(stream), size):
        found += reader.feed(stream[at : at + size])
    assert found == bodies


def test_nesting_does_not_break_the_keepers_reader() -> None:
    body = b"\x91" * 100_000
    reader = wire.Reader()
    with suppress(wire.WireError):
        reader.feed(len(body).to_bytes(4, "big") + body)


@settings(max_examples=25)
@given(
    st.sampled_from(
        ["started", "finished", "progress", "frozen", "ready", "disk", "tree_gone", ""]
    ),
    st.dictionaries(st.sampled_from(["start", "finish", "text", "is_low", "x"]), PLAIN),
)
def test_no_event_of_the_keeper_breaks_the_core(kind: str, fields: dict[str, Any]) -> None:
    bench = Bench()
    bench.join()
    bench.run(1)
    bench.handle(KeeperSaid({"is": kind, "token": token(1), **fields}))
    bench.tick(after_ms=10_000)
    assert msgpack.packb(START)


@settings(max_examples=25)
@given(st.lists(st.dictionaries(st.sampled_from(["token", "state", "start", "finish"]), PLAIN)))
def test_no_list_of_the_keeper_breaks_the_core(items: list[dict[str, Any]]) -> None:
    bench = Bench()
    bench.attach()
    bench.answer_only("list", attempts=items)
