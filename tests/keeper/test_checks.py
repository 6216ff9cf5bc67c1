"""Success checks, readiness and progress (specification 1.5 and 3.6)."""

from __future__ import annotations

import pytest

from tests.keeper.harness import Client, KeeperProcess

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("line", "checks", "detail"),
    [
        ("echo x > out", {"output_nonempty": ["out"]}, None),
        ("touch out", {"output_nonempty": ["out"]}, "output_nonempty: out is empty"),
        ("true", {"output_nonempty": ["out"]}, "output_nonempty: out: No such file"),
        ("echo 'loss 0.1' > log", {"output_matches": {"log": r"loss [0-9.]+$"}}, None),
        ("echo none > log", {"output_matches": {"log": "loss"}}, "log does not match 'loss'"),
        ("touch ok", {"check": "test -e ok"}, None),
        ("true", {"check": "echo no such thing; exit 4"}, "check: exit 4: no such thing"),
        ("true", {"check": ["no-such-command"]}, "check: ENOENT"),
        ("true", {"check": "kill -9 $$"}, "check: SIGKILL"),
        ("true", {"check": "sleep 1000", "check_timeout_ms": 100}, "no answer within 100 ms"),
    ],
)
def test_exit_zero_counts_with_passed_checks_only(
    client: Client, token: str, line: str, checks: dict[str, object], detail: str | None
) -> None:
    finish = client.run(token, line, is_shell=True, **checks)
    assert finish["exit_code"] == 0
    assert finish["is_tree_gone"]
    assert finish["cause"] == ("exit_zero" if detail is None else "output_check")
    assert (detail or "") in finish["detail"]


def test_failed_exit_is_not_checked(client: Client, token: str) -> None:
    finish = client.run(token, "sh", "-c", "exit 5", check="touch /no/such/place")
    assert (finish["cause"], finish["exit_code"], finish["detail"]) == ("exit_nonzero", 5, "")


def test_strays_of_a_check_are_ended(shared: KeeperProcess, client: Client, token: str) -> None:
    finish = client.run(token, "true", check="setsid sleep 1000 & exit 0")
    assert finish["cause"] == "exit_zero"
    assert shared.members(token) == []


def test_kill_during_a_check_is_no_success(client: Client, token: str) -> None:
    client.start(token, "true", check="sleep 1000")
    client.event("started", token)
    client.until(lambda: client.entry(token)["state"] == "running")
    client.kill(token)
    finish = client.finish(token)
    assert finish["cause"] in {"killed"}
    assert finish["is_tree_gone"]


def test_ready_and_progress_are_told(client: Client, token: str) -> None:
    line = (
        "echo '1 10 one' > $PERTINAX_PROGRESS; touch up;"
        "sleep 1.5; echo '2 10 two' >> $PERTINAX_PROGRESS; exec sleep 1000"
    )
    client.shell(token, line, ready_check="test -e up")
    client.event("ready", token)
    client.until(lambda: any(e.get("text") == "2 10 two" for e in client.events))
    entry = client.entry(token)
    assert (entry["is_ready"], entry["progress"]) == (True, "2 10 two")
    client.kill(token)
    client.finish(token)


def test_memory_beyond_the_order_by_sampling_is_overuse(client: Client, token: str) -> None:
    code = "import time; x = bytearray(200_000_000); time.sleep(1000)"
    finish = client.run(token, "python3", "-c", code, memory_bytes=60_000_000)
    assert finish["cause"] == "resource_overuse"
    assert finish["peak_rss_bytes"] > 200_000_000
    assert "memory:" in finish["detail"]
