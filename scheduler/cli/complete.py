"""Words offered by the shell's completion. Silent when no cluster answers in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from scheduler.client.client import Client

#: Seconds a completion may take: longer would feel like a hanging shell.
DEADLINE_S: Final = 1.5
CONNECT_TIMEOUT_S: Final = 0.5
#: Jobs offered.
JOBS_MAX: Final = 50


def complete_jobs(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Ids and names of the newest jobs."""
    return _completions(context, incomplete, _job_words)


def complete_nodes(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of nodes."""
    return _completions(context, incomplete, _node_words)


def _completions(
    context: click.Context, incomplete: str, words: Callable[[Client], list[str]]
) -> list[str]:
    from scheduler.cli.failure import Failure
    from scheduler.cli.find import find_cluster
    from scheduler.client.client import Client
    from scheduler.client.errors import ClientError

    given = getattr(context.find_root().obj, "cluster", None)
    try:
        hasty = dataclasses.replace(
            find_cluster(given).context,
            deadline_s=DEADLINE_S,
            connect_timeout_s=CONNECT_TIMEOUT_S,
        )
        with Client(hasty) as client:
            return [word for word in words(client) if word.startswith(incomplete)]
    except (Failure, ClientError):
        return []


def _job_words(client: Client) -> list[str]:
    jobs = client.jobs(limit=JOBS_MAX)["jobs"]
    names = dict.fromkeys(f"name:{job['name']}" for job in jobs if job.get("name"))
    return [*(str(job["id"]) for job in jobs), "@last", *names]


def _node_words(client: Client) -> list[str]:
    return [str(node["name"]) for node in client.nodes()["nodes"]]
