"""The environment is exactly what the order and the mode say."""

from __future__ import annotations

import pytest

from agent.keeper.environment import (
    STANDARD_PATH,
    Account,
    Place,
    build_environment,
    resolve_account,
    to_bytes,
)
from agent.keeper.errors import LaunchFailure
from agent.keeper.order import parse_work

ACCOUNT = Account(uid=7, gid=7, groups=(7,), name="ana", home="/home/ana", is_other=False)
PLACE = Place(token="a.1.0", cluster_id="c", node="n", workdir=b"/w", progress=b"/w/p")
INHERITED = {b"SECRET": b"1", b"PATH": b"/opt", b"PERTINAX_ATTEMPT": b"other", b"HOME": b"/root"}


def built(account: Account = ACCOUNT, **work: object) -> dict[bytes, bytes]:
    order = parse_work({"attempt": "42/main/0#1", "argv": ["true"]} | work)
    return build_environment(order, PLACE, account, INHERITED)


def test_none_takes_nothing_from_the_agent() -> None:
    env = built()
    assert b"SECRET" not in env
    assert (env[b"PATH"], env[b"HOME"], env[b"USER"]) == (STANDARD_PATH, b"/home/ana", b"ana")


def test_agent_takes_all_but_our_own() -> None:
    env = built(env_mode="agent")
    assert (env[b"SECRET"], env[b"PATH"], env[b"HOME"]) == (b"1", b"/opt", b"/root")
    assert env[b"PERTINAX_ATTEMPT"] == b"a.1.0"


def test_agent_s_home_is_not_another_user_s() -> None:
    other = Account(uid=8, gid=8, groups=(), name="bo", home="/home/bo", is_other=True)
    assert built(other, env_mode="agent")[b"HOME"] == b"/home/bo"


def test_list_takes_the_named_ones() -> None:
    env = built(env_mode=["SECRET", "ABSENT"])
    assert env[b"SECRET"] == b"1"
    assert b"ABSENT" not in env


def test_order_overrides_the_base_but_never_the_marker() -> None:
    env = built(env={"PATH": "/mine", "PERTINAX_ATTEMPT": "fake", "PERTINAX_PEERS": "p"})
    assert (env[b"PATH"], env[b"PERTINAX_ATTEMPT"]) == (b"/mine", b"a.1.0")
    assert env[b"PERTINAX_PEERS"] == b"p"


def test_marker_comes_first() -> None:
    assert next(iter(built())) == b"PERTINAX_ATTEMPT"


def test_devices_are_named_when_assigned() -> None:
    assert built(gpu_indices=[1, 3])[b"CUDA_VISIBLE_DEVICES"] == b"1,3"
    assert b"CUDA_VISIBLE_DEVICES" not in built()


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0y"}])
def test_impossible_variable_is_the_order_s_fault(env: dict[str, str]) -> None:
    with pytest.raises(LaunchFailure) as caught:
        built(env=env)
    assert caught.value.cause == "launch_error"


def test_bytes_stay_exact() -> None:
    assert to_bytes("é\udcff") == b"\xc3\xa9\xff"
    assert to_bytes(b"\xff") == b"\xff"


def test_unknown_user_is_the_order_s_fault() -> None:
    with pytest.raises(LaunchFailure) as caught:
        resolve_account("nobody-of-that-name")
    assert caught.value.cause == "launch_error"
