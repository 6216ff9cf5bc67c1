"""Orders are checked before anything is done for them."""

from __future__ import annotations

import pytest

from agent.keeper.errors import Refused
from agent.keeper.order import parse_token, parse_work, signal_number

ORDER = {"attempt": "42/main/7#3", "argv": ["true"]}


def test_names_come_from_the_attempt() -> None:
    work = parse_work(ORDER)
    assert work.worker == "42/main/7"
    assert work.names == ("42", "main", "7")


def test_defaults_are_the_protocol_s() -> None:
    work = parse_work(ORDER)
    assert (work.grace_ms, work.stop_signal, work.on_lease_end) == (10_000, "TERM", "freeze")
    assert work.log_limit_bytes == 64 * 1024 * 1024


def test_keeper_and_protocol_know_the_same_fields() -> None:
    from dataclasses import fields

    from agent.keeper.order import Work
    from scheduler.protocol.messages import Work as Message

    assert {field.name for field in fields(Work)} == set(Message.__struct_fields__)


def test_unknown_fields_of_a_newer_agent_are_ignored() -> None:
    assert parse_work(ORDER | {"colour": "blue"}) == parse_work(ORDER)


def test_lists_of_the_wire_become_tuples() -> None:
    order = ORDER | {"check": ["a", "b"], "env_mode": ["PATH"], "gpu_indices": [1]}
    work = parse_work(order)
    assert (work.check, work.env_mode, work.gpu_indices) == (("a", "b"), ("PATH",), (1,))


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": "42/main"},
        {"attempt": 42},
        {"argv": []},
        {"argv": "true"},
        {"argv": [1]},
        {"env": ["A"]},
        {"env": {"A": 1}},
        {"files": {"a": None}},
        {"on_lease_end": "dance"},
        {"grace_ms": -1},
        {"timeout_ms": "soon"},
        {"stop_signal": "HELLO"},
        {"output_matches": ["x"]},
    ],
)
def test_wrong_field_is_a_refusal(change: dict[str, object]) -> None:
    with pytest.raises(Refused) as caught:
        parse_work(ORDER | change)
    assert caught.value.code == "bad_order"


@pytest.mark.parametrize("token", ["", ".", "..", "../a", "a/b", "a\0", "a" * 129, None, 3])
def test_token_that_is_no_plain_name_is_refused(token: object) -> None:
    with pytest.raises(Refused):
        parse_token(token)


@pytest.mark.parametrize(("name", "number"), [("TERM", 15), ("sigusr1", 10), ("9", 9)])
def test_signals_are_known_by_name_and_number(name: str, number: int) -> None:
    assert signal_number(name) == number
