"""Controllers and agents die; no acknowledged job is lost and none runs twice."""

from __future__ import annotations

import signal
import threading
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.harness import FAST, CommandFailed, LocalCluster, start_ticks, wait_until


class Stream:
    """Submits jobs one after the other until stopped; each writes its token to a ledger."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.ledger = cluster.directory / "ledger"
        self.ledger.touch()
        self.acknowledged: dict[str, int] = {}
        self.refusals: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._submit_all, daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=120)

    def _submit_all(self) -> None:
        while not self._stop.is_set():
            name = uuid.uuid4().hex
            script = f"echo {name} $PERTINAX_ATTEMPT >> {self.ledger}"
            try:
                job = self.cluster.submit("--key", name, "--", "sh", "-c", script)
            except CommandFailed as failed:
                self.refusals.append(failed.code)
            else:
                self.acknowledged[name] = job

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.acknowledged) >= count, f"{count} jobs are acknowledged")

    def judge(self) -> None:
        """Every acknowledged job Succeeded, and ran once by the ledger of the jobs themselves."""
        for name, job in self.acknowledged.items():
            record = self.cluster.wait_final(job)
            assert (record["phase"], name, job) == ("Succeeded", name, job)
        runs = Counter(line.split()[0] for line in self.ledger.read_text().splitlines())
        assert {name: runs[name] for name in self.acknowledged} == dict.fromkeys(
            self.acknowledged, 1
        )
        assert set(self.refusals) <= {6}


def kill_leaders(cluster: LocalCluster, stream: Stream, *, rounds: int) -> None:
    for _ in range(rounds):
        leader = cluster.leader()
        cluster.kill(leader)
        stream.wait_for(len(stream.acknowledged) + 2)
        cluster.start(leader)


def verify_all(cluster: LocalCluster) -> None:
    for member in cluster.info()["controllers"]:
        cluster.run("verify", member["data_dir"])


@pytest.fixture(scope="module")
def steady() -> LocalCluster:  # type: ignore[misc]
    with LocalCluster() as cluster:
        yield cluster


def test_leaders_killed_under_a_stream_of_submits(steady: LocalCluster) -> None:
    steady.wait_healthy()
    with Stream(steady) as stream:
        stream.wait_for(3)
        kill_leaders(steady, stream, rounds=3)
    stream.judge()
    verify_all(steady)


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_twenty_leaders_killed_under_a_stream_of_submits(steady: LocalCluster) -> None:
    steady.wait_healthy()
    with Stream(steady) as stream:
        stream.wait_for(3)
        kill_leaders(steady, stream, rounds=20)
    stream.judge()
    verify_all(steady)


def test_a_running_job_survives_the_death_of_all_controllers(steady: LocalCluster) -> None:
    steady.wait_healthy()
    gate = steady.directory / "gate"
    ledger = steady.directory / "once"
    script = f"echo ran >> {ledger}; until [ -e {gate} ]; do sleep 0.1; done; echo survived"
    job = steady.submit("--", "sh", "-c", script)
    steady.wait_running(job)
    names = [member["name"] for member in steady.info()["controllers"]]
    last = steady.submit("--", "true")
    steady.kill(*names)
    for name in names:
        steady.start(name)
    steady.wait_healthy()
    gate.touch()
    assert steady.wait_final(job)["phase"] == "Succeeded"
    assert steady.wait_final(last)["phase"] == "Succeeded"
    assert steady.run("logs", job).stdout == "survived\n"
    assert ledger.read_text() == "ran\n"
    assert len(steady.attempts(job)) == 1


def test_down_and_up_again_keeps_what_is_final(steady: LocalCluster) -> None:
    steady.wait_healthy()
    done = steady.submit("--", "echo", "kept")
    steady.wait_final(done)
    running = steady.submit("--", "sleep", "900")
    pid = steady.wait_running(running)["pid"]
    steady.run("down", "--dir", steady.directory)
    assert start_ticks(pid) is None
    steady.up()
    assert steady.job(done)["phase"] == "Succeeded"
    assert steady.run("logs", done).stdout == "kept\n"
    again = wait_until(
        lambda: (last := steady.attempts(running)[-1])["phase"] == "Running" and last,
        "the drained job runs again",
    )
    assert again["number"] > 1
    assert steady.attempts(running)[0]["cause"] == "node_drain"
    steady.run("kill", running)
    assert steady.wait_final(running)["phase"] == "Killed"


def test_an_agent_killed_with_unknown_tells_the_true_end(tmp_path: Path) -> None:
    with LocalCluster(
        settings={**FAST, "on_disconnect": "unknown", "transient_timeout": "120s"}
    ) as c:
        gate = tmp_path / "gate"
        job = c.submit("--", "sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done; exit 42")
        attempt = c.wait_running(job)
        c.kill(attempt["node"])
        assert start_ticks(attempt["pid"]) is not None, "the job ended with its agent"
        gate.touch()
        wait_until(lambda: start_ticks(attempt["pid"]) is None, "the job ends without the agent")
        c.start(attempt["node"])
        record = c.wait_final(job)
        assert (record["phase"], record["exit_code"]) == ("Failed", 42)
        [ended] = c.attempts(job)
        assert (ended["cause"], ended["evidence"]) == ("exit_nonzero", "replayed")


def test_a_closed_connection_is_final_at_once_and_silence_is_not(tmp_path: Path) -> None:
    with LocalCluster(settings={**FAST, "transient_timeout": "120s"}) as c:
        silent = c.submit("--", "sleep", "900")
        attempt = c.wait_running(silent)
        c.signal(attempt["node"], signal.SIGSTOP)
        unknown = wait_until(lambda: c.attempts(silent)[0]["unknown"], "the silent one is unknown")
        assert unknown["cause"] == "heartbeat_lost"
        c.kill(c.leader())
        after = wait_until(lambda: c.attempts(silent)[0]["unknown"], "unknown after the failover")
        assert after["transient_since"] == unknown["transient_since"]
        c.signal(attempt["node"], signal.SIGCONT)
        wait_until(lambda: c.attempts(silent)[0]["unknown"] is None, "claimed by the rejoin")
        assert c.job(silent)["phase"] == "Running"

        closed = c.submit("--node-retries", "0", "--", "sleep", "900")
        gone = c.wait_running(closed)
        c.kill(gone["node"])
        record = c.wait_final(closed)
        assert (record["phase"], record["cause"]) == ("Failed", "node_disconnected")
        assert c.attempts(closed)[0]["evidence"] == "declared"
        assert start_ticks(gone["pid"]) is not None, "it ended with its agent"
        c.start(gone["node"])
        wait_until(lambda: start_ticks(gone["pid"]) is None, "the returned agent ends it")
        assert c.job(closed)["phase"] == "Failed"
