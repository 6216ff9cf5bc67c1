"""`pertinax down`: end a local cluster, and return when no process of it is left.

Agents first and in order: each ends its jobs, reports their ends, and says goodbye to controllers
that are still there to commit it. What does not end in its time is killed. With `keeps_jobs` the
controllers go first, so that nobody is left to conclude anything from the agents' ends; keepers and
jobs stay, and the next `up` takes them back.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

from scheduler.local import members
from scheduler.local.errors import LocalError
from scheduler.local.files import (
    Document,
    Layout,
    change_cluster,
    locked,
    members_of,
    read_cluster,
    read_plan,
)
from scheduler.local.processes import (
    Process,
    end_all,
    process_of,
    wait_gone,
    with_command,
    with_environment,
)

#: Seconds for an agent to end its jobs, have that committed and leave. A job's own grace is 10 s.
LEAVE_PATIENCE_S: Final = 23.0
#: Seconds for a keeper to end after its agent did.
KEEPER_PATIENCE_S: Final = 5.0
#: Seconds for a controller to step down and close its log.
CONTROLLER_PATIENCE_S: Final = 8.0
LOCK_WAIT_S: Final = 110.0
#: Rounds of ending stray jobs: each may have started others while it was looked for.
STRAY_ROUNDS_MAX: Final = 20

KEEPER_MODULE: Final = "agent.keeper"


def down(root: Path, *, keeps_jobs: bool) -> None:
    """End the cluster in `root`. Fine when nothing runs. Raises LocalError."""
    from scheduler.local.up import no_cluster

    layout = Layout(root.absolute())
    document = read_cluster(layout)
    if not document and read_plan(layout) is None:
        raise no_cluster(layout)
    with locked(layout.root / "operation.lock", wait_s=LOCK_WAIT_S):
        document = read_cluster(layout)
        end_all(with_command("scheduler.local.watch", str(layout.root)), patience_s=2)
        if keeps_jobs:
            left = _end_controllers(layout, document)
            left += _kill(_members(layout, document, "agent"))
        else:
            left = end_all(_members(layout, document, "agent"), patience_s=LEAVE_PATIENCE_S)
            left += _end_keepers_and_jobs(layout, document)
            left += _end_controllers(layout, document)
        if left:
            raise LocalError(
                "not every process ended",
                why=f"still there: {', '.join(str(one.pid) for one in left)}",
                hint="they ignore SIGKILL, which only the kernel explains: see their state in ps",
                kind="failed",
                code="processes_left",
            )
        change_cluster(layout, lambda found: _note_ended(found, keeps_jobs=keeps_jobs))


def _end_controllers(layout: Layout, document: Document) -> list[Process]:
    return end_all(_members(layout, document, "controller"), patience_s=CONTROLLER_PATIENCE_S)


def _end_keepers_and_jobs(layout: Layout, document: Document) -> list[Process]:
    """Usually there are none any more: an agent that left has ended them."""
    keepers = list(with_command(KEEPER_MODULE, str(layout.root)))
    left = end_all(keepers, patience_s=KEEPER_PATIENCE_S)
    cluster_id = document.get("cluster_id")
    if not cluster_id:
        plan = read_plan(layout)
        cluster_id = plan.cluster_id if plan else None
    if not cluster_id:
        return left
    strays: list[Process] = []
    for _ in range(STRAY_ROUNDS_MAX):
        strays = list(with_environment(f"PERTINAX_CLUSTER_ID={cluster_id}"))
        if not strays:
            break
        _kill(strays)
    return left + strays


def _members(layout: Layout, document: Document, kind: str) -> list[Process]:
    """Those of `cluster.json`, and any other that works in this directory."""
    found = {
        process
        for one, member in members_of(document)
        if one == kind and (process := members.running_process(member)) is not None
    }
    found.update(with_command(members.MODULES[kind], str(layout.root)))
    return sorted(found, key=lambda process: process.pid)


def _kill(processes: list[Process]) -> list[Process]:
    for one in processes:
        one.signal(signal.SIGKILL)
    return wait_gone(processes, timeout_s=10)


def _note_ended(document: Document, *, keeps_jobs: bool) -> None:
    for _, member in members_of(document):
        member["pid"] = member["start_ticks"] = None
        if "keeper_pid" in member and not (keeps_jobs and process_of(member["keeper_pid"])):
            member["keeper_pid"] = None
    if document:
        document["leader"] = document["watcher_pid"] = None
