"""Finding all processes of an attempt, and the orphans that its main process left.

The keeper is the subreaper of all it starts, so while it lives every descendant of an attempt is a
descendant of the keeper: a stray (double fork, new session) becomes the keeper's own child when its
parent ends. That makes "is the tree gone?" cheap: no child of ours that we did not start. Only
attempts of an earlier keeper have no such lineage and are searched by their marker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.keeper.processes import (
    Identity,
    ProcessInfo,
    list_pids,
    read_marker,
    read_process,
    send_signal,
    snapshot,
)

#: A scan that saw processes vanish is repeated, for one of them may have forked meanwhile.
RESCANS_MAX: Final = 5
#: How long a process that is no descendant of ours is taken for one without looking, in ms: below
#: the time in which pids could wrap around.
FOREIGN_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose processes are searched."""

    token: str
    cluster_id: str
    main: Identity | None
    #: Every one that a cheap look found and assigned: pid -> start ticks.
    strays: dict[int, int]
    #: Lists the pids of the attempt's cgroup; nothing without one.
    cgroup_pids: Callable[[], Iterable[int]]


class Trees:
    """Looks at /proc. Loop thread only."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._foreign: set[int] = set()
        self._foreign_until_ms = 0
        self._self_pid = os.getpid()

    def members(self, wanted: Wanted) -> list[ProcessInfo]:
        """Every living process of the attempt: main, descendants, strays. One scan of /proc."""
        table = snapshot()
        found = {pid for pid in wanted.cgroup_pids() if pid in table}
        for info in table.values():
            if self._is_root(info, wanted):
                found.add(info.pid)
        for pid, ticks in wanted.strays.items():
            if pid in table and table[pid].start_ticks == ticks:
                found.add(pid)
        _close_over_children(found, table)
        found -= {self._self_pid, 1}
        return [table[pid] for pid in sorted(found)]

    def marked(self, cluster_ids: Collection[str]) -> dict[str, list[ProcessInfo]]:
        """Living processes of those clusters by the token in their environment."""
        found: dict[str, list[ProcessInfo]] = {}
        for info in snapshot().values():
            marker = read_marker(info.pid)
            if marker is not None and marker[1] in cluster_ids and info.pid != self._self_pid:
                found.setdefault(marker[0], []).append(info)
        return found

    def orphans(self, known: Collection[int]) -> list[ProcessInfo]:
        """Living children of the keeper that are not in `known` (the ones it started)."""
        for _ in range(RESCANS_MAX):
            children, is_stable = self._look(known)
            if is_stable:
                break
        return children

    def _look(self, known: Collection[int]) -> tuple[list[ProcessInfo], bool]:
        self._expire_foreign()
        children = []
        is_stable = True
        for pid in list_pids():
            if pid in self._foreign or pid in known:
                continue
            info = read_process(pid)
            if info is None:
                is_stable = False
            elif info.ppid == self._self_pid and not info.is_zombie:
                children.append(info)
            elif info.is_zombie and info.ppid == self._self_pid:
                continue
            elif info.ppid in self._foreign or info.ppid in {0, 1, 2} or pid == self._self_pid:
                self._foreign.add(pid)
        return children, is_stable

    def _expire_foreign(self) -> None:
        now_ms = self._now_ms()
        if now_ms >= self._foreign_until_ms:
            self._foreign.clear()
            self._foreign_until_ms = now_ms + FOREIGN_MS

    def _is_root(self, info: ProcessInfo, wanted: Wanted) -> bool:
        main = wanted.main
        if main is not None and info.pid == main.pid:
            return info.start_ticks == main.start_ticks
        marker = read_marker(info.pid)
        if marker is not None:
            return marker == (wanted.token, wanted.cluster_id)
        # No readable environment, but the session that the launch made: a later session of the
        # same number could only belong to a process that started with main's pid after it was gone.
        return main is not None and info.session == main.pid and self._is_ours(info)

    def _is_ours(self, info: ProcessInfo) -> bool:
        """Whether `info` descends from the keeper."""
        seen = 0
        ppid = info.ppid
        while ppid > 1 and seen < 1_000:
            if ppid == self._self_pid:
                return True
            parent = read_process(ppid)
            if parent is None:
                return False
            ppid, seen = parent.ppid, seen + 1
        return False


def signal_all(members: Iterable[ProcessInfo], number: int) -> int:
    """Signal each of them, by pidfd; returns how many it reached."""
    return sum(send_signal(info.pid, info.start_ticks, number) for info in members)


def describe(members: Iterable[ProcessInfo], waits_on: Callable[[int], str]) -> str:
    """`pid 12 (in nfs_wait), pid 13`, for people."""
    texts = []
    for info in members:
        place = waits_on(info.pid)
        texts.append(f"pid {info.pid} (in {place})" if place else f"pid {info.pid}")
    return ", ".join(texts)


def read_cgroup_pids(path: Path) -> list[int]:
    """The pids in one cgroup directory; none when it is gone."""
    try:
        return [int(line) for line in (path / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _close_over_children(found: set[int], table: dict[int, ProcessInfo]) -> None:
    children: dict[int, list[int]] = {}
    for info in table.values():
        children.setdefault(info.ppid, []).append(info.pid)
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
