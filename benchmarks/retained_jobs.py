"""P8: how long does a commit take while many final jobs are kept, snapshot and sent?

One member or three (processes of their own, plain TCP) whose state holds `--size` final jobs. The
leader commits small entries one after the other: at rest, while it writes a snapshot, and, of
three, while a follower that lost its disk fetches and installs one. A ticker shows the longest
time that each member's loop stood still.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.final_jobs import found_with, write_state
from replication.config import ReplicationConfig
from replication.errors import ProposalError
from replication.interface import Leadership
from replication.node import RaftLog, found_member
from scheduler.controller.metrics import Metrics
from scheduler.controller.state_machine import ClusterMachine
from scheduler.controller.watch import EventHub
from scheduler.core import queries
from scheduler.core.commands import Audit, encode_entry
from scheduler.core.views import event_view
from tests.unit.replication.members import free_ports

COMMIT_TARGET_MS: Final = 100.0
PAGE_TARGET_MS: Final = 100.0
RESTART_TARGET_S: Final = 30.0
REST_S: Final = 4.0
WAIT_S: Final = 600.0
TICK_S: Final = 0.002
LOST_NAME: Final = "lost"
RESULT_NAME: Final = "result.json"


class Ticker:
    """The longest time that the loop stood still since it was last asked."""

    def __init__(self) -> None:
        self._worst_s = 0.0

    async def run(self) -> None:
        """For ever."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self._worst_s = max(self._worst_s, time.perf_counter() - began - TICK_S)

    def take_ms(self) -> float:
        worst, self._worst_s = self._worst_s, 0.0
        return round(worst * 1000, 1)


async def commit_until(
    log: RaftLog, machine: ClusterMachine, ticker: Ticker, is_over: Callable[[], bool]
) -> dict[str, Any]:
    """Commit one entry after the other until `is_over`."""
    times_ms: list[float] = []
    failures = 0
    ticker.take_ms()
    start = time.perf_counter()
    while not is_over():
        entry = Audit(
            log_time_ms=machine.clock_ms + 1, wall_ms=1, actor="system:benchmark", what="x"
        )
        began = time.perf_counter()
        try:
            await log.propose(encode_entry(entry))
        except ProposalError:
            failures += 1
            await asyncio.sleep(0.01)
        times_ms.append((time.perf_counter() - began) * 1000)
    times_ms.sort()
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "commits": len(times_ms),
        "failures": failures,
        "p50_ms": round(times_ms[len(times_ms) // 2], 2),
        "p99_ms": round(times_ms[int(len(times_ms) * 0.99)], 2),
        "max_ms": round(times_ms[-1], 1),
        "loop_stall_ms": ticker.take_ms(),
    }


def member_config(directory: Path, name: str) -> ReplicationConfig:
    ports = json.loads((directory / "layout.json").read_text())
    members = {member: ("127.0.0.1", port) for member, port in ports.items()}
    return ReplicationConfig(
        name=name,
        cluster_id="benchmark",
        incarnation=1,
        members=members,
        listen=members[name],
        data_dir=directory / name,
        tls=None,
    )


def write_whole(path: Path, document: object) -> None:
    """Replace a small file at once."""
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(document))
    aside.rename(path)


async def run_member(directory: Path, name: str) -> None:
    """Be one member; whoever leads first measures."""
    config = member_config(directory, name)
    machine = ClusterMachine(EventHub(render=event_view), Metrics())
    log = RaftLog(config, machine)
    terms: set[int] = set()

    def note(leadership: Leadership) -> None:
        terms.add(leadership.term)

    began, cpu_began = time.perf_counter(), time.process_time()
    await log.start()
    restart_s, restart_cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    gc.collect()
    gc.freeze()
    ticker = Ticker()
    ticking = asyncio.create_task(ticker.run())
    while log.leadership.leader is None:
        await asyncio.sleep(0.02)
    log.on_leadership(note)
    if log.is_leader and not (directory / LOST_NAME).exists():
        results = await measure(directory, log, machine, ticker)
        write_whole(
            directory / RESULT_NAME,
            {
                "restart_s": round(restart_s, 2),
                "restart_cpu_s": round(restart_cpu_s, 2),
                **results,
                "term_changes": len(terms),
            },
        )
        await asyncio.to_thread(sys.stdin.read)  # until the parent is done
    else:
        await asyncio.to_thread(sys.stdin.read)
        (directory / f"{name}.json").write_text(json.dumps({"loop_stall_ms": ticker.take_ms()}))
    ticking.cancel()
    await log.close()


async def measure(
    directory: Path, log: RaftLog, machine: ClusterMachine, ticker: Ticker
) -> dict[str, Any]:
    """The leader's figures."""
    results: dict[str, Any] = {}
    await log.read_barrier(timeout_s=WAIT_S)
    began = time.perf_counter()
    page, _ = queries.jobs_page(machine.state, limit=100)
    results["page_ms"] = round((time.perf_counter() - began) * 1000, 2)
    assert len(page) == 100
    end = time.perf_counter() + REST_S
    results["rest"] = await commit_until(log, machine, ticker, lambda: time.perf_counter() >= end)
    taking = asyncio.create_task(log.take_snapshot())
    results["snapshot"] = await commit_until(log, machine, ticker, taking.done)
    if len(log.members()) > 1:
        lost = next(name for name in log.members() if name != log.name)
        write_whole(directory / LOST_NAME, lost)
        target = log.applied_index

        def is_back() -> bool:
            status = next(one for one in log.status().members if one.name == lost)
            return status.is_healthy and status.applied_index > target

        results["install"] = await commit_until(log, machine, ticker, is_back)
    return results


def start_member(directory: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.retained_jobs", "--member", name, str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def stop_member(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_cluster(directory: Path, count: int, size: int) -> dict[str, Any]:
    """Start the members, take one's disk away when asked to, collect the figures."""
    names = "abc"[:count]
    directory.mkdir()
    ports = dict(zip(names, free_ports(count), strict=True))
    write_whole(directory / "layout.json", ports)
    info = write_state(directory / "state", size)
    for name in names:
        found_with(member_config(directory, name), info)
    processes = {name: start_member(directory, name) for name in names}
    try:
        lost = ""
        deadline = time.monotonic() + WAIT_S
        while not (directory / RESULT_NAME).exists():
            if time.monotonic() > deadline or any(p.poll() is not None for p in processes.values()):
                raise RuntimeError("the members did not deliver figures")
            if not lost and (directory / LOST_NAME).exists():
                lost = json.loads((directory / LOST_NAME).read_text())
                processes[lost].kill()
                processes[lost].wait()
                shutil.rmtree(directory / lost)
                found_member(member_config(directory, lost), is_replacement=True)
                processes[lost] = start_member(directory, lost)
            time.sleep(0.05)
        results = dict(json.loads((directory / RESULT_NAME).read_text()))
    finally:
        for process in processes.values():
            stop_member(process)
    if lost:
        results["follower"] = json.loads((directory / f"{lost}.json").read_text())
    results["snapshot_mb"] = round(info.size_bytes / 1e6, 1)
    return results


def is_met(results: dict[str, Any]) -> bool:
    phases = [results[phase] for phase in ("snapshot", "install") if phase in results]
    return (
        all(one["max_ms"] <= COMMIT_TARGET_MS and not one["failures"] for one in phases)
        and results["page_ms"] <= PAGE_TARGET_MS
        and results["restart_s"] <= RESTART_TARGET_S
        and not results["term_changes"]
    )


def main(argv: list[str]) -> int:
    if argv[:1] == ["--member"]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_member(Path(argv[2]), argv[1]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--size", type=int, default=100_000, help="final jobs kept")
    parser.add_argument("--members", type=int, nargs="*", default=[1, 3], choices=(1, 3))
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="pertinax-bench-") as name:
        results = {
            str(count): run_cluster(Path(name) / str(count), count, args.size)
            for count in args.members
        }
    figures = {
        "question": "retained_jobs",
        "size": args.size,
        "members": results,
        "targets": {
            "commit_max_ms": COMMIT_TARGET_MS,
            "page_ms": PAGE_TARGET_MS,
            "restart_s": RESTART_TARGET_S,
        },
        "is_met": all(is_met(one) for one in results.values()),
    }
    print(json.dumps(figures, indent=None if args.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
