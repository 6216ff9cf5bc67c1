"""P4: how long from the submit call to the start of the process, on an idle cluster?

Each job is a shell that runs `date +%s%N`: its own clock says when it ran, which is later than its
start by the start-up of both programs. Floor: the same command started directly, measured alike.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench_cluster import command, percentile, running_cluster

TARGETS = {"p50_ms": 10.0, "p99_ms": 50.0}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="submit_to_start", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--count", type=int, default=200)
    args = parser.parse_args(argv)
    floor, took = [], []
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "started"
        for _ in range(50):
            began = time.time_ns()
            subprocess.run(["sh", "-c", f"date +%s%N > {path}"], check=True)
            floor.append((int(path.read_text()) - began) / 1e6)
    with running_cluster() as (cluster, client):
        for number in range(args.count + 10):
            path = cluster.directory / f"started-{number}"
            began = time.time_ns()
            job = client.submit(command("sh", "-c", f"date +%s%N > {path}"))["job"]["id"]
            client.wait([job])
            if number >= 10:  # the first ones warm caches and connections
                took.append((int(path.read_text()) - began) / 1e6)
    figures: dict[str, Any] = {
        "count": args.count,
        "floor_p50_ms": percentile(floor, 0.5),
        "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99),
        "targets": TARGETS,
    }
    print(json.dumps(figures, indent=None if args.json else 2))
    return 0
