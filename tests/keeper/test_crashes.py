"""Bad weather: the keeper or the agent dies, the host reboots, records break (3.3, 3.8)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.keeper.clock import boottime_ms
from agent.keeper.ledger import pack, unpack
from agent.keeper.output import read_stream, stream_size
from agent.keeper.processes import read_process
from tests.keeper.harness import ROOT, KeeperProcess, eventually, state_of
from wal import Identity, KeyedStore

pytestmark = pytest.mark.cluster


def rewrite(keeper: KeeperProcess, changes: dict[str, dict[str, object] | None]) -> None:
    """Change records of a keeper that does not run; None removes one."""
    store = KeyedStore.open(keeper.keeper_directory / "ledger", identity=Identity("node", "keeper"))
    for key, values in changes.items():
        if values is None:
            store.delete(key.encode())
        else:
            record = unpack(store.get(key.encode()) or b"\x80")
            store.put(key.encode(), pack(record | values))
    store.sync()
    store.close()


def test_attempts_outlive_the_agent_and_are_replayed(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.shell("short", "sleep 0.3; exit 7")
    client.start("long", "sleep", "1000")
    client.event("started", "long")
    client.event("started", "short")
    pid = client.entry("long")["start"]["pid"]
    client.close()
    watcher = keeper.connect()
    eventually(lambda: watcher.entry("short")["state"] == "exited")
    watcher.close()
    client = keeper.attach()
    finish = client.entry("short")["finish"]
    assert (finish["exit_code"], finish["evidence"]) == (7, "replayed")
    assert client.entry("long")["start"]["pid"] == pid


def test_killed_keeper_s_successor_adopts_what_lives(keeper: KeeperProcess) -> None:
    client = keeper.start()
    line = "echo a; while [ ! -e go ]; do sleep 0.02; done; echo b"
    client.shell("job", line)
    client.run("done", "sh", "-c", "exit 3")
    start = client.event("started", "job")["start"]
    eventually(lambda: stream_size(keeper.keeper_directory / "attempts" / "job", "stdout"))
    keeper.kill()
    assert state_of(start["pid"]) not in {"", "Z"}
    client = keeper.start()
    entry = client.entry("job")
    assert (entry["state"], entry["start"]) == ("running", start)
    assert client.start("job", "true")["code"] == "duplicate"
    assert client.entry("done")["finish"]["evidence"] == "replayed"
    (keeper.keeper_directory / "work" / "job" / "go").touch()
    finish = client.finish("job")
    assert (finish["cause"], finish["evidence"]) == ("status_lost", "seen_gone")
    assert finish["exit_code"] is None
    # The pipe lived on in the process itself: nothing was lost and nobody died of SIGPIPE.
    directory = keeper.keeper_directory / "attempts" / "job"
    assert read_stream(directory, "stdout", 0, 100) == (0, b"a\nb\n")
    assert finish["stdout"]["size_bytes"] == 4


def test_what_ended_without_a_keeper_is_never_called_a_success(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.shell("job", "while [ ! -e go ]; do sleep 0.02; done")
    client.event("started", "job")
    keeper.kill()
    (keeper.keeper_directory / "work" / "job" / "go").touch()
    eventually(lambda: not keeper.members("job"))
    client = keeper.start()
    eventually(lambda: client.entry("job")["state"] == "exited")
    finish = client.entry("job")["finish"]
    assert (finish["cause"], finish["evidence"]) == ("status_lost", "seen_gone")


def test_adopted_attempt_is_killed_by_order_with_its_strays(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.shell("job", "setsid sleep 1000 & sleep 1000 & wait")
    eventually(lambda: len(keeper.members("job")) == 3)
    keeper.kill()
    client = keeper.start()
    client.kill("job")
    finish = client.finish("job")
    assert (finish["cause"], finish["evidence"]) == ("killed", "seen_gone")
    assert keeper.members("job") == []


def test_order_that_was_durable_is_obeyed_by_the_successor(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.shell("job", "trap '' TERM; echo up; while :; do sleep 0.02; done")
    eventually(lambda: stream_size(keeper.keeper_directory / "attempts" / "job", "stdout"))
    client.kill("job", grace_ms=500)
    keeper.kill()
    client = keeper.start()
    eventually(lambda: client.entry("job")["state"] == "exited")
    assert client.entry("job")["finish"]["cause"] == "killed"


def test_status_seen_before_the_crash_is_kept(keeper: KeeperProcess) -> None:
    client = keeper.start()
    # The stray ignores the soft signal, so that the attempt is not over when the keeper dies.
    line = (
        "(trap '' TERM; touch set; exec setsid sleep 1000) & "
        "while [ ! -e set ]; do sleep 0.02; done; exit 5"
    )
    client.shell("job", line, grace_ms=600_000)
    client.event("started", "job")
    eventually(lambda: len(keeper.members("job")) == 1)
    client.ask("list")  # the keeper reaps before it answers
    client.ask("forget", tokens=[])  # and this answer is durable, with all before it
    keeper.kill()
    client = keeper.start()
    client.kill("job", grace_ms=0)
    finish = client.finish("job")
    assert (finish["exit_code"], finish["evidence"]) == (5, "replayed")
    assert finish["cause"] == "exit_nonzero"
    assert finish["has_exited_before_kill"]


def test_lease_file_is_obeyed_before_anybody_speaks(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.start("job", "sleep", "1000", lease_ms=600_000)
    pid = client.event("started", "job")["start"]["pid"]
    client.ask("settings", lease_margin_ms=598_000)
    keeper.kill()
    client = keeper.start()
    eventually(lambda: state_of(pid) == "T")
    assert client.entry("job")["frozen"]
    keeper.kill()
    client = keeper.start()
    assert client.entry("job")["frozen"]
    client.ask("settings", lease_margin_ms=1_000)
    client.renew("job")
    client.event("thawed", "job")
    eventually(lambda: state_of(pid) == "S")


def test_renewed_lease_survives_the_keeper(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.start("renewed", "sleep", "1000", lease_ms=600_000)
    client.start("other", "sleep", "1000", lease_ms=600_000)
    client.event("started", "renewed")
    client.event("started", "other")
    client.renew("renewed", lease_ms=3_600_000)
    keeper.kill()
    client = keeper.start()
    client.ask("settings", lease_margin_ms=1_200_000)
    client.event("frozen", "other")
    assert not client.entry("renewed")["frozen"]


def test_intent_without_start_is_found_by_its_marker(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.start("job", "sleep", "1000")
    pid = client.event("started", "job")["start"]["pid"]
    keeper.kill()
    rewrite(keeper, {"job/started": None})
    client = keeper.start()
    entry = client.entry("job")
    assert (entry["state"], entry["start"]["pid"]) == ("running", pid)


def test_intent_whose_process_is_gone_may_have_run(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.run("job", "true")
    keeper.kill()
    rewrite(keeper, {"job/started": None, "job/exited": None})
    client = keeper.start()
    eventually(lambda: client.entry("job")["state"] == "exited")
    finish = client.entry("job")["finish"]
    assert (finish["cause"], finish["evidence"]) == ("status_lost", "seen_gone")
    assert finish["start"]["pid"] is None


def test_after_a_reboot_nothing_is_signalled(keeper: KeeperProcess) -> None:
    client = keeper.start()
    innocent = subprocess.Popen(["sleep", "1000"])
    try:
        client.start("job", "sleep", "1000")
        start = client.event("started", "job")["start"]
        keeper.kill()
        keeper.end()
        other = dict(start) | {"pid": innocent.pid, "boot_id": "another-boot"}
        rewrite(
            keeper, {"job/intent": {"boot_id": "another-boot"}, "job/started": {"start": other}}
        )
        client = keeper.start()
        eventually(lambda: client.entry("job")["state"] == "exited")
        finish = client.entry("job")["finish"]
        assert (finish["cause"], finish["evidence"]) == ("status_lost", "proven_dead")
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_reused_pid_is_never_signalled(keeper: KeeperProcess) -> None:
    client = keeper.start()
    innocent = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        older = read_process(innocent.pid)
        assert older is not None
        # The kernel's start times have a resolution of 10 ms.
        eventually(lambda: boottime_ms() // 10 > older.start_ticks + 1)
        client.start("job", "sleep", "1000")
        start = client.event("started", "job")["start"]
        keeper.kill()
        os.kill(start["pid"], signal.SIGKILL)
        eventually(lambda: not keeper.members("job"))
        rewrite(keeper, {"job/started": {"start": start | {"pid": innocent.pid}}})
        client = keeper.start()
        client.kill("job", grace_ms=0)
        eventually(lambda: client.entry("job")["state"] == "exited")
        assert client.entry("job")["finish"]["cause"] in {"status_lost", "killed"}
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_damaged_record_costs_its_attempt_only(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.start("bad", "sleep", "1000")
    client.start("good", "sleep", "1000")
    client.event("started", "bad")
    client.event("started", "good")
    keeper.kill()
    store = KeyedStore.open(keeper.keeper_directory / "ledger", identity=Identity("node", "keeper"))
    store.put(b"bad/intent", b"\xc1 no msgpack")
    store.sync()
    store.close()
    client = keeper.start()
    eventually(lambda: client.entry("bad")["state"] == "exited")
    finish = client.entry("bad")["finish"]
    assert finish["cause"] == "status_lost"
    assert finish["is_tree_gone"]
    assert keeper.members("bad") == []
    assert client.entry("good")["state"] == "running"


def test_second_keeper_is_refused(keeper: KeeperProcess) -> None:
    client = keeper.start()
    command = [sys.executable, "-m", "agent.keeper", "--dir", str(keeper.keeper_directory)]
    command += ["--socket", str(keeper.directory / "other.sock")]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert second.returncode == 73
    assert b"another keeper" in second.stderr
    assert client.run("job", "true")["cause"] == "exit_zero"


def test_signals_of_a_terminal_do_not_end_it(keeper: KeeperProcess) -> None:
    client = keeper.start()
    assert keeper.process is not None
    for number in (signal.SIGHUP, signal.SIGINT):
        keeper.process.send_signal(number)
    assert client.run("job", "true")["cause"] == "exit_zero"


def test_newer_agent_replaces_the_older(keeper: KeeperProcess) -> None:
    older = keeper.start()
    keeper.client = None
    newer = keeper.attach()
    eventually(older.is_closed)
    older.close()
    assert newer.run("job", "true")["cause"] == "exit_zero"


def test_bytes_that_are_no_message_close_the_connection_only(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client._socket.sendall(b"\xff" * 64)
    eventually(client.is_closed)
    client = keeper.attach()
    assert client.run("job", "true")["cause"] == "exit_zero"


def test_stop_ends_all_and_answers_with_the_finishes(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.start("one", "sleep", "1000")
    client.shell("two", "trap '' TERM; sleep 1000", grace_ms=100)
    client.event("started", "two")
    answer = client.ask("stop", end_jobs=True, why="leave")
    assert {token: f["cause"] for token, f in answer["finishes"].items()} == {
        "one": "node_drain",
        "two": "node_drain",
    }
    assert keeper.process is not None
    assert keeper.process.wait(timeout=60) == 0
    assert not Path(keeper.socket_path).exists()
