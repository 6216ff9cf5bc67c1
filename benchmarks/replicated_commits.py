"""P1: how many durable quorum commits a second, by proposals outstanding, and how long is one?

Three processes on this machine, mutual TLS, 300-byte entries, the client in the leader's process.
Floor: one write and fdatasync after the other on the same disk, growing and preallocated file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import uvloop

from replication.config import ReplicationConfig, TlsFiles
from replication.errors import Overloaded, ProposalError
from replication.interface import Applied, SnapshotView
from replication.node import RaftLog, found_member
from tests.unit.replication.certificates import Authority
from tests.unit.replication.members import free_ports

ENTRY_BYTES = 300
#: Outstanding proposals to target commits a second.
TARGETS = {1: 500.0, 100: 10_000.0, 1000: 15_000.0}
P50_TARGET_MS = 2.0
RESULT_NAME = "result.json"
WAIT_S = 120.0


class Counter:
    """The cheapest state machine: the figures are the log's own."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, index: int, term: int, command: bytes) -> object:
        self.count += 1
        return self.count

    def snapshot_view(self) -> SnapshotView:
        raise NotImplementedError

    def restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> None:
        raise NotImplementedError


def sync_floor(directory: Path, seconds: float, *, is_preallocated: bool) -> float:
    """Syncs a second of 4 KiB writes, one after the other."""
    path = directory / "floor"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        if is_preallocated:
            for offset in range(0, 64 << 20, 1 << 20):
                os.pwrite(descriptor, bytes(1 << 20), offset)
            os.fsync(descriptor)
        block, offset, count = os.urandom(4096), 0, 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds and offset < 60 << 20:
            os.pwrite(descriptor, block, offset)
            os.fdatasync(descriptor)
            offset += len(block)
            count += 1
        return count / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()


async def measure(log: RaftLog, outstanding: int, seconds: float) -> dict[str, float]:
    """Keep so many proposals outstanding for a while."""
    payload = os.urandom(ENTRY_BYTES)
    latencies: list[float] = []
    failures = 0
    loop = asyncio.get_running_loop()
    end = time.perf_counter() + seconds
    finished = loop.create_future()
    running = outstanding

    def propose() -> None:
        began = time.perf_counter()

        def done(outcome: Applied | Exception) -> None:
            nonlocal running, failures
            now = time.perf_counter()
            if isinstance(outcome, Applied):
                latencies.append(now - began)
            else:
                failures += 1
            if now < end and not isinstance(outcome, (ProposalError, Overloaded)):
                propose()
                return
            running -= 1
            if running == 0:
                finished.set_result(None)

        log.propose_nowait(payload, done)

    began = time.perf_counter()
    for _ in range(outstanding):
        propose()
    await finished
    elapsed = time.perf_counter() - began
    latencies.sort()
    return {
        "commits_per_s": round(len(latencies) / elapsed, 1),
        "p50_ms": round(statistics.median(latencies) * 1000, 3),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1000, 3),
        "failures": failures,
    }


async def run_member(directory: Path, name: str, seconds: float) -> None:
    """Be one member; whoever leads first measures."""
    layout = json.loads((directory / "layout.json").read_text())
    members = {member: ("127.0.0.1", port) for member, port in layout["ports"].items()}
    tls = None
    if layout["tls"]:
        ca = directory / "ca"
        tls = TlsFiles(ca=ca / "ca.pem", cert=ca / f"{name}.pem", key=ca / f"{name}.key")
    config = ReplicationConfig(
        name=name,
        cluster_id="benchmark",
        incarnation=1,
        members=members,
        listen=members[name],
        data_dir=directory / name,
        tls=tls,
        snapshot_every_entries=1 << 60,
        snapshot_every_bytes=1 << 60,
    )
    log = RaftLog(config, Counter())
    await log.start()
    while log.leadership.leader is None:
        await asyncio.sleep(0.02)
    if log.is_leader:
        await asyncio.sleep(2.0)
        await measure(log, 100, 1.0)  # warm up
        results = {}
        for outstanding in TARGETS:
            results[str(outstanding)] = await measure(log, outstanding, seconds)
        temporary = directory / "result.tmp"
        temporary.write_text(json.dumps(results))
        temporary.rename(directory / RESULT_NAME)
    await asyncio.to_thread(sys.stdin.read)  # until the parent is done
    await log.close()


def run_cluster(directory: Path, seconds: float, *, is_tls: bool) -> dict[str, dict[str, float]]:
    """Start three members, wait for the leader's figures, stop them."""
    names = "abc"
    authority = Authority(directory / "ca")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    (directory / "layout.json").write_text(json.dumps({"ports": ports, "tls": is_tls}))
    for name in names:
        authority.issue(name)
        members = {member: ("127.0.0.1", port) for member, port in ports.items()}
        found_member(
            ReplicationConfig(
                name=name,
                cluster_id="benchmark",
                incarnation=1,
                members=members,
                listen=members[name],
                data_dir=directory / name,
                tls=None,
            )
        )
    command = [sys.executable, "-m", "benchmarks.replicated_commits", "--member"]
    processes = [
        subprocess.Popen([*command, name, str(directory), str(seconds)], stdin=subprocess.PIPE)
        for name in names
    ]
    try:
        deadline = time.monotonic() + WAIT_S
        while not (directory / RESULT_NAME).exists():
            if time.monotonic() > deadline or any(p.poll() is not None for p in processes):
                raise RuntimeError("the members did not deliver figures")
            time.sleep(0.1)
        return dict(json.loads((directory / RESULT_NAME).read_text()))
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main(argv: list[str]) -> int:
    if argv[:1] == ["--member"]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_member(Path(argv[2]), argv[1], float(argv[3])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each figure")
    parser.add_argument("--no-tls", action="store_true")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="pertinax-bench-") as name:
        directory = Path(name)
        floor = {
            "growing_syncs_per_s": round(sync_floor(directory, 2.0, is_preallocated=False), 1),
            "preallocated_syncs_per_s": round(sync_floor(directory, 2.0, is_preallocated=True), 1),
        }
        results = run_cluster(directory, args.seconds, is_tls=not args.no_tls)
    is_met = all(
        results[str(count)]["commits_per_s"] >= target for count, target in TARGETS.items()
    ) and (results["1"]["p50_ms"] <= P50_TARGET_MS)
    figures = {
        "question": "replicated_commits",
        "tls": not args.no_tls,
        "floor": floor,
        "outstanding": results,
        "targets": {str(count): target for count, target in TARGETS.items()},
        "p50_target_ms": P50_TARGET_MS,
        "is_met": is_met,
    }
    print(json.dumps(figures, indent=None if args.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
