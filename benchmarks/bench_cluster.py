"""A local cluster for the questions that need one, and the client that asks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scheduler.client import Client, Context
from tests.cluster.harness import LocalCluster


def context_of(directory: Path) -> Context:
    """How to reach the cluster that lives in `directory`."""
    info = json.loads((directory / "cluster.json").read_text())
    return Context(
        urls=tuple(member["http"] for member in info["controllers"]),
        token=(directory / "admin.token").read_text().strip(),
        ca_file=str(next((directory / "tls").glob("ca*.pem"))),
        user="bench",
    )


@contextmanager
def running_cluster(**options: Any) -> Iterator[tuple[LocalCluster, Client]]:
    """Three controllers, two agents, and a client; ended with the block."""
    with LocalCluster(**options) as cluster, Client(context_of(cluster.directory)) as client:
        yield cluster, client


def command(*words: str) -> dict[str, Any]:
    """The document of a job of one command."""
    return {"kind": "job", "tasks": {"main": {"command": list(words)}}}


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
