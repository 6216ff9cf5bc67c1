"""Facts between the keeper's maps and the protocol's structs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.errors import BadFacts
from agent.facts import TEXT_CHARS_MAX, clip, facts_of, finish_from, start_from
from scheduler.protocol.messages import StartFacts, StreamFacts, Work

from .bench import FINISH, START


def test_a_finish_with_everything() -> None:
    finish = finish_from({**FINISH, "stdout": {"size_bytes": 4, "sha256": "ab"}, "cpu_ms": 12})
    assert finish.start == StartFacts(**START)
    assert finish.stdout == StreamFacts(size_bytes=4, sha256="ab")
    assert finish.cpu_ms == 12
    assert finish.evidence == "observed"


def test_fields_of_a_newer_keeper_are_dropped_and_missing_ones_get_their_defaults() -> None:
    finish = finish_from({"cause": "exit_zero", "ended_at_ms": 1, "from_the_future": 1})
    assert finish.is_tree_gone
    assert finish.start is None


@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        {},
        {"cause": "exit_zero"},
        {**FINISH, "cause": 7},
        {**FINISH, "exit_code": "0"},
        {**FINISH, "start": {"pid": 1}},
        {**FINISH, "start": "x"},
        {**FINISH, "stdout": {"size_bytes": "many"}},
        {**FINISH, "is_tree_gone": "yes"},
        {**FINISH, "ended_at_ms": 1.5},
    ],
)
def test_what_is_no_finish_raises_the_one_error(facts: object) -> None:
    with pytest.raises(BadFacts):
        finish_from(facts)


def test_a_start_without_a_pid_is_a_start() -> None:
    assert start_from({"started_at_ms": 5, "pid": None}).pid is None


def test_details_are_clipped_and_can_be_encoded() -> None:
    finish = finish_from({**FINISH, "detail": "\udcff" + "x" * 5_000})
    assert len(finish.detail) == TEXT_CHARS_MAX
    assert finish.detail.startswith("?x")
    msgspec.msgpack.encode(finish)


def test_clip_leaves_short_texts_alone() -> None:
    assert clip("37 100 Épöche") == "37 100 Épöche"


def test_work_goes_to_the_keeper_field_by_field() -> None:
    facts: dict[str, Any] = facts_of(Work(attempt="1/main/0#1", argv=("true", "x"), umask=0o22))
    assert facts["attempt"] == "1/main/0#1"
    assert list(facts["argv"]) == ["true", "x"]
    assert facts["umask"] == 0o22
    assert set(facts) == set(Work.__struct_fields__)
