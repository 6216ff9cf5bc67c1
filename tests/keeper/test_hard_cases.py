"""What cannot be killed, no descriptors, whole hosts full of attempts (specification 3.6, 3.8)."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.keeper.output import read_stream
from tests.keeper.harness import KeeperProcess, eventually, state_of

pytestmark = pytest.mark.cluster

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def ice() -> Iterator[Path]:
    """A frozen cgroup: what is in it does not act on KILL, as in an uninterruptible wait."""
    path = FREEZER / f"pertinax-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError:
        pytest.skip("no writable freezer of version 1")
    (path / "freezer.state").write_text("FROZEN")
    yield path
    (path / "freezer.state").write_text("THAWED")

    def remove() -> bool:
        with contextlib.suppress(OSError):
            path.rmdir()
        return not path.exists()

    assert eventually(remove)


def test_what_cannot_be_killed_is_told_and_later_gone(tmp_path: Path, ice: Path) -> None:
    keeper = KeeperProcess(tmp_path, "--limits", "sampled", "--stuck-ms", "100")
    try:
        client = keeper.start()
        client.start("job", "sleep", "1000")
        pid = client.event("started", "job")["start"]["pid"]
        (ice / "cgroup.procs").write_text(str(pid))
        eventually(lambda: state_of(pid) == "D")
        client.kill("job", grace_ms=0)
        finish = client.finish("job")
        assert (finish["cause"], finish["cleanup"]) == ("killed", "stuck")
        assert (finish["is_tree_gone"], finish["evidence"]) == (False, "declared")
        assert f"pid {pid}" in finish["detail"]
        assert client.entry("job")["state"] == "exited"
        keeper.kill()
        client = keeper.start()
        assert not client.entry("job")["finish"]["is_tree_gone"]
        (ice / "freezer.state").write_text("THAWED")
        client.event("tree_gone", "job")
        assert client.entry("job")["finish"]["is_tree_gone"]
        assert state_of(pid) in {"", "Z"}
    finally:
        (ice / "freezer.state").write_text("THAWED")
        keeper.end()


def test_no_descriptor_left_is_the_node_s_fault_and_heals(keeper: KeeperProcess) -> None:
    client = keeper.start()
    assert keeper.process is not None
    pid = keeper.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    client.start("live", "sleep", "1000")
    client.event("started", "live")
    used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (2 * used, before[1]))
    finish = client.run("job", "true")
    assert finish["cause"] == "launch_failed"
    assert "EMFILE" in finish["detail"]
    client.kill("live")
    assert client.finish("live")["cause"] == "killed"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert client.run("again", "true")["cause"] == "exit_zero"


def test_terminated_keeper_leaves_the_attempts_alone(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.start("job", "sleep", "1000")
    pid = client.event("started", "job")["start"]["pid"]
    assert keeper.process is not None
    keeper.process.terminate()
    assert keeper.process.wait(60) == 0
    assert state_of(pid) == "S"
    client = keeper.start()
    assert client.entry("job")["state"] == "running"


def test_chatty_attempt_is_read_on_after_a_crash(keeper: KeeperProcess) -> None:
    client = keeper.start()
    line = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done; echo end"
    client.shell("job", f"while [ ! -e go ]; do sleep 0.02; done; {line}")
    client.event("started", "job")
    (keeper.keeper_directory / "work" / "job" / "go").touch()
    keeper.kill()
    client = keeper.start()
    eventually(lambda: client.entry("job")["state"] == "exited")
    directory = keeper.keeper_directory / "attempts" / "job"
    expected = b"".join(b"%d\n" % number for number in range(1, 3_001)) + b"end\n"
    data = read_stream(directory, "stdout", 0, 1 << 20)[1]
    # What the pipe held when its last process ended without a keeper is lost, never garbled.
    assert data == expected[: len(data)]


@pytest.mark.ci
def test_all_attempts_of_a_full_node_are_frozen_thawed_and_killed(keeper: KeeperProcess) -> None:
    client = keeper.start()
    tokens = [f"t{number}" for number in range(300)]
    for token in tokens:
        client.shell(token, "sleep 1000 & wait", lease_ms=60_000)
    for token in tokens:
        client.event("started", token)
    client.ask("settings", lease_margin_ms=59_990)
    for token in tokens:
        client.event("frozen", token)
    assert {state_of(pid) for pid in keeper.members()} == {"T"}
    client.ask("settings", lease_margin_ms=1_000)
    for token in tokens:
        client.renew(token)
    for token in tokens:
        client.event("thawed", token)
    eventually(lambda: "T" not in {state_of(pid) for pid in keeper.members()})
    for token in tokens:
        client.send("kill", token=token, by="system:drain", why="", cause="drain", grace_ms=10_000)
    assert {client.finish(token)["signal"] for token in tokens} == {"SIGTERM"}
    assert keeper.members() == []


@pytest.mark.ci
def test_fork_bomb_is_ended(keeper: KeeperProcess) -> None:
    client = keeper.start()
    bomb = "f() { [ $1 -gt 8 ] || { f $(($1+1)) & f $(($1+1)) & }; sleep 1000; }; f 0"
    client.shell("bomb", bomb)
    eventually(lambda: len(keeper.members("bomb")) > 100)
    client.kill("bomb", grace_ms=0)
    finish = client.finish("bomb")
    assert (finish["cause"], finish["is_tree_gone"]) == ("killed", True)
    assert keeper.members("bomb") == []


@pytest.mark.ci
def test_thousands_of_short_ones_leave_memory_and_descriptors_flat(keeper: KeeperProcess) -> None:
    client = keeper.start()
    assert keeper.process is not None
    pid = keeper.process.pid

    def burst(name: str) -> tuple[int, int]:
        tokens = [f"{name}.{number}" for number in range(800)]
        for token in tokens:
            order = {"attempt": "42/main/0#1", "argv": ["true"]}
            client.send(
                "start", token=token, session=1, lease_until_boottime_ms=1 << 60, work=order
            )
        client.until(lambda: sum(e["is"] == "finished" for e in client.events) >= len(tokens))
        assert {e["finish"]["cause"] for e in client.events if e["is"] == "finished"} == {
            "exit_zero"
        }
        client.events.clear()
        client.ask("settings", log_retention_ms=0)
        client.ask("forget", tokens=tokens)
        eventually(lambda: not client.ask("list")["attempts"])
        text = Path(f"/proc/{pid}/status").read_text()
        rss = int(text.partition("VmRSS:")[2].split()[0])
        return rss, len(list(Path(f"/proc/{pid}/fd").iterdir()))

    burst("warm")
    rss, descriptors = burst("first")
    for name in ("second", "third"):
        rss_now, descriptors_now = burst(name)
        assert descriptors_now <= descriptors + 2
        assert rss_now < rss * 1.2
