"""`up` and `down`: a whole cluster on this machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

import click

from scheduler.cli.base import Document, json_option, session
from scheduler.cli.cluster import pairs
from scheduler.cli.failure import usage
from scheduler.cli.find import LOCAL_NAME, nearest_local

#: Seconds between two looks of the status line.
LOOK_S: Final = 0.5
#: Clusters of these sizes have a majority that is worth its members.
CONTROLLER_COUNTS: Final = ("1", "3", "5")

_DIR = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    help="Its directory; ./.pertinax unless PERTINAX_CLUSTER is one.",
)


@click.command()
@click.option("--controllers", type=click.Choice(CONTROLLER_COUNTS), help="How many; 3.")
@click.option("--agents", type=click.IntRange(0, 64), metavar="N", help="How many; 2.")
@_DIR
@click.option("--port", type=click.IntRange(1, 65535), metavar="BASE", help="First port.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting.")
@click.option("--agent-set", multiple=True, metavar="KEY=VALUE", help="A key of the agents.")
@click.option("--detach", is_flag=True, help="Return once it is ready; `down` stops it.")
@click.option("--fresh", is_flag=True, help="Begin anew: what was there is ended and removed.")
@click.option("--only", metavar="NAME", help="(Re)start this member alone.")
@json_option
def up(
    *,
    controllers: str | None,
    agents: int | None,
    directory: str | None,
    port: int | None,
    settings: tuple[str, ...],
    agent_set: tuple[str, ...],
    only: str | None,
    detach: bool,
    fresh: bool,
) -> None:
    """Start a cluster on this machine, or what of it does not run.

    Stays in the foreground, and stops the cluster with Ctrl-C; jobs and history are kept for the
    next `up`. With --detach it returns when a leader is elected and all agents are Online.
    """
    from scheduler.local.up import Wishes, up_only
    from scheduler.local.up import up as start

    root = _root(directory)
    if only is not None:
        if fresh or controllers or agents is not None or port or settings or agent_set:
            raise usage(
                "--only takes no other options than --dir",
                why="it starts one member of a cluster as it is",
                hint=f"pertinax up --only {only} --dir {root}",
                code="bad_option",
            )
        document = up_only(root, only)
        if session().is_json:
            session().print_json(document)
        return
    wishes = Wishes(
        controllers=int(controllers) if controllers else None,
        agents=agents,
        base_port=port,
        settings=pairs("--set", settings),
        agent_settings=pairs("--agent-set", agent_set),
        is_fresh=fresh,
    )
    ran_before = _is_running(root)
    with StatusLine() as line:
        try:
            document = start(root, wishes, say=line.show)
        except KeyboardInterrupt:
            session().say(f"\ninterrupted; `pertinax down --dir {root}` stops what was started")
            raise
    if session().is_json and (detach or ran_before):
        session().print_json(document)
    elif ran_before:
        session().say(f"the cluster in {root} runs already; {_dashboard(document)}")
    else:
        session().say(_welcome(root, document, is_detached=detach))
    if not detach and not ran_before:
        _stay(root)


@click.command()
@_DIR
@click.option("--keep-jobs", is_flag=True, help="Keepers and jobs go on; the next `up` has them.")
@json_option
def down(directory: str | None, *, keep_jobs: bool) -> None:
    """Stop the cluster on this machine; returns when no process of it is left.

    Running jobs are ended in order, and run again after the next `up`.
    """
    from scheduler.local.down import down as stop

    root = _root(directory)
    with StatusLine() as line:
        line.show("stopping")
        stop(root, keeps_jobs=keep_jobs)
    if session().is_json:
        session().print_json({"dir": str(root), "running": False})
    else:
        session().say(f"stopped; `pertinax up --dir {root}` starts it again, with all its jobs")


def ensure_up(root: Path) -> None:
    """Start the cluster in `root` if it does not run (`run --up`), saying so."""
    from scheduler.local.up import Wishes
    from scheduler.local.up import up as start

    if _is_running(root):
        return
    with StatusLine() as line:
        document = start(root, Wishes(), say=line.show)
    session().say(_welcome(root, document, is_detached=True))


def _root(directory: str | None) -> Path:
    return Path(directory).expanduser().absolute() if directory is not None else default_root()


def default_root() -> Path:
    """The directory that is meant when none is named, whether a cluster is there or not."""
    # As every other command: whoever works on a cluster by its directory means that one here, too.
    named = os.environ.get("PERTINAX_CLUSTER", "")
    if "://" not in named and (os.sep in named or Path(named or "/dev/null").is_dir()):
        return Path(named).expanduser().absolute()
    here = Path.cwd()
    return nearest_local(here) or here / LOCAL_NAME


def _is_running(root: Path) -> bool:
    from scheduler.local.files import Layout, members_of, read_cluster
    from scheduler.local.watch import is_running

    members = list(members_of(read_cluster(Layout(root))))
    return bool(members) and all(is_running(member) for _, member in members)


def _dashboard(document: Document) -> str:
    leader = document.get("leader")
    members = document["controllers"]
    chosen = next((one for one in members if one["name"] == leader), members[0])
    return f"dashboard: {chosen['http']}/"


def _welcome(root: Path, document: Document, *, is_detached: bool) -> str:
    is_near = root == Path.cwd() / LOCAL_NAME
    where = "" if is_near else f" --cluster {root}"
    stop = f"pertinax down{'' if is_near else f' --dir {root}'}" if is_detached else "Ctrl-C"
    return (
        f"{len(document['controllers'])} controllers and {len(document['agents'])} agents run;"
        f" {_dashboard(document)} (its token: {document['token_file']})\n"
        f"  pertinax run{where} -- echo hello\n"
        f"  pertinax jobs{where}\n"
        f"  pertinax cluster status{where}\n"
        f"{stop} stops it"
    )


def _stay(root: Path) -> None:
    """Show the state until Ctrl-C or SIGTERM, then stop the cluster; end when somebody else did."""
    from scheduler.local.down import down as stop
    from scheduler.local.files import Layout, members_of, read_cluster
    from scheduler.local.processes import reap
    from scheduler.local.watch import is_running

    layout = Layout(root)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with StatusLine() as line:
        try:
            while True:
                reap()
                document = read_cluster(layout)
                members = list(members_of(document))
                up_now = [member["name"] for _, member in members if is_running(member)]
                if not up_now:
                    session().say("the cluster was stopped")
                    return
                down_now = [one["name"] for _, one in members if one["name"] not in up_now]
                absent = f", down: {', '.join(down_now)}" if down_now else ""
                line.show(f"leader {document.get('leader') or 'none'}, {len(up_now)} up{absent}")
                time.sleep(LOOK_S)  # the pace of the display
        except KeyboardInterrupt:
            line.show("stopping")
            stop(root, keeps_jobs=False)
    session().say(f"stopped; `pertinax up --dir {root}` starts it again, with all its jobs")


class StatusLine:
    """One line, written over on a terminal; elsewhere each new text is a line of stderr."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._is_silent = session().is_json
        self._shown = ""

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._shown = ""

    def show(self, text: str) -> None:
        if text == self._shown or self._is_silent:
            return
        self._shown = text
        if self._is_live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
