"""P3: how many `/bin/true` jobs a second go from submit to final, as one bulk and one by one?

Floor: `posix_spawn` of the same program on the same machine, in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from benchmarks.bench_cluster import command, running_cluster
from scheduler.client import Client

TARGETS = {"bulk": 300.0, "single": 200.0}


def spawn_floor(count: int) -> float:
    """Processes a second by posix_spawn and wait, one after the other."""
    began = time.perf_counter()
    for _ in range(count):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    return count / (time.perf_counter() - began)


def wait_all(client: Client, ids: list[int]) -> None:
    last = max(ids)
    while True:
        page = client.jobs(state=("Pending", "Running"), limit=1)["jobs"]
        if not page and client.job(last)["phase"] == "Succeeded":
            return
        time.sleep(0.02)


def measure(client: Client, count: int, *, is_bulk: bool) -> float:
    began = time.perf_counter()
    if is_bulk:
        answer = client.submit_many([command("/bin/true")] * count)
        ids = [job["id"] for job in answer["jobs"]]
    else:
        ids = [client.submit(command("/bin/true"))["job"]["id"] for _ in range(count)]
    wait_all(client, ids)
    return count / (time.perf_counter() - began)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="jobs_end_to_end", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--count", type=int, default=1000)
    args = parser.parse_args(argv)
    figures: dict[str, Any] = {"count": args.count, "floor_spawns_per_s": spawn_floor(args.count)}
    with running_cluster(agent_settings={"capacity.cpu": "64"}) as (_, client):
        measure(client, 50, is_bulk=True)  # warms caches and connections
        figures["bulk_jobs_per_s"] = measure(client, args.count, is_bulk=True)
        figures["single_jobs_per_s"] = measure(client, args.count, is_bulk=False)
    figures["targets"] = TARGETS
    print(json.dumps(figures, indent=None if args.json else 2))
    return 0
