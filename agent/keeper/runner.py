"""The life of an attempt: launched, watched, its tree waited for, checked, closed."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable
from typing import Final

from agent.keeper.attempt import Attempt, Phase
from agent.keeper.checks import Checks
from agent.keeper.clock import wall_ms
from agent.keeper.context import Context
from agent.keeper.endings import Endings
from agent.keeper.errors import LaunchFailure
from agent.keeper.finish import (
    close_attempt,
    close_unlaunched,
    drop_unstarted,
    note_status,
    tree_gone,
)
from agent.keeper.freezer import Freezer
from agent.keeper.launching import start_main
from agent.keeper.loop import READ
from agent.keeper.outcome import Exit
from agent.keeper.output import Capture
from agent.keeper.processes import Identity, read_process
from agent.keeper.sweeps import Sweeper

#: Launches in one turn: between them signals, leases and output get their turn.
LAUNCHES_PER_TURN: Final = 8


class Runner:
    """Drives attempts. Loop thread only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queue: deque[Attempt] = deque()
        self._is_launching = False
        self.endings = Endings(context)
        self.freezer = Freezer(context, self.endings)
        self.checks = Checks(context, self.checks_done)
        self.sweeper = Sweeper(context, self.endings, self.on_tree_gone)
        context.reaper.on_reaped = self.sweeper.want

    def enqueue(self, attempt: Attempt) -> None:
        """Launch `attempt`, whose intent is durable, in its turn."""
        self._queue.append(attempt)
        if not self._is_launching:
            self._is_launching = True
            self._context.loop.call_soon(self._launch_some)

    def _launch_some(self) -> None:
        for _ in range(min(LAUNCHES_PER_TURN, len(self._queue))):
            self._launch(self._queue.popleft())
        self._is_launching = bool(self._queue)
        if self._is_launching:
            self._context.loop.call_soon(self._launch_some)

    def _launch(self, attempt: Attempt) -> None:
        context = self._context
        if context.attempts.get(attempt.token) is not attempt:
            return  # voided or ended while it waited
        # Last look before the fork: a keeper that slept must not start what may run elsewhere.
        if not context.leases.is_valid(attempt.token, now_ms=context.loop.now_ms()):
            drop_unstarted(context, attempt, why="its lease ended before it could start")
            return
        try:
            pid = start_main(context, attempt)
        except LaunchFailure as failure:
            for capture in attempt.captures.values():
                capture.finish()
            attempt.captures.clear()
            close_unlaunched(context, attempt, failure.cause, failure.detail)
            return
        self._record_start(attempt, pid)
        self._arm(attempt)

    def _record_start(self, attempt: Attempt, pid: int) -> None:
        context = self._context
        info = read_process(pid)
        ticks = 0 if info is None else info.start_ticks
        attempt.identity = Identity(pid, ticks, context.boot_id)
        attempt.started_at_ms = wall_ms()
        attempt.started_boottime_ms = context.loop.now_ms()
        attempt.progressed_at = attempt.started_boottime_ms
        attempt.phase = Phase.RUNNING
        context.reaper.expect(pid, lambda status, usage: self._on_exit(attempt, status, usage))
        start = attempt.start_facts(context.boot_id)
        record = {
            "start": start,
            "boottime_ms": attempt.started_boottime_ms,
            "pipes": {name: c.pipe_inode for name, c in attempt.captures.items()},
            "group": None if attempt.group is None else attempt.group.facts(),
        }
        event = {"is": "started", "token": attempt.token, "start": start}
        context.ledger.write(attempt.token, "started", record, lambda: context.tell(event))

    def resume(self, attempt: Attempt) -> None:
        """Watch an adopted attempt; one whose lease is over is dealt with in this turn."""
        if attempt.is_frozen:
            self.freezer.hold_again(attempt)
        self._arm(attempt)

    def _arm(self, attempt: Attempt) -> None:
        """Watch a running attempt: output, lease, timeout, stall."""
        self.watch_output(attempt)
        self.freezer.arm_lease(attempt)
        self.endings.arm_limits(attempt)

    def watch_output(self, attempt: Attempt) -> None:
        """Read the attempt's pipes as they fill."""
        for capture in attempt.captures.values():
            if capture.fd >= 0:
                self._context.loop.watch(capture.fd, READ, _pump(self._context, capture))

    def _on_exit(self, attempt: Attempt, status: int, usage: resource.struct_rusage) -> None:
        attempt.status = status
        attempt.ended_at_ms = wall_ms()
        attempt.usage.cpu_ms = round((usage.ru_utime + usage.ru_stime) * 1_000)
        attempt.usage.peak_rss_bytes = usage.ru_maxrss * 1024
        if attempt.phase is Phase.RUNNING:
            attempt.phase = Phase.LINGERING
        attempt.disarm("timeout")
        attempt.disarm("stall")
        self.endings.note_memory(attempt)
        self.sweeper.look_at(attempt)

    def on_tree_gone(self, attempt: Attempt) -> None:
        """No process of it is left: check it if that is due, else close it."""
        if attempt.phase is Phase.STUCK:
            tree_gone(self._context, attempt)
            return
        if attempt.phase not in {Phase.LINGERING, Phase.RUNNING}:
            return
        if self._wants_checks(attempt):
            note_status(self._context, attempt)
            attempt.phase = Phase.CHECKING
            attempt.disarm("lease")
            self.freezer.arm_lease(attempt)
            self.checks.begin(attempt)
            return
        close_attempt(self._context, attempt, is_tree_gone=True)

    def checks_done(self, attempt: Attempt) -> None:
        """The checks ended, whatever they found; what they left is waited for, too."""
        attempt.phase = Phase.LINGERING
        self.sweeper.look_at(attempt)

    def _wants_checks(self, attempt: Attempt) -> bool:
        if attempt.are_checks_done or attempt.status is None:
            return False
        work = attempt.work
        code = Exit.of_status(attempt.status).exit_code
        is_success = code is not None and (code == 0 or code in work.accept_exit)
        is_ending = attempt.ending is not None and attempt.ending.cause != ""
        if is_success and not is_ending and (work.has_file_checks or work.check is not None):
            return True
        # With nothing left to check an end is complete, and a kill that came after it came late.
        attempt.are_checks_done = not (is_success and (work.has_file_checks or work.check))
        return False


def _pump(context: Context, capture: Capture) -> Callable[[int], None]:
    def pump(_events: int) -> None:
        if not capture.pump():
            context.loop.unwatch(capture.fd)
            capture.close()

    return pump
