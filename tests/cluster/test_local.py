"""`up`, `up --only` and `down` with real processes: a small cluster is enough for these."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.harness import PATIENCE_S, LocalCluster, pids_with, start_ticks, wait_until


@contextmanager
def small_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(controllers=1, agents=1) as cluster:
        yield cluster


def nothing_is_left(cluster: LocalCluster) -> bool:
    return pids_with(str(cluster.directory)) == []


def test_members_are_restarted_alone_and_down_leaves_nothing() -> None:
    with small_cluster() as cluster:
        before = cluster.info()
        assert before["leader"] == "c1"
        again = cluster.run("up", "--detach", "--dir", cluster.directory)
        assert "runs already" in again.stderr
        cluster.start("c1")
        cluster.start("a1")
        after = cluster.info()
        for name in ("c1", "a1"):
            assert cluster.member(name)["pid"] is not None
        assert after["controllers"] == before["controllers"], "a live member was touched"
        assert after["agents"] == before["agents"], "a live member was touched"

        cluster.kill("a1")
        cluster.start("a1")
        agent = cluster.member("a1")
        assert agent["pid"] != before["agents"][0]["pid"]
        assert start_ticks(agent["keeper_pid"]) is not None
        unknown = cluster.run("up", "--only", "c9", "--dir", cluster.directory, codes=(3,))
        assert "c1, a1" in unknown.stderr

        job = cluster.submit("--", "true")
        assert cluster.wait_final(job)["phase"] == "Succeeded"
        cluster.run("down", "--dir", cluster.directory)
        wait_until(lambda: nothing_is_left(cluster), "no process is left")
        assert cluster.info()["leader"] is None
        stopped = cluster.run("jobs", codes=(6,))
        assert "does not run" in stopped.stderr

        cluster.up()
        assert cluster.job(job)["phase"] == "Succeeded"
        ports = [one["http"] for one in cluster.info()["controllers"]]
        assert ports == [one["http"] for one in before["controllers"]]


@pytest.mark.ci
def test_a_member_that_ends_instead_of_serving_is_exit_4() -> None:
    with small_cluster() as cluster:
        cluster.kill("c1")
        port = int(cluster.member("c1")["http"].rpartition(":")[2])
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # The killed one's threads may hold it a moment longer than it seems to live.
            wait_until(lambda: taken.bind(("127.0.0.1", port)) is None, "the port is free")
            taken.listen()
            refused = cluster.run("up", "--only", "c1", "--dir", cluster.directory, codes=(4,))
            assert "c1 ended" in refused.stderr
        cluster.start("c1")
        wait_until(lambda: cluster.status()["leader"] == "c1", "c1 leads again")


def test_jobs_that_are_kept_go_on_and_are_taken_back() -> None:
    with small_cluster() as cluster:
        flag = cluster.directory / "go"
        job = cluster.submit(
            "--", "sh", "-c", f"while [ ! -e {flag} ]; do sleep 0.2; done; echo kept; exit 5"
        )
        pid = cluster.wait_running(job)["pid"]
        began = start_ticks(pid)
        assert began is not None
        cluster.run("down", "--keep-jobs", "--dir", cluster.directory)
        assert start_ticks(pid) == began
        keeper = cluster.member("a1")["keeper_pid"]
        assert start_ticks(keeper) is not None
        cluster.up()
        assert cluster.member("a1")["keeper_pid"] == keeper
        flag.touch()
        final = cluster.wait_final(job)
        assert (final["cause"], final["exit_code"]) == ("exit_nonzero", 5)
        assert len(cluster.attempts(job)) == 1
        assert cluster.run("logs", job).stdout == "kept\n"


@pytest.mark.ci
def test_in_the_foreground_ctrl_c_stops_it() -> None:
    with small_cluster() as cluster:
        cluster.run("down", "--dir", cluster.directory)
        said = cluster.directory / "said"
        with said.open("wb") as file:
            running = subprocess.Popen(
                cluster.command("up", "--dir", cluster.directory),
                env=cluster.environment(),
                stdout=subprocess.DEVNULL,
                stderr=file,
            )
        try:
            # Said once all is ready; an interrupt before that is one of the start.
            wait_until(lambda: "Ctrl-C" in said.read_text(), "`up` says that it is ready")
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 0
        finally:
            running.kill()
            running.wait()
        wait_until(lambda: nothing_is_left(cluster), "no process is left")
