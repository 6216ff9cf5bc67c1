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
#: Parent of all kernel threads.
_KERNEL_THREADS: Final = 2


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


class View:
    """All processes at one moment, indexed: a thousand attempts can be looked up in one view."""

    def __init__(self, taken_at_ms: int) -> None:
        self.taken_at_ms = taken_at_ms
        self.table = snapshot()
        self.children: dict[int, list[int]] = {}
        self.sessions: dict[int, list[int]] = {}
        #: (token, cluster id) -> pids with that marker.
        self.marked: dict[tuple[str, str], list[int]] = {}
        #: Processes with a marker, whosever it is: their session does not count.
        self._has_marker: set[int] = set()
        for info in self.table.values():
            self.children.setdefault(info.ppid, []).append(info.pid)
            self.sessions.setdefault(info.session, []).append(info.pid)
            marker = None if info.ppid == _KERNEL_THREADS else read_marker(info.pid)
            if marker is not None:
                self.marked.setdefault(marker, []).append(info.pid)
                self._has_marker.add(info.pid)

    def roots(self, wanted: Wanted, keeper_pid: int) -> set[int]:
        """The attempt's processes that can be recognised by themselves."""
        found = {pid for pid in wanted.cgroup_pids() if pid in self.table}
        found.update(self.marked.get((wanted.token, wanted.cluster_id), ()))
        found.update(p for p, ticks in wanted.strays.items() if self._is(p, ticks))
        main = wanted.main
        if main is None:
            return found
        if self._is(main.pid, main.start_ticks):
            found.add(main.pid)
        else:
            # Was the pid reused, then a marker-less session of that number is a stranger's.
            found.discard(main.pid)
        for pid in self.sessions.get(main.pid, ()):
            if pid not in self._has_marker and pid != main.pid and self._is_below(pid, keeper_pid):
                found.add(pid)
        return found

    def close_over_children(self, found: set[int]) -> None:
        """Add all descendants of `found` to it."""
        waiting = list(found)
        while waiting:
            for child in self.children.get(waiting.pop(), ()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)

    def _is(self, pid: int, start_ticks: int) -> bool:
        info = self.table.get(pid)
        return info is not None and info.start_ticks == start_ticks

    def _is_below(self, pid: int, ancestor: int) -> bool:
        seen: set[int] = set()
        while pid in self.table and pid not in seen:
            seen.add(pid)
            pid = self.table[pid].ppid
            if pid == ancestor:
                return True
        return False


class Trees:
    """Looks at /proc. Loop thread only."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._foreign: set[int] = set()
        self._foreign_until_ms = 0
        self._self_pid = os.getpid()
        self._view: View | None = None

    def view(self, *, newer_than_ms: int) -> View:
        """A view that was begun after that moment; the last one, where that is new enough.

        One view costs some 40 µs per process of the host, so what happens to many attempts at once
        (leases that end, a kill of all) shares one.
        """
        if self._view is None or self._view.taken_at_ms <= newer_than_ms:
            self._view = View(self._now_ms())
        return self._view

    def members(self, wanted: Wanted, *, newer_than_ms: int) -> list[ProcessInfo]:
        """Every living process of the attempt: main, descendants, strays."""
        view = self.view(newer_than_ms=newer_than_ms)
        found = view.roots(wanted, self._self_pid)
        view.close_over_children(found)
        found -= {self._self_pid, 1}
        return [view.table[pid] for pid in sorted(found)]

    def marked(self, cluster_ids: Collection[str]) -> dict[str, list[ProcessInfo]]:
        """Living processes of those clusters by the token in their environment."""
        view = self.view(newer_than_ms=self._now_ms())
        found: dict[str, list[ProcessInfo]] = {}
        for (token, cluster_id), pids in view.marked.items():
            if cluster_id in cluster_ids:
                found[token] = [view.table[pid] for pid in pids if pid != self._self_pid]
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
