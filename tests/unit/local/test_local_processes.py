"""Processes: found by what they are, never mistaken for a later one, ended for sure."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.local.errors import LocalError
from scheduler.local.ports import PORT_MAX, PORT_MIN, choose_ports, is_free, is_listening
from scheduler.local.processes import (
    Process,
    end_all,
    log_tail,
    process_of,
    start_ticks,
    wait_for,
    wait_gone,
    with_command,
    with_environment,
)

Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a small process; what is left is killed at the end."""
    children: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **environment: str) -> Process:
        child = subprocess.Popen(command, env=dict(os.environ, **environment))
        children.append(child)
        found = process_of(child.pid)
        assert found is not None
        return found

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_a_process_is_its_pid_and_its_start(start: Start) -> None:
    process = start("sleep", "60")
    assert process.is_alive
    imposter = Process(process.pid, process.start_ticks + 1)
    assert not imposter.is_alive
    imposter.signal(signal.SIGKILL)
    assert process.is_alive


def test_nothing_is_no_process() -> None:
    for pid in (None, 0, -1, "1", 2**22 + 1):
        assert process_of(pid) is None
    Process(2**22 + 1, 1).signal(signal.SIGKILL)  # gone is no error


def test_a_zombie_counts_as_gone(start: Start) -> None:
    process = start("sleep", "60")
    process.signal(signal.SIGKILL)  # and nobody has taken its exit status yet
    assert wait_for(lambda: start_ticks(process.pid) is None, timeout_s=30)
    assert not process.is_alive


def test_what_ignores_sigterm_is_killed(start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    stubborn = start("sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 60; done")
    stopped = start("sleep", "60")
    assert wait_for(ready.exists, timeout_s=30)
    stopped.signal(signal.SIGSTOP)
    assert end_all([stubborn, stopped], patience_s=0.2) == []
    assert not stubborn.is_alive
    assert not stopped.is_alive


def test_waiting_tells_who_is_left(start: Start) -> None:
    process = start("sleep", "60")
    assert wait_gone([process], timeout_s=0) == [process]


def test_processes_are_found_by_their_environment(start: Start) -> None:
    marked = start("sleep", "60", PERTINAX_CLUSTER_ID="cluster-of-this-test")
    start("sleep", "60", PERTINAX_CLUSTER_ID="cluster-of-this-test-2")
    # Until the child has become `sleep` it still has the environment of this process.
    assert wait_for(
        lambda: list(with_environment("PERTINAX_CLUSTER_ID=cluster-of-this-test")) == [marked],
        timeout_s=30,
    )


def test_processes_are_found_by_their_module_and_directory(start: Start, tmp_path: Path) -> None:
    script = "import time; time.sleep(60)"
    (tmp_path / "daemon.py").write_text(script)
    ours = str(tmp_path / "x")
    command = (sys.executable, "-m", "daemon", "--config")
    ours_process = start(*command, f"{ours}/a.toml", PYTHONPATH=str(tmp_path))
    start(*command, f"{ours}2/a.toml", PYTHONPATH=str(tmp_path))
    found = wait_for(lambda: list(with_command("daemon", ours)) == [ours_process], timeout_s=30)
    assert found
    assert list(with_command("daem", ours)) == []


def test_a_log_is_told_by_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert log_tail(log).splitlines() == [f"line {number}" for number in range(992, 1000)]


def test_ports_are_free_and_below_those_of_outgoing_connections() -> None:
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = choose_ports(9, base=None, rng=random.Random(7))
    assert ports == list(range(ports[0], ports[0] + 9))
    assert ports[0] >= PORT_MIN
    assert ports[-1] < max(ephemeral, PORT_MIN + 18)


def test_ports_that_are_taken_are_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        assert is_listening(os.getpid(), port)
        assert not is_listening(os.getppid(), port)
        with pytest.raises(LocalError) as caught:
            choose_ports(1, base=port)
    assert not is_listening(os.getpid(), port)
    assert str(port) in caught.value.why
    assert caught.value.kind == "refused"


def test_a_base_beyond_all_ports_is_a_usage_error() -> None:
    with pytest.raises(LocalError) as caught:
        choose_ports(9, base=PORT_MAX)
    assert caught.value.kind == "usage"
