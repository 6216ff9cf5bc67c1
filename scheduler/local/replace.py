"""`pertinax cluster replace`: bring a dead or damaged controller back from the others.

    stop it ─► move `data` aside as `data.replaced-N` ─► a new, empty `data` that joins
            ─► start it ─► it catches up from the others and is admitted

Nothing is deleted. The command may be killed at any point and called again: what is there says how
far it came. A directory without an identity is no member's, so `up` starts nothing from it; one
that joins neither votes nor counts before it has caught up, and goes on by itself once it runs; and
a file beside it tells a replaced member that is healthy from one that was never touched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from scheduler.client import ClientError, Context
from scheduler.client.client import Client
from scheduler.local import members
from scheduler.local.directories import (
    Replaced,
    directory_errors,
    founding_of_another,
    move_aside,
)
from scheduler.local.down import CONTROLLER_PATIENCE_S
from scheduler.local.errors import LocalError
from scheduler.local.files import (
    Document,
    Layout,
    Plan,
    change_cluster,
    locked,
    read_cluster,
    read_plan,
)
from scheduler.local.processes import Process, end_all, wait_for, with_command
from scheduler.local.up import LOCK_WAIT_S, Say, ensure_document, ensure_watcher, no_cluster
from scheduler.local.watch import is_running, refresh

#: Seconds until the other members must form a majority: they may be electing just now.
OTHERS_DEADLINE_S: Final = 30.0
#: Seconds that a running member is given to prove healthy before it is taken for broken.
HEALTH_PATIENCE_S: Final = 15.0
#: Seconds until a started replacement has caught up; a large state is sent at up to 64 MiB/s.
CATCH_UP_DEADLINE_S: Final = 300.0
#: Seconds that one look at the cluster may take.
LOOK_DEADLINE_S: Final = 3.0
#: Seconds between two looks.
LOOK_PERIOD_S: Final = 0.2
#: In the member's directory while its replacement is under way; names what was moved aside.
NOTE_NAME: Final = "replacing"


def replace(root: Path, name: str, *, is_forced: bool, say: Say) -> Replaced:
    """Replace controller `name` of the local cluster in `root`; returns once it has caught up.

    `say` is told each step. Raises LocalError: for an unknown name, for a healthy member unless
    `is_forced`, when the others have no majority, and when it does not catch up in time.
    """
    layout = Layout(root.absolute())
    plan = read_plan(layout)
    if plan is None:
        raise no_cluster(layout)
    if name not in [one.name for one in plan.controllers]:
        raise _unknown(layout, plan, name)
    with locked(layout.root / "operation.lock", wait_s=LOCK_WAIT_S):
        ensure_document(layout, plan)
        ensure_watcher(layout)
        with _Others(layout, plan, name) as others:
            return _Replacement(layout, plan, name, others, say).run(is_forced=is_forced)


class _Others:
    """The cluster as the other controllers see it."""

    def __init__(self, layout: Layout, plan: Plan, name: str) -> None:
        self._layout = layout
        self._name = name
        self._count = len(plan.controllers)
        self._names = [one.name for one in plan.controllers if one.name != name]
        document = read_cluster(layout)
        urls = [one["http"] for one in document["controllers"] if one["name"] in self._names]
        self._client = None
        if urls:
            token = Path(document["token_file"]).read_text(encoding="utf-8").strip()
            self._client = Client(
                Context(tuple(urls), token, document["ca_file"], deadline_s=LOOK_DEADLINE_S)
            )

    def __enter__(self) -> _Others:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()

    def require_majority(self, say: Say) -> None:
        """Raises LocalError unless the others alone can elect a leader and commit."""
        if self._client is None:
            raise _alone(self._layout, self._name)
        say(f"looking whether {' and '.join(self._names)} are well")
        counting: list[str] = []

        def is_majority() -> bool:
            counting[:] = self._counting()
            return len(counting) > self._count // 2

        if not wait_for(is_majority, timeout_s=OTHERS_DEADLINE_S, every_s=LOOK_PERIOD_S):
            absent = [one for one in self._names if one not in counting]
            raise _no_majority(self._layout, self._count, counting, absent)

    def _counting(self) -> list[str]:
        """Other members that are well and whose acknowledgement counts."""
        view = self.look()
        if not view.get("quorum"):
            return []
        return [
            one
            for one in self._names
            if _member(view, one).get("healthy")
            and not _is_joining(self._layout.data_dir("controller", one))
        ]

    def look(self) -> Document:
        """The status as one of them tells it; empty when none answers."""
        assert self._client is not None
        try:
            return self._client.cluster_status()
        except ClientError:
            return {}


class _Replacement:
    """The replacement of one member, under the operation lock."""

    def __init__(self, layout: Layout, plan: Plan, name: str, others: _Others, say: Say) -> None:
        self._layout = layout
        self._plan = plan
        self._name = name
        self._others = others
        self._say = say
        self._data_dir = layout.data_dir("controller", name)
        self._note = layout.member("controller", name) / NOTE_NAME

    def run(self, *, is_forced: bool) -> Replaced:
        """All of it, or what an interrupted call left to do."""
        self._others.require_majority(self._say)
        if not is_forced and self._is_running():
            if _is_joining(self._data_dir):
                self._say(f"{self._name} is being replaced already")
                return self._finish()
            self._say(f"looking whether {self._name} is healthy")
            if wait_for(
                lambda: self._is_healthy(self._others.look()),
                timeout_s=HEALTH_PATIENCE_S,
                every_s=LOOK_PERIOD_S,
            ):
                if self._note.exists():
                    return self._finish()
                raise self._refused()
        self._stop()
        with directory_errors(self._data_dir):
            moved = move_aside(self._data_dir)
            self._note.parent.mkdir(parents=True, exist_ok=True)
            self._note.write_text(json.dumps(str(moved) if moved else None), encoding="utf-8")
            self._found()
        self._say(f"starting {self._name} with an empty disk")
        process = members.start(self._layout, self._plan, "controller", self._name)
        members.wait_serving(self._layout, self._plan, "controller", self._name, process)
        return self._finish()

    def _is_running(self) -> bool:
        return is_running(self._entry())

    def _entry(self) -> Document:
        found = members.find(read_cluster(self._layout), self._name)
        assert found is not None, self._name
        return found[1]

    def _is_healthy(self, view: Document) -> bool:
        """Whether it runs, counts, and is well in the eyes of the others."""
        return (
            self._is_running()
            and not _is_joining(self._data_dir)
            and bool(view.get("quorum"))
            and bool(_member(view, self._name).get("healthy"))
        )

    def _stop(self) -> None:
        """End every process of the member, also one that `cluster.json` does not know."""
        processes = set(
            with_command(
                members.MODULES["controller"],
                str(self._layout.config_file("controller", self._name)),
            )
        )
        if (known := members.running_process(self._entry())) is not None:
            processes.add(known)
        if not processes:
            return
        self._say(f"stopping {self._name}")
        if left := end_all(processes, patience_s=CONTROLLER_PATIENCE_S):
            raise _not_ended(self._name, left)

    def _found(self) -> None:
        from scheduler.controller.config import load_config
        from scheduler.controller.founding import found_replacement

        founding = founding_of_another(self._layout, self._plan, self._name)
        config = members.write_config(self._layout, self._plan, "controller", self._name)
        found_replacement(load_config(config), founding)

    def _finish(self) -> Replaced:
        """Wait until the member has caught up and counts again."""
        if not wait_for(self._is_caught_up, timeout_s=CATCH_UP_DEADLINE_S, every_s=LOOK_PERIOD_S):
            raise self._not_caught_up()
        change_cluster(self._layout, refresh)
        try:
            moved = json.loads(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            moved = None
        self._note.unlink(missing_ok=True)
        return Replaced(self._name, str(self._data_dir), moved, self._entry()["pid"])

    def _is_caught_up(self) -> bool:
        if not self._is_running():
            raise members.ended(self._layout, "controller", self._name)
        view = self._others.look()
        if self._is_healthy(view):
            return True
        leader = _member(view, str(view.get("leader"))).get("applied_index", 0)
        own = _member(view, self._name).get("applied_index", 0)
        self._say(f"{self._name} catches up: at entry {own} of {leader}")
        return False

    def _refused(self) -> LocalError:
        return LocalError(
            f"controller {self._name} is not replaced",
            why="it runs and is healthy",
            hint=f"`pertinax cluster replace {self._name} --force` replaces it all the same",
            kind="refused",
            code="member_healthy",
        )

    def _not_caught_up(self) -> LocalError:
        return LocalError(
            f"controller {self._name} has not caught up",
            why=f"it runs, and was not admitted by the others for {CATCH_UP_DEADLINE_S:g} s",
            hint="it goes on by itself: call again to wait for it, or with --force to begin anew;"
            f" see {self._layout.log_file('controller', self._name)}",
            kind="unavailable",
            code="not_caught_up",
        )


def _is_joining(data_dir: Path) -> bool:
    from scheduler.controller.founding import is_joining

    return is_joining(data_dir)


def _member(view: Document, name: str) -> Document:
    return next((one for one in view.get("members", ()) if one["name"] == name), {})


def _unknown(layout: Layout, plan: Plan, name: str) -> LocalError:
    known = ", ".join(one.name for one in plan.controllers)
    return LocalError(
        f"there is no controller {name!r} in {layout.root}",
        why=f"its controllers are {known}",
        hint="name one of them; agents keep nothing that needs replacing",
        kind="not_found",
        code="unknown_member",
    )


def _alone(layout: Layout, name: str) -> LocalError:
    return LocalError(
        f"controller {name} cannot be replaced",
        why="it is the only one, so nobody else has what it would be brought back from",
        hint=f"look at its data with `pertinax wal check {layout.data_dir('controller', name)}`",
        kind="refused",
        code="no_others",
    )


def _no_majority(layout: Layout, count: int, counting: list[str], absent: list[str]) -> LocalError:
    starts = " and ".join(f"`pertinax up --only {one} --dir {layout.root}`" for one in absent)
    return LocalError(
        "the other controllers have no majority",
        why=f"of {count} members, {count // 2 + 1} must be well and have caught up; of the others"
        f" only {', '.join(counting) or 'none'} is",
        hint=f"first see to {', '.join(absent)}: start with {starts}, wait until healthy",
        kind="unavailable",
        code="no_quorum",
    )


def _not_ended(name: str, left: list[Process]) -> LocalError:
    return LocalError(
        f"controller {name} did not end",
        why=f"process {', '.join(str(one.pid) for one in left)} survives SIGKILL",
        hint="only the kernel can explain that: see its state in ps",
        kind="failed",
        code="processes_left",
    )
