"""Keeps `cluster.json` current: `python -m scheduler.local.watch DIR`, started by `up`.

It copies what each member says of itself (`status.json` in its data directory) into the file: who
leads, and which keeper serves an agent. It restarts nobody and decides nothing. It ends when `down`
says so, when the directory is gone, or when another watcher took its place.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from scheduler.local.files import (
    Document,
    Layout,
    change_cluster,
    members_of,
    read_cluster,
    read_status,
)
from scheduler.local.processes import start_ticks

#: Seconds between two looks. Files of other processes cannot be awaited without inotify, which
#: Python lacks; a look is a few stat calls.
POLL_S: Final = 0.2


def leader_of(document: Document) -> str | None:
    """The live controller that says it leads, at the highest term; None when none does."""
    best: tuple[int, str] | None = None
    for kind, member in members_of(document):
        if kind != "controller":
            continue
        status = read_status(member["data_dir"])
        if status.get("role") != "leader" or status.get("pid") != member["pid"]:
            continue
        if not is_running(member):
            continue
        term = status.get("term")
        claim = (term if isinstance(term, int) else 0, str(member["name"]))
        best = max(best, claim) if best else claim
    return best[1] if best else None


def is_running(member: Document) -> bool:
    """True when the process that a member of `cluster.json` names is alive, and not a later one."""
    pid = member.get("pid")
    return isinstance(pid, int) and start_ticks(pid) == member.get("start_ticks")


def refresh(document: Document) -> None:
    """Bring leader and keepers of a `cluster.json` up to date, in place."""
    document["leader"] = leader_of(document)
    for kind, member in members_of(document):
        if kind != "agent":
            continue
        keeper = read_status(member["data_dir"]).get("keeper_pid")
        if isinstance(keeper, int) and start_ticks(keeper) is not None:
            member["keeper_pid"] = keeper


def main(argv: list[str]) -> int:
    layout = Layout(Path(argv[0]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    seen: object = None
    while True:
        document = read_cluster(layout)
        if document.get("watcher_pid") not in (None, os.getpid()) or not layout.root.is_dir():
            return 0
        marks = [_mark(Path(member["data_dir"])) for _, member in members_of(document)]
        # The pids as well: a leader that was killed can say no more.
        alive = [is_running(member) for _, member in members_of(document)]
        if seen != (document, marks, alive):
            try:
                document = change_cluster(layout, refresh)
            except OSError:
                return 0  # the directory was removed under us
            seen = (document, marks, alive)
        time.sleep(POLL_S)


def _mark(data_dir: Path) -> tuple[int, int] | None:
    """Changes whenever the member replaced its status file."""
    try:
        stat = (data_dir / "status.json").stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
