"""P5: how long from SIGKILL of the leader to the next acknowledged submit, under load?

Floor: the election timeout's lower bound is no part of it, since a closed connection starts the
election at once; what remains is detection, one vote, one barrier and one commit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from typing import Any

from benchmarks.bench_cluster import command, context_of, percentile, running_cluster
from scheduler.client import Client, ClientError

TARGETS = {"median_ms": 500.0, "max_ms": 1500.0}


class Load(threading.Thread):
    """Submits without pause and notes when each was acknowledged."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.acknowledged: list[float] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self.client.submit(command("/bin/true"))
            except ClientError:
                continue
            self.acknowledged.append(time.monotonic())

    def wait_after(self, instant: float) -> float:
        """Seconds from `instant` to the first acknowledgement of a submit after it."""
        while True:
            later = [at for at in self.acknowledged[-200:] if at > instant]
            if later:
                return later[0] - instant
            time.sleep(0.002)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="leader_kill", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args(argv)
    took = []
    with running_cluster() as (cluster, _):
        load = Load(Client(context_of(cluster.directory)))
        load.start()
        for _ in range(args.rounds):
            cluster.wait_healthy()
            leader = cluster.leader()
            os.kill(cluster.member(leader)["pid"], signal.SIGKILL)
            took.append(1000 * load.wait_after(time.monotonic()))
            cluster.kill(leader)  # returns once it is gone
            cluster.start(leader)
        load.stopping.set()
        load.join(timeout=30)
    figures: dict[str, Any] = {
        "rounds": args.rounds,
        "median_ms": percentile(took, 0.5),
        "max_ms": max(took),
        "targets": TARGETS,
    }
    print(json.dumps(figures, indent=None if args.json else 2))
    return 0
