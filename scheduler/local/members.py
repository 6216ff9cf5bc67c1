"""Starting one member of a local cluster, and waiting until it serves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from scheduler.local.configs import agent_toml, controller_toml, http_url, write_private
from scheduler.local.errors import LocalError
from scheduler.local.files import Document, Layout, Plan, change_cluster, members_of, read_status
from scheduler.local.ports import is_listening
from scheduler.local.processes import (
    Process,
    boot_id,
    log_tail,
    process_of,
    spawn,
    start_ticks,
    wait_for,
    with_command,
)
from scheduler.local.watch import is_running, refresh

#: Seconds until a started member must accept connections: a controller first reads its whole log.
SERVING_DEADLINE_S: Final = 50.0
#: Certificates are issued anew at a start after half their life (specification 7.3), in seconds.
CERTIFICATE_HALF_LIFE_S: Final = 45 * 86_400
MODULES: Final = {"controller": "scheduler.main", "agent": "agent"}


def entries(layout: Layout, plan: Plan) -> Document:
    """A `cluster.json` of this plan in which nothing runs yet."""
    return {
        "cluster_id": plan.cluster_id,
        "dir": str(layout.root),
        "ca_file": str(layout.ca_file),
        "token_file": str(layout.token_file),
        "controllers": [
            {
                "name": one.name,
                "pid": None,
                "start_ticks": None,
                "http": http_url(one.http_port),
                "agents_port": one.agents_port,
                "raft_port": one.raft_port,
                "data_dir": str(layout.data_dir("controller", one.name)),
                "log_file": str(layout.log_file("controller", one.name)),
            }
            for one in plan.controllers
        ],
        "agents": [
            {
                "name": name,
                "pid": None,
                "start_ticks": None,
                "keeper_pid": None,
                "data_dir": str(layout.data_dir("agent", name)),
                "log_file": str(layout.log_file("agent", name)),
            }
            for name in plan.agents
        ],
        "leader": None,
        "watcher_pid": None,
        "boot_id": boot_id(),
    }


def find(document: Document, name: str) -> tuple[str, Document] | None:
    """(kind, member) by name."""
    return next((one for one in members_of(document) if one[1]["name"] == name), None)


def write_config(layout: Layout, plan: Plan, kind: str, name: str) -> Path:
    """Write the member's configuration and certificate; returns the configuration's path."""
    from scheduler.controller.certs import issue

    certificate = layout.tls / f"{kind}-{name}.pem"
    try:
        is_old = time.time() - certificate.stat().st_mtime > CERTIFICATE_HALF_LIFE_S
    except FileNotFoundError:
        is_old = True
    if is_old:
        issue(layout.tls, f"{kind}:{name}", into=layout.tls)
    text = (controller_toml if kind == "controller" else agent_toml)(layout, plan, name)
    path = layout.config_file(kind, name)
    write_private(path, text)
    layout.data_dir(kind, name).mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def start(layout: Layout, plan: Plan, kind: str, name: str) -> Process:
    """Start a member that does not run, and note its process in `cluster.json`."""
    if is_lost(layout, plan, kind, name):
        raise lost(layout, name)
    config = write_config(layout, plan, kind, name)
    _refuse_strays(layout, kind, name, config)
    log = layout.log_file(kind, name)
    process = spawn(MODULES[kind], ["--config", str(config)], log=log)

    def note(document: Document) -> None:
        found = find(document, name)
        assert found is not None, name
        found[1]["pid"] = process.pid
        found[1]["start_ticks"] = process.start_ticks

    change_cluster(layout, note)
    return process


def wait_serving(layout: Layout, plan: Plan, kind: str, name: str, process: Process) -> None:
    """Return when a started member accepts connections (an agent: when its keeper answers).

    Raises LocalError when it ended instead, or did not within SERVING_DEADLINE_S.
    """
    is_serving = _controller_serves if kind == "controller" else _agent_serves

    def is_decided() -> bool:
        return not process.is_alive or is_serving(layout, plan, name, process)

    in_time = wait_for(is_decided, timeout_s=SERVING_DEADLINE_S)
    if not process.is_alive:
        raise ended(layout, kind, name)
    if not in_time:
        raise LocalError(
            f"{kind} {name} does not serve",
            why=f"it runs (pid {process.pid}) and did not answer for {SERVING_DEADLINE_S:g} s",
            hint=f"read {layout.log_file(kind, name)}",
            kind="unavailable",
            code="not_serving",
        )
    change_cluster(layout, refresh)


def ended(layout: Layout, kind: str, name: str) -> LocalError:
    """What to say of a member that ended right after its start."""
    log = layout.log_file(kind, name)
    # The frames that close a printed group of exceptions say nothing.
    said = [line for line in log_tail(log).splitlines() if any(map(str.isalnum, line))]
    return LocalError(
        f"{kind} {name} ended instead of serving",
        why=said[-1].lstrip("| ") if said else f"it said nothing in {log}",
        hint=f"read {log}; then start it with `pertinax up --only {name} --dir {layout.root}`",
        kind="refused",
        code="member_ended",
    )


def is_lost(layout: Layout, plan: Plan, kind: str, name: str) -> bool:
    """Whether a controller of a founded cluster has no data directory of its own any more."""
    from scheduler.controller.founding import is_founded

    return kind == "controller" and plan.is_founded and not is_founded(layout.data_dir(kind, name))


def lost(layout: Layout, name: str) -> LocalError:
    """What to say of such a controller: it may have voted and acknowledged, and forgot it."""
    return LocalError(
        f"controller {name} has lost its data",
        why=f"{layout.data_dir('controller', name)} is empty, and the cluster was founded before",
        hint=f"`pertinax cluster replace {name} --dir {layout.root}` brings it back from the"
        " others, which must run",
        kind="refused",
        code="member_lost",
    )


def _controller_serves(layout: Layout, plan: Plan, name: str, process: Process) -> bool:
    del layout
    one = next(one for one in plan.controllers if one.name == name)
    return all(is_listening(process.pid, port) for port in (one.http_port, one.agents_port))


def _agent_serves(layout: Layout, plan: Plan, name: str, process: Process) -> bool:
    del plan
    status = read_status(layout.data_dir("agent", name))
    keeper = status.get("keeper_pid")
    return (
        status.get("pid") == process.pid
        and isinstance(keeper, int)
        and start_ticks(keeper) is not None
    )


def _refuse_strays(layout: Layout, kind: str, name: str, config: Path) -> None:
    """A member of ours that `cluster.json` does not know would fight over ports and data."""
    strays = list(with_command(MODULES[kind], str(config)))
    if strays:
        raise LocalError(
            f"{kind} {name} runs already",
            why=f"process {strays[0].pid} uses {config}, and {layout.cluster_file} forgot it",
            hint=f"end it with `pertinax down --dir {layout.root}`, then start again",
            kind="refused",
            code="stray_member",
        )


def running_process(member: Document) -> Process | None:
    """The live process of a member of `cluster.json`."""
    return process_of(member["pid"]) if is_running(member) else None
