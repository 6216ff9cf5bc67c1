"""What is looked at once a second: progress, readiness, memory without a cgroup, the disk."""

from __future__ import annotations

import os
import stat
from typing import Final

from agent.keeper.attempt import Attempt, Phase
from agent.keeper.context import Context
from agent.keeper.processes import proportional_bytes
from agent.keeper.remover import PROGRESS_NAME
from agent.keeper.runner import Runner

TICK_MS: Final = 1_000
#: Memory above its limit in so many looks in a row ends an attempt: one may have caught a fork.
OVERUSE_SAMPLES: Final = 2
#: Ticks between two runs of a ready check.
READY_EVERY: Final = 2
#: How much of the end of a progress file is read, and how much of its last line is passed on.
PROGRESS_BYTES_MAX: Final = 4_096
PROGRESS_TEXT_MAX: Final = 512


class Watch:
    """Loop thread only."""

    def __init__(self, context: Context, runner: Runner, *, disk_low_bytes: int) -> None:
        self._context = context
        self._runner = runner
        self._disk_low_bytes = disk_low_bytes
        self._ticks = 0
        self.is_disk_low = False
        self.look_at_disk()

    def start(self) -> None:
        """Tick from now on."""
        self._context.loop.call_later(TICK_MS, self._tick)

    def _tick(self) -> None:
        self._ticks += 1
        self.look_at_disk()
        for attempt in list(self._context.attempts.values()):
            if attempt.phase is not Phase.RUNNING or attempt.is_frozen:
                continue
            self._look_at_progress(attempt)
            self._look_at_memory(attempt)
            if not attempt.is_ready and self._ticks % READY_EVERY == 0:
                self._runner.checks.ask_ready(attempt)
        self._context.loop.call_later(TICK_MS, self._tick)

    def look_at_disk(self) -> None:
        """Update `is_disk_low`; a change is told."""
        facts = os.statvfs(self._context.directory)
        is_low = facts.f_bavail * facts.f_frsize < self._disk_low_bytes
        if is_low != self.is_disk_low:
            self.is_disk_low = is_low
            self._context.tell({"is": "disk", "is_low": is_low})

    def _look_at_progress(self, attempt: Attempt) -> None:
        seen, text = read_progress(os.fsencode(attempt.workdir / PROGRESS_NAME))
        if seen == attempt.progress_seen:
            return
        attempt.progress_seen = seen
        attempt.progressed_at = self._context.loop.now_ms()
        if text and text != attempt.progress:
            attempt.progress = text
            self._context.tell({"is": "progress", "token": attempt.token, "text": text})

    def _look_at_memory(self, attempt: Attempt) -> None:
        limit = attempt.work.memory_bytes
        if not limit or attempt.group is not None:
            return
        used = self._memory_of(attempt, limit)
        attempt.usage.peak_rss_bytes = max(attempt.usage.peak_rss_bytes or 0, used)
        attempt.overuse_samples = attempt.overuse_samples + 1 if used > limit else 0
        if attempt.overuse_samples >= OVERUSE_SAMPLES:
            self._runner.endings.begin(
                attempt,
                cause="resource_overuse",
                detail=f"memory: {used} bytes in use, {limit} asked for (sampled)",
                grace_ms=attempt.work.grace_ms,
            )

    def _memory_of(self, attempt: Attempt, limit: int) -> int:
        members = self._runner.endings.members(attempt)
        resident = sum(member.rss_bytes for member in members)
        if resident <= limit:
            return resident
        # Resident sizes count shared pages once per process; the fair share needs a dearer look.
        shares = [proportional_bytes(member.pid) for member in members]
        return sum(
            member.rss_bytes if share is None else share
            for member, share in zip(members, shares, strict=True)
        )


def read_progress(path: bytes) -> tuple[tuple[int, int], str]:
    """((mtime ns, size), last line) of a progress file; ((0, 0), "") without one.

    The file belongs to the attempt: a link, a FIFO or a device in its place is not opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return (0, 0), ""
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return (0, 0), ""
        data = os.pread(fd, PROGRESS_BYTES_MAX, max(0, facts.st_size - PROGRESS_BYTES_MAX))
    except OSError:
        return (0, 0), ""
    finally:
        os.close(fd)
    lines = [line for line in data.splitlines() if line.strip()]
    text = lines[-1].decode(errors="replace").strip()[:PROGRESS_TEXT_MAX] if lines else ""
    return (facts.st_mtime_ns, facts.st_size), text
