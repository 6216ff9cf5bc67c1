"""Nothing runs without a lease: not started, frozen, ended, thawed (specification 3.5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.keeper.clock import boottime_ms
from agent.keeper.output import stream_size
from tests.keeper.harness import Client, KeeperProcess, eventually, state_of

pytestmark = pytest.mark.cluster

#: Above the leases that tests give: with it all are over at once. No clock is waited for.
OVER_MS = 3_600_000


def end_leases(client: Client) -> None:
    """Let every lease end now, by a margin longer than they are."""
    assert client.ask("settings", lease_margin_ms=OVER_MS)["ok"]


def renew(client: Client, token: str) -> None:
    client.ask("settings", lease_margin_ms=1_000)
    assert client.renew(token)["ok"]


@pytest.fixture
def running(shared: KeeperProcess) -> Client:
    assert shared.client is not None
    shared.client.ask("settings", lease_margin_ms=1_000)
    return shared.client


def started_pid(client: Client, token: str) -> int:
    return int(client.event("started", token)["start"]["pid"])


def test_nothing_starts_within_the_margin(running: Client, token: str) -> None:
    answer = running.start(token, "true", lease_ms=900)
    assert (answer["ok"], answer["code"]) == (False, "no_lease")
    assert running.ask("status", token=token)["state"] == "unknown"


def test_lease_end_freezes_and_renewal_thaws(
    shared: KeeperProcess, running: Client, token: str
) -> None:
    line = "while :; do echo x; sleep 0.02; done & wait"
    running.shell(token, line)
    pid = started_pid(running, token)
    end_leases(running)
    running.event("frozen", token)
    assert {state_of(member) for member in shared.members(token)} == {"T"}
    entry = running.entry(token)
    assert (entry["state"], entry["frozen"]) == ("running", True)
    renew(running, token)
    running.event("thawed", token)
    directory = shared.keeper_directory / "attempts" / token
    size = stream_size(directory, "stdout")
    eventually(lambda: stream_size(directory, "stdout") > size)
    assert state_of(pid) not in {"", "T"}
    running.kill(token)
    finish = running.finish(token)
    assert finish["cause"] == "killed"
    assert finish["frozen_ms"] > 0


def test_renewal_never_shortens(running: Client, token: str) -> None:
    running.start(token, "sleep", "1000", lease_ms=600_000)
    running.event("started", token)
    running.renew(token, lease_ms=1)
    running.kill(token)
    assert running.finish(token)["frozen_ms"] == 0


def test_lease_end_kills_where_asked(running: Client, token: str) -> None:
    running.start(token, "sleep", "1000", on_lease_end="kill")
    running.event("started", token)
    end_leases(running)
    finish = running.finish(token)
    assert (finish["cause"], finish["was_signalled"]) == ("lease_expired", True)


def test_lease_end_lets_run_where_asked(running: Client, token: str) -> None:
    other = f"{token}.other"
    running.start(token, "sleep", "1000", on_lease_end="run")
    running.start(other, "sleep", "1000")
    running.event("started", token)
    running.event("started", other)
    end_leases(running)
    running.event("frozen", other)
    assert running.entry(token)["frozen"] is False
    assert state_of(started_pid(running, token)) != "T"
    for one in (token, other):
        running.ask("fence", token=one, why="over")
        running.finish(one)


@pytest.mark.ci
def test_timeout_stands_while_frozen(running: Client, token: str) -> None:
    running.start(token, "sleep", "1000", timeout_ms=4_000)
    running.event("started", token)
    end_leases(running)
    running.event("frozen", token)
    began_ms = boottime_ms()
    eventually(lambda: boottime_ms() > began_ms + 5_000)
    assert running.entry(token)["state"] == "running"
    renew(running, token)
    finish = running.finish(token)
    assert finish["cause"] == "timeout"
    assert finish["frozen_ms"] >= 5_000


def test_fence_kills_a_frozen_tree_without_thaw(
    shared: KeeperProcess, running: Client, token: str
) -> None:
    marks = shared.directory / "marks"
    line = f"trap 'touch {marks}' TERM CONT; echo up; sleep 1000 & wait"
    running.shell(token, line)
    directory = shared.keeper_directory / "attempts" / token
    eventually(lambda: stream_size(directory, "stdout"))
    end_leases(running)
    running.event("frozen", token)
    running.ask("fence", token=token, why="superseded")
    finish = running.finish(token)
    assert (finish["cause"], finish["cleanup"], finish["signal"]) == ("fenced", "fenced", "SIGKILL")
    assert not marks.exists()


def test_killed_while_frozen_is_asked_after_the_thaw(
    shared: KeeperProcess, running: Client, token: str
) -> None:
    line = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    running.shell(token, line)
    directory = shared.keeper_directory / "attempts" / token
    eventually(lambda: stream_size(directory, "stdout"))
    end_leases(running)
    running.event("frozen", token)
    running.kill(token, grace_ms=60_000)
    assert state_of(started_pid(running, token)) == "T"
    renew(running, token)
    finish = running.finish(token)
    assert (finish["cause"], finish["exit_code"]) == ("killed", 0)
    assert stream_size(directory, "stdout") == 9


def test_killed_while_frozen_gets_kill_after_the_grace(running: Client, token: str) -> None:
    running.start(token, "sleep", "1000")
    running.event("started", token)
    end_leases(running)
    running.event("frozen", token)
    running.kill(token, grace_ms=50)
    assert running.finish(token)["signal"] == "SIGKILL"


def test_end_already_begun_becomes_kill_at_lease_end(running: Client, token: str) -> None:
    line = "trap '' TERM; echo up; while :; do sleep 0.02; done"
    running.shell(token, line)
    pid = started_pid(running, token)
    directory = Path(f"/proc/{pid}/cwd").resolve().parents[1] / "attempts" / token
    eventually(lambda: stream_size(directory, "stdout"))
    running.kill(token, grace_ms=600_000)
    end_leases(running)
    finish = running.finish(token)
    assert (finish["cause"], finish["signal"], finish["frozen_ms"]) == ("killed", "SIGKILL", 0)
