"""`pertinax up`: make a cluster in a directory, or start what of it does not run.

Every step looks at what is there and does what is missing, so a half-started cluster, a second `up`
and an `up` that was interrupted are no special cases.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scheduler.client import ClientError, Context
from scheduler.client.client import Client
from scheduler.local import members
from scheduler.local.configs import CONTROLLER_KEYS, controller_toml
from scheduler.local.errors import LocalError
from scheduler.local.files import (
    OURS,
    Document,
    Layout,
    Plan,
    PlannedController,
    change_cluster,
    locked,
    members_of,
    read_cluster,
    read_plan,
    write_plan,
)
from scheduler.local.ports import choose_ports, is_listening
from scheduler.local.processes import (
    POLL_S,
    boot_id,
    process_of,
    reap,
    spawn,
    with_command,
)
from scheduler.local.watch import is_running, refresh

CONTROLLERS_DEFAULT: Final = 3
AGENTS_DEFAULT: Final = 2
AGENTS_MAX: Final = 64
#: Seconds until a leader is elected and every agent is Online.
READY_DEADLINE_S: Final = 100.0
#: Seconds that a second `up` or `down` waits for the one before it.
LOCK_WAIT_S: Final = 110.0
PORTS_PER_CONTROLLER: Final = 3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for; None and empty keep what the cluster has."""

    controllers: int | None = None
    agents: int | None = None
    base_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    agent_settings: Mapping[str, str] = field(default_factory=dict)
    is_fresh: bool = False


def up(root: Path, wishes: Wishes, *, say: Say) -> Document:
    """Start the cluster in `root`; returns `cluster.json` once a leader is there, agents Online.

    `say` is told each step, in a few words. Does nothing to members that run. Raises LocalError.
    """
    layout = Layout(root.absolute())
    layout.root.mkdir(parents=True, exist_ok=True)
    if wishes.is_fresh:
        clear(layout)
    _refuse_foreign(layout)
    with locked(layout.root / "operation.lock", wait_s=LOCK_WAIT_S):
        plan, later = _planned(layout, wishes)
        if not plan.is_founded:
            say("making certificates and directories")
            _found(layout, plan)
        document = _start_missing(layout, plan, say)
        _wait_ready(layout, say)
        if later:
            say("changing settings")
            _configure(layout, later)
        return change_cluster(layout, refresh) or document


def up_only(root: Path, name: str) -> Document:
    """(Re)start one member and return once it accepts connections; a live one is left alone."""
    layout = Layout(root.absolute())
    plan = read_plan(layout)
    if plan is None:
        raise no_cluster(layout)
    with locked(layout.root / "operation.lock", wait_s=LOCK_WAIT_S):
        document = ensure_document(layout, plan)
        found = members.find(document, name)
        if found is None:
            known = ", ".join(member["name"] for _, member in members_of(document))
            raise LocalError(
                f"there is no member {name!r} in {layout.root}",
                why=f"its members are {known}",
                hint="name one of them with --only",
                kind="not_found",
                code="unknown_member",
            )
        ensure_watcher(layout)
        kind, member = found
        if not is_running(member):
            process = members.start(layout, plan, kind, name)
            members.wait_serving(layout, plan, kind, name, process)
        return read_cluster(layout)


def clear(layout: Layout) -> None:
    """End the cluster in the directory and remove what `up` made there, nothing else."""
    from scheduler.local.down import down

    if layout.plan_file.exists() or layout.cluster_file.exists():
        down(layout.root, keeps_jobs=False)
    for name in OURS:
        path = layout.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def no_cluster(layout: Layout) -> LocalError:
    """There is none in this directory."""
    return LocalError(
        f"there is no cluster in {layout.root}",
        why=f"{layout.plan_file.name} is not there",
        hint=f"make one with `pertinax up --dir {layout.root}`",
        kind="not_found",
        code="no_cluster",
    )


def context_of(document: Document) -> Context:
    """How clients reach the cluster of a `cluster.json`, its leader first."""
    leader = document.get("leader")
    ordered = sorted(document["controllers"], key=lambda member: member["name"] != leader)
    return Context(
        urls=tuple(member["http"] for member in ordered),
        token=Path(document["token_file"]).read_text(encoding="utf-8").strip(),
        ca_file=document["ca_file"],
    )


def _refuse_foreign(layout: Layout) -> None:
    if layout.plan_file.exists():
        return
    foreign = sorted(
        path.name
        for path in layout.root.iterdir()
        if not path.name.endswith(".lock") and not path.name.startswith(".")
    )
    if foreign:
        raise LocalError(
            f"{layout.root} is not empty and holds no cluster",
            why=f"among others there is {foreign[0]!r}",
            hint="choose another directory with --dir; a damaged cluster is cleared with --fresh",
            kind="refused",
            code="bad_directory",
        )


def _planned(layout: Layout, wishes: Wishes) -> tuple[Plan, dict[str, str]]:
    """The plan to start, written; and the settings to propose once it runs."""
    plan = read_plan(layout)
    own = {key: value for key, value in wishes.settings.items() if key in CONTROLLER_KEYS}
    replicated = {key: value for key, value in wishes.settings.items() if key not in own}
    if plan is None:
        plan = _new_plan(wishes, replicated)
    else:
        _refuse_changes(layout, plan, wishes)
    later = replicated if plan.is_founded else {}
    if not plan.is_founded:
        plan.settings.update(replicated)
    plan.controller_settings.update(own)
    plan.agent_settings.update(wishes.agent_settings)
    wanted = wishes.agents if wishes.agents is not None else len(plan.agents)
    plan.agents += [f"a{number}" for number in range(len(plan.agents) + 1, wanted + 1)]
    _check_controllers(layout, plan)
    write_plan(layout, plan)
    return plan, later


def _check_controllers(layout: Layout, plan: Plan) -> None:
    """Refuse settings that a controller would refuse at its start."""
    from scheduler.controller.config import ConfigMistakes, parse_config

    name = plan.controllers[0].name
    try:
        parse_config(controller_toml(layout, plan, name), layout.config_file("controller", name))
    except ConfigMistakes as error:
        raise _bad_setting("; ".join(error.mistakes)) from None


def _bad_setting(why: str) -> LocalError:
    return LocalError(
        "a setting cannot be used",
        why=why,
        hint="`--set KEY=VALUE` takes such as rejoin_grace=30s",
        kind="usage",
        code="bad_setting",
    )


def _new_plan(wishes: Wishes, replicated: dict[str, str]) -> Plan:
    from scheduler.controller.founding import draw_founding

    try:
        draw_founding(replicated)
    except ValueError as error:
        raise _bad_setting(str(error)) from None
    count = wishes.controllers or CONTROLLERS_DEFAULT
    ports = choose_ports(count * PORTS_PER_CONTROLLER, base=wishes.base_port)
    controllers = [
        PlannedController(f"c{number + 1}", *ports[number * 3 : number * 3 + 3])
        for number in range(count)
    ]
    agents = AGENTS_DEFAULT if wishes.agents is None else wishes.agents
    return Plan(
        cluster_id=secrets.token_hex(8),
        controllers=controllers,
        agents=[f"a{number + 1}" for number in range(agents)],
    )


def _refuse_changes(layout: Layout, plan: Plan, wishes: Wishes) -> None:
    what = why = None
    if wishes.controllers is not None and wishes.controllers != len(plan.controllers):
        what = "the number of controllers cannot change"
        why = f"the cluster was founded with {len(plan.controllers)}"
    elif wishes.base_port is not None and wishes.base_port != plan.controllers[0].http_port:
        what = "the ports cannot change"
        why = f"the cluster was founded with {plan.controllers[0].http_port} as the first"
    elif wishes.agents is not None and wishes.agents < len(plan.agents):
        what = "the number of agents cannot shrink"
        why = f"the cluster has {len(plan.agents)}"
    if what and why:
        raise LocalError(
            what,
            why=why,
            hint=f"leave the option away, or begin anew with --fresh (the jobs in {layout.root}"
            " are lost)",
            kind="refused",
            code="fixed_membership",
        )


def _found(layout: Layout, plan: Plan) -> None:
    """CA, token and the controllers' directories. Interrupted, it is simply done again."""
    from scheduler.controller.certs import make_ca, make_token_file
    from scheduler.controller.config import load_config
    from scheduler.controller.founding import draw_founding, found

    make_ca(layout.tls)
    make_token_file(layout.token_file)
    founding = draw_founding(plan.settings, cluster_id=plan.cluster_id)
    for one in plan.controllers:
        config = load_config(members.write_config(layout, plan, "controller", one.name))
        # The first member keeps the record of an interrupted founding; the others get its.
        founding = found(config, founding=founding)
    plan.is_founded = True
    write_plan(layout, plan)


def ensure_document(layout: Layout, plan: Plan) -> Document:
    """`cluster.json` with every member of the plan, and no pids of before a reboot."""

    def complete(document: Document) -> None:
        fresh = members.entries(layout, plan)
        if document.get("boot_id") == boot_id() and "controllers" in document:
            for _, member in members_of(document):
                if (found := members.find(fresh, member["name"])) is not None:
                    pids = ("pid", "start_ticks", "keeper_pid")
                    found[1].update({name: member[name] for name in pids if name in member})
            fresh["leader"] = document.get("leader")
            fresh["watcher_pid"] = document.get("watcher_pid")
        document.clear()
        document.update(fresh)

    return change_cluster(layout, complete)


def _start_missing(layout: Layout, plan: Plan, say: Say) -> Document:
    document = ensure_document(layout, plan)
    missing = [(kind, one["name"]) for kind, one in members_of(document) if not is_running(one)]
    lost = [name for kind, name in missing if members.is_lost(layout, plan, kind, name)]
    missing = [(kind, name) for kind, name in missing if name not in lost]
    if missing:
        say(f"starting {', '.join(name for _, name in missing)}")
    for kind, name in missing:
        members.start(layout, plan, kind, name)
    ensure_watcher(layout)
    if lost:
        # Only now: the others must run to bring it back.
        raise members.lost(layout, lost[0])
    return read_cluster(layout)


def ensure_watcher(layout: Layout) -> None:
    """The process that keeps `cluster.json` current, running."""
    if any(with_command("scheduler.local.watch", str(layout.root))):
        return

    def note(document: Document) -> None:
        # Under the file lock: the watcher cannot read the file before its own pid is in it.
        watcher = spawn("scheduler.local.watch", [str(layout.root)], log=layout.root / "watch.log")
        document["watcher_pid"] = watcher.pid

    change_cluster(layout, note)


def _wait_ready(layout: Layout, say: Say) -> None:
    """Until a leader is elected and every agent Online; says what is still missing."""
    deadline = time.monotonic() + READY_DEADLINE_S
    with _PatientClient() as client:
        while True:
            reap()
            document = change_cluster(layout, refresh)
            _refuse_ended(layout, document)
            missing = _missing(document, client)
            if not missing:
                return
            say(f"waiting for {missing}")
            if time.monotonic() > deadline:
                raise LocalError(
                    "the cluster is not ready",
                    why=f"still missing after {READY_DEADLINE_S:g} s: {missing}",
                    hint=f"read the log files in {layout.root}; "
                    f"`pertinax down --dir {layout.root}` stops it",
                    kind="unavailable",
                    code="not_ready",
                )
            time.sleep(POLL_S)  # other processes' files and ports cannot be awaited


def _missing(document: Document, client: _PatientClient) -> str:
    """What is not there yet, empty when the cluster is ready."""
    if document.get("leader") is None:
        return "a leader"
    # One that refuses its data ends before it listens, and after the others have a leader.
    deaf = [one["name"] for one in document["controllers"] if not _listens(one)]
    if deaf:
        return f"controller {', '.join(deaf)}"
    nodes = client.nodes(document)
    if nodes is None:
        return "an answer of the leader"
    online = {node["name"] for node in nodes if node["phase"] == "Online"}
    absent = [one for one in document["agents"] if one["name"] not in online]
    if absent:
        return f"agent {', '.join(one['name'] for one in absent)}"
    if any(process_of(one.get("keeper_pid")) is None for one in document["agents"]):
        return "the keepers"
    return ""


def _listens(controller: Document) -> bool:
    return is_listening(controller["pid"], int(controller["http"].rpartition(":")[2]))


def _refuse_ended(layout: Layout, document: Document) -> None:
    for kind, member in members_of(document):
        if not is_running(member):
            raise members.ended(layout, kind, member["name"])


def _configure(layout: Layout, changes: dict[str, str]) -> None:
    try:
        with Client(context_of(read_cluster(layout))) as client:
            client.configure(dict(changes))
    except ClientError as error:
        raise LocalError(
            "the settings were not changed",
            why=getattr(error, "message", str(error)),
            hint="the cluster runs; change them with `pertinax cluster config set KEY=VALUE`",
            kind="refused",
            code=error.code,
        ) from None


class _PatientClient:
    """Asks the leader of the moment for its nodes; None while it cannot answer."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._leader: Any = None

    def __enter__(self) -> _PatientClient:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()

    def nodes(self, document: Document) -> list[Document] | None:
        if self._client is None or self._leader != document["leader"]:
            self.__exit__()
            self._client = Client(context_of(document))
            self._leader = document["leader"]
        try:
            return list(self._client.nodes()["nodes"])
        except ClientError:
            return None
