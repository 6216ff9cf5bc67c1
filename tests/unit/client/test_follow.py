"""What is done to follow events and output, step by step: no sockets, no sleeping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.client.errors import ApiError, ClientError, LogLost, NoLeader
from scheduler.client.follow import (
    EventReader,
    FrameReader,
    Give,
    Open,
    Output,
    Pause,
    Read,
    ReadJob,
    Script,
    event_script,
)
from scheduler.protocol.errors import DecodeError
from scheduler.protocol.logframes import (
    BEAT,
    DATA,
    END,
    HEAD,
    PAYLOAD_BYTES_MAX,
    encode_frame,
    encode_note,
)

RUNNING, DONE = {"phase": "Running"}, {"phase": "Succeeded"}
AWAY = NoLeader("a1 is not connected", code="node_unreachable")
NOT_STARTED = ApiError("not yet", status=409, code="not_started")
UNKNOWN = ApiError("no such attempt", status=404, code="unknown_attempt")


def head(number: int = 1, offset: int = 0) -> bytes:
    return encode_note(HEAD, offset, {"attempt": f"42/main/0#{number}"})


def data(offset: int, text: bytes) -> bytes:
    return encode_frame(DATA, offset, text)


def end(code: str = "complete", **more: Any) -> bytes:
    return encode_note(END, 0, {"code": code, **more})


def play(
    script: Script,
    bodies: list[list[bytes] | ClientError],
    jobs: list[dict[str, Any]] | None = None,
    *,
    enough: Callable[[list[Any]], bool] = lambda given: False,
) -> tuple[list[Any], list[str]]:
    """Carry a script out: each Open takes the next body. Gives what it gave, and what it opened."""
    given_items: list[Any] = []
    opened: list[str] = []
    body: list[bytes] = []
    known = list(jobs or [])
    try:
        action = next(script)
        while not enough(given_items):
            reply: Any = None
            error: ClientError | None = None
            match action:
                case Give(item=item):
                    given_items.append(item)
                case Open(call=call):
                    opened.append(call.target)
                    taken = bodies.pop(0)
                    if isinstance(taken, ClientError):
                        error = taken
                    else:
                        body = list(taken)
                case Read():
                    reply = body.pop(0) if body else b""
                case ReadJob():
                    reply = known.pop(0) if len(known) > 1 else known[0]
                case Pause(seconds=seconds):
                    assert 0 < seconds <= 0.5
            action = script.send(reply) if error is None else script.throw(error)
    except StopIteration:
        pass
    return given_items, opened


def output(**options: Any) -> Script:
    start = {name: options.pop(name, None) for name in ("tail_bytes", "tail_lines")}
    settings: dict[str, Any] = {"stream": "stdout", "attempt": None, "is_following": False}
    offset = options.pop("offset", 0)
    return Output("42", **(settings | options)).script(offset=offset, **start)


def test_output_is_given_with_its_places_and_what_was_lost() -> None:
    body = [head() + data(0, b"ab"), encode_frame(BEAT, 2), data(5, b"fg") + end()]
    chunks, opened = play(output(), [body])
    assert [(one.offset, one.data, one.lost_bytes) for one in chunks] == [
        (0, b"ab", 0),
        (5, b"fg", 3),
    ]
    assert chunks[0].attempt == "42/main/0#1"
    assert len(opened) == 1


@pytest.mark.parametrize("broken", [[], [end("moved")], [data(2, b"c")[:5]], [b"garbage" * 9]])
def test_output_that_breaks_off_goes_on_with_the_same_attempt_at_its_place(
    broken: list[bytes],
) -> None:
    first = [head(3), data(0, b"ab"), *broken]
    second = [head(3, 2), data(1, b"bcd"), end()]
    chunks, opened = play(output(), [first, second])
    assert b"".join(one.data for one in chunks) == b"abcd"
    assert "offset=2" in opened[1]
    assert "attempt=3" in opened[1]


def test_output_that_cannot_be_had_is_told_with_its_place() -> None:
    body = [head(), data(0, b"ab"), end("log_gone", message="deleted")]
    with pytest.raises(LogLost, match="deleted") as caught:
        play(output(), [body])
    assert (caught.value.code, caught.value.offset) == ("log_gone", 2)


def test_following_waits_for_the_start_and_goes_on_to_the_successor_until_the_job_is_final() -> (
    None
):
    bodies: list[list[bytes] | ClientError] = [
        NOT_STARTED,
        [head(1), data(0, b"one"), end("so_far")],
        [head(1, 3), end()],
        UNKNOWN,
        [head(2), data(0, b"two"), end()],
        UNKNOWN,
    ]
    jobs = [RUNNING] * 5 + [DONE]
    chunks, opened = play(output(is_following=True), bodies, jobs)
    assert [(one.attempt[-1], one.data) for one in chunks] == [("1", b"one"), ("2", b"two")]
    assert "attempt=2" in opened[3]
    assert bodies == []


def test_a_job_that_ends_before_it_starts_has_no_output() -> None:
    chunks, _ = play(output(is_following=True), [NOT_STARTED, NOT_STARTED], [RUNNING, DONE])
    assert chunks == []
    with pytest.raises(ApiError):
        play(output(), [NOT_STARTED])


def test_following_leaves_a_node_that_stays_away_for_the_successor() -> None:
    moved = {"phase": "Running", "workers": [{"attempt": 2}]}
    bodies: list[list[bytes] | ClientError] = [
        [head(1), data(0, b"one")],
        AWAY,
        AWAY,
        [head(2), data(0, b"two"), end()],
        UNKNOWN,
    ]
    jobs = [RUNNING, RUNNING, moved, moved, DONE]
    chunks, opened = play(output(is_following=True), bodies, jobs)
    assert [one.data for one in chunks] == [b"one", b"two"]
    assert "attempt=2" in opened[3]
    with pytest.raises(NoLeader):
        play(output(is_following=True), [[head(1)], AWAY], [RUNNING, DONE])


def test_the_last_lines_are_asked_for_in_growing_windows_and_then_followed() -> None:
    long = b"x" * 70_000 + b"\n"
    bodies: list[list[bytes] | ClientError] = [
        [head(1, 9), data(9, long), end("so_far")],
        [head(1, 4), data(4, b"old\na\n" + long[:-1] + b"\n"), end("so_far")],
        [head(1), data(70_011, b"new\n"), end()],
        UNKNOWN,
    ]
    chunks, opened = play(output(tail_lines=2, is_following=True), bodies, [DONE])
    assert chunks[0].data == b"a\n" + long
    assert chunks[1].data == b"new\n"
    assert ["tail_bytes=65536" in opened[0], "tail_bytes=524288" in opened[1]] == [True, True]
    assert f"offset={chunks[1].offset}" in opened[2]


def test_events_go_on_at_the_last_complete_index() -> None:
    first = [b'data: {"index": 1}\n\nid: 1\n\nda', b'ta: {"index": 2}\n\n', b": beat\n\n"]
    second = [b'data: {"index": 2}\n\nid: 2\n\n', b"data: no json\n\n"]
    third = [b'id: 3\n\ndata: {"index": 4}\n\n']
    events, opened = play(
        event_script(objects=["42"], after=0), [first, second, third], enough=lambda g: len(g) == 4
    )
    assert [one["index"] for one in events] == [1, 2, 2, 4]
    assert opened[0] == "/v1/events?after=0&object=42"
    assert opened[1:] == ["/v1/events?after=1&object=42", "/v1/events?after=2&object=42"]


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_frames_or_one_error(raw: bytes, size: int) -> None:
    for reader in (FrameReader(), EventReader()):
        try:
            for at in range(0, len(raw), size):
                list(reader.feed(raw[at : at + size]))
        except DecodeError:
            pass


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=40))), st.integers(1, 64))
def test_frames_are_the_same_however_they_are_cut(
    frames: list[tuple[int, bytes]], size: int
) -> None:
    raw = b"".join(data(offset, payload) for offset, payload in frames)
    reader = FrameReader()
    found = [frame for at in range(0, len(raw), size) for frame in reader.feed(raw[at : at + size])]
    assert [(frame.offset, frame.payload) for frame in found] == frames


def test_a_frame_above_the_limit_is_refused_before_it_is_kept() -> None:
    with pytest.raises(DecodeError):
        list(FrameReader().feed(b"D" + bytes(8) + (PAYLOAD_BYTES_MAX + 1).to_bytes(4, "big")))
