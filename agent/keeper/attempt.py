"""One attempt as the keeper holds it, from its intent to its finish.

    QUEUED ──► RUNNING ──► LINGERING ──► CHECKING ──► (LINGERING) ──► CLOSING ──► Closed
      │          main         main gone,    success        checks'       finish
      │          lives        strays not    checks         strays        not durable yet
      └──► never started: an event, no finish         STUCK: finish told, tree still there

`ending` is set when we began to end it, whatever the phase; freezing is a state beside the phases.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.keeper.cgroups import Group
from agent.keeper.environment import Account
from agent.keeper.loop import Timer
from agent.keeper.order import Work
from agent.keeper.output import Capture
from agent.keeper.processes import Identity


class Phase(enum.Enum):
    QUEUED = "queued"
    RUNNING = "running"
    LINGERING = "lingering"
    CHECKING = "checking"
    CLOSING = "closing"
    STUCK = "stuck"


@dataclass(slots=True, kw_only=True)
class Ending:
    """An end that we began. The first cause stays; a later one may only hasten it."""

    #: Of outcome.ENDINGS; empty when only strays of an attempt that ended by itself are ended.
    cause: str
    detail: str
    #: The signal that asks, before KILL.
    soft_signal: int
    grace_ms: int
    #: CLOCK_BOOTTIME of the first KILL.
    kill_at_ms: int
    #: The main process's end was seen before this began.
    is_after_exit: bool
    is_soft_sent: bool = False
    #: Who got the soft signal (pid, start ticks): one forked meanwhile is asked later.
    asked: set[tuple[int, int]] = field(default_factory=set)
    #: When KILL was first sent; 0 before.
    killing_since_ms: int = 0
    #: When KILL was last sent.
    killed_at_ms: int = 0
    kills_sent: int = 0
    timer: Timer | None = None


@dataclass(slots=True, kw_only=True)
class Usage:
    """What the kernel counted for the main process and the children it waited for."""

    #: Never below the keeper's own size (some 25 MB): the kernel counts what the process was before
    #: its exec. A cgroup's figure, or a sample, raises it.
    peak_rss_bytes: int | None = None
    cpu_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class Attempt:
    """Mutable; loop thread only. Times without `_at_` suffix meaning are CLOCK_BOOTTIME ms."""

    token: str
    work: Work
    session: int
    cluster_id: str
    node: str
    #: attempts/TOKEN: captured output; made with its first byte.
    directory: Path
    #: work/TOKEN: the attempt's own directory; removed when it ends empty.
    workdir: Path
    phase: Phase = Phase.QUEUED
    account: Account | None = None
    identity: Identity | None = None
    #: Wall clock, a label; None before the start.
    started_at_ms: int | None = None
    started_boottime_ms: int = 0
    #: An earlier keeper started it: its main process is not our child.
    is_adopted: bool = False
    captures: dict[str, Capture] = field(default_factory=dict)
    group: Group | None = None
    #: Wait status of the main process, once seen; `status_evidence` says how.
    status: int | None = None
    status_evidence: str = "observed"
    is_status_noted: bool = False
    ended_at_ms: int | None = None
    usage: Usage = field(default_factory=Usage)
    was_oom: bool = False
    #: The last kill order, as recorded.
    order: dict[str, Any] | None = None
    ending: Ending | None = None
    was_signalled: bool = False
    cleanup: str = ""
    strays: dict[int, int] = field(default_factory=dict)
    #: CLOCK_BOOTTIME since when it is frozen; None while it runs.
    frozen_since_ms: int | None = None
    frozen_ms: int = 0
    #: When it was thawed last: the stall clock begins anew then.
    thawed_at: int = 0
    #: The failed success check; None while all passed.
    failed_check: str | None = None
    are_checks_done: bool = False
    #: Helpers (success and ready checks) that run for it: their trees are the attempt's.
    helper_pids: set[int] = field(default_factory=set)
    timers: dict[str, Timer] = field(default_factory=dict)
    progress: str = ""
    progress_seen: tuple[int, int] = (0, 0)
    progressed_at: int = 0
    is_ready: bool = False
    overuse_samples: int = 0

    @property
    def is_frozen(self) -> bool:
        return self.frozen_since_ms is not None

    @property
    def is_begun(self) -> bool:
        """A process of it may live, or has lived."""
        return self.phase is not Phase.QUEUED

    def start_facts(self, boot_id: str) -> dict[str, Any]:
        """StartFacts."""
        identity = self.identity
        return {
            "started_at_ms": self.started_at_ms or 0,
            "pid": None if identity is None else identity.pid,
            "start_ticks": 0 if identity is None else identity.start_ticks,
            "boot_id": boot_id if identity is None else identity.boot_id,
            "worker": self.work.worker,
        }

    def arm(self, name: str, timer: Timer) -> None:
        """Hold `timer` under `name`, replacing an earlier one."""
        self.disarm(name)
        self.timers[name] = timer

    def disarm(self, name: str) -> None:
        timer = self.timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def disarm_all(self) -> None:
        for name in list(self.timers):
            self.disarm(name)
        if self.ending is not None and self.ending.timer is not None:
            self.ending.timer.cancel()


@dataclass(slots=True, kw_only=True)
class Closed:
    """What is left of an attempt whose finish is durable: small, for there are many.

    The finish itself is in the ledger.
    """

    worker: str
    session: int
    #: An attached agent was sent the `finished` event.
    is_told: bool = False
    #: Wall clock ms since when its finish is known to be committed; None before.
    forgotten_at_ms: int | None = None
