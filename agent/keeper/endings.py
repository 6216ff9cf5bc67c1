"""Ending an attempt: ask, wait for the grace, KILL until its tree is gone, or say it is stuck."""

from __future__ import annotations

import signal
from typing import Final

from agent.keeper.attempt import Attempt, Ending, Phase
from agent.keeper.clock import wall_ms
from agent.keeper.context import Context
from agent.keeper.finish import close_attempt
from agent.keeper.kernel_log import was_killed_for_memory
from agent.keeper.order import signal_number
from agent.keeper.processes import ProcessInfo, waits_on
from agent.keeper.trees import Wanted, describe, signal_all

#: Between two rounds of KILL, in ms: at first, and at most.
KILL_INTERVAL_MS: Final = 20
KILL_INTERVAL_MS_MAX: Final = 1_000
#: After so long under KILL in vain the outcome is told and the tree called stuck.
STUCK_MS: Final = 15_000


class Endings:
    """Loop thread only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.stuck_ms = STUCK_MS

    def members(self, attempt: Attempt, *, newer_than_ms: int | None = None) -> list[ProcessInfo]:
        """Every living process of the attempt, as seen after that moment (None: in this turn).

        Attempts that are ended in one turn share a look. What was forked since is found by the next
        one: signals are sent until nobody is left.
        """
        if newer_than_ms is None:
            turn_ms = self._context.loop.turn_began_ms - 1
            newer_than_ms = max(turn_ms, attempt.started_boottime_ms)
        group = attempt.group
        wanted = Wanted(
            token=attempt.token,
            cluster_id=attempt.cluster_id,
            main=attempt.identity,
            strays=attempt.strays,
            cgroup_pids=(lambda: ()) if group is None else group.pids,
        )
        return self._context.trees.members(wanted, newer_than_ms=newer_than_ms)

    def begin(
        self,
        attempt: Attempt,
        *,
        cause: str,
        detail: str,
        grace_ms: int,
        stop_signal: str | None = None,
    ) -> None:
        """End the attempt's tree: soft signal, `grace_ms`, KILL. Idempotent; it only hastens."""
        if attempt.phase in {Phase.QUEUED, Phase.CLOSING, Phase.STUCK}:
            return
        # An exit that is there to be reaped came before anything we do now.
        self._context.reaper.reap()
        if attempt.phase in {Phase.CLOSING, Phase.STUCK}:
            return
        kill_at_ms = self._context.loop.now_ms() + grace_ms
        ending = attempt.ending
        if ending is None:
            attempt.ending = ending = Ending(
                cause=cause,
                detail=detail,
                soft_signal=signal_number(stop_signal or attempt.work.stop_signal),
                grace_ms=grace_ms,
                kill_at_ms=kill_at_ms,
                is_after_exit=attempt.status is not None,
            )
        else:
            if not ending.cause:
                ending.cause, ending.detail = cause, detail
            ending.grace_ms = min(ending.grace_ms, grace_ms)
            ending.kill_at_ms = min(ending.kill_at_ms, kill_at_ms)
        self._step(attempt)

    def begin_again(self, attempt: Attempt) -> None:
        """Go on killing the tree of an attempt whose finish was told while it still lived."""
        attempt.ending = Ending(
            cause="",
            detail="",
            soft_signal=signal.SIGTERM,
            grace_ms=0,
            kill_at_ms=0,
            is_after_exit=True,
        )
        self._step(attempt)

    def hasten(self, attempt: Attempt) -> None:
        """KILL now what is being ended already."""
        if attempt.ending is not None:
            attempt.ending.kill_at_ms = min(attempt.ending.kill_at_ms, self._context.loop.now_ms())
            self._step(attempt)

    def go_on(self, attempt: Attempt) -> None:
        """Take the next step of an end that waited for a thaw: the grace begins now."""
        ending = attempt.ending
        if ending is not None:
            if not ending.is_soft_sent and not ending.killing_since_ms:
                ending.kill_at_ms = self._context.loop.now_ms() + ending.grace_ms
            self._step(attempt)

    def arm_limits(self, attempt: Attempt) -> None:
        """(Re)start the timers of `timeout` and `stall_timeout`; frozen time does not count."""
        work, loop = attempt.work, self._context.loop
        if attempt.phase is not Phase.RUNNING or attempt.is_frozen:
            return
        if work.timeout_ms is not None:
            at_ms = attempt.started_boottime_ms + work.timeout_ms + attempt.frozen_ms
            attempt.arm("timeout", loop.call_at(at_ms, lambda: self._on_timeout(attempt)))
        if work.stall_timeout_ms is not None:
            at_ms = self._last_sign_ms(attempt) + work.stall_timeout_ms
            attempt.arm("stall", loop.call_at(at_ms, lambda: self._on_stall(attempt)))

    def note_memory(self, attempt: Attempt) -> None:
        """Ask the kernel whether it killed for memory; only its own record counts."""
        group = attempt.group
        if group is not None:
            attempt.was_oom = group.oom_kills() > 0
            attempt.usage.peak_rss_bytes = (
                max(attempt.usage.peak_rss_bytes or 0, group.peak_bytes() or 0) or None
            )
        status, identity = attempt.status, attempt.identity
        if status is None or identity is None or attempt.was_oom or attempt.was_signalled:
            return
        if status & 0x7F == signal.SIGKILL:
            attempt.was_oom = was_killed_for_memory(identity)

    def _on_timeout(self, attempt: Attempt) -> None:
        self.begin(
            attempt,
            cause="timeout",
            detail=f"ran past its timeout of {attempt.work.timeout_ms} ms",
            grace_ms=attempt.work.grace_ms,
        )

    def _on_stall(self, attempt: Attempt) -> None:
        limit_ms = attempt.work.stall_timeout_ms
        assert limit_ms is not None
        if self._context.loop.now_ms() < self._last_sign_ms(attempt) + limit_ms:
            self.arm_limits(attempt)
            return
        self.begin(
            attempt,
            cause="stalled",
            detail=f"no output and no progress for {limit_ms} ms",
            grace_ms=attempt.work.grace_ms,
        )

    def _last_sign_ms(self, attempt: Attempt) -> int:
        signs = [capture.wrote_at_ms for capture in attempt.captures.values()]
        return max([attempt.progressed_at, attempt.thawed_at, *signs])

    def _step(self, attempt: Attempt) -> None:
        """Send what is due and arm the timer for what comes next."""
        ending, loop = attempt.ending, self._context.loop
        if ending is None or attempt.phase is Phase.CLOSING:
            return
        if ending.timer is not None:
            ending.timer.cancel()
        now_ms = loop.now_ms()
        if now_ms >= ending.kill_at_ms:
            delay_ms = self._kill_round(attempt, ending, now_ms)
        else:
            delay_ms = ending.kill_at_ms - now_ms
            # A stopped tree cannot act on a signal: it waits for the thaw, at most for the grace.
            if not ending.is_soft_sent and not attempt.is_frozen:
                ending.is_soft_sent = True
                self._ask(attempt, ending)
        ending.timer = loop.call_later(delay_ms, lambda: self._step(attempt))

    def ask_strays(self, attempt: Attempt) -> None:
        """Send the soft signal to strays that were forked while it was sent to the others."""
        ending = attempt.ending
        if ending is None or not ending.is_soft_sent or ending.killing_since_ms:
            return
        if not ending.asked.issuperset(attempt.strays.items()):
            self._ask(attempt, ending)

    def _ask(self, attempt: Attempt, ending: Ending) -> None:
        members = [m for m in self.members(attempt) if (m.pid, m.start_ticks) not in ending.asked]
        ending.asked |= {(m.pid, m.start_ticks) for m in members} | set(attempt.strays.items())
        self._signal(attempt, members, ending.soft_signal)

    def _kill_round(self, attempt: Attempt, ending: Ending, now_ms: int) -> int:
        """KILL the whole tree; returns after how many ms to look again."""
        if attempt.group is not None:
            attempt.group.kill()
        seen_since_ms = ending.killed_at_ms if ending.killing_since_ms else None
        members = self.members(attempt, newer_than_ms=seen_since_ms)
        self._signal(attempt, members, signal.SIGKILL)
        ending.killing_since_ms = ending.killing_since_ms or now_ms
        ending.killed_at_ms = self._context.loop.now_ms()
        ending.kills_sent += 1
        if members and now_ms - ending.killing_since_ms >= self.stuck_ms:
            self._call_stuck(attempt, members)
        self._context.loop.call_soon(self._context.reaper.on_reaped)
        return min(KILL_INTERVAL_MS_MAX, KILL_INTERVAL_MS << min(ending.kills_sent - 1, 6))

    def _signal(self, attempt: Attempt, members: list[ProcessInfo], number: int) -> int:
        reached = signal_all(members, number)
        if reached and attempt.status is None:
            attempt.was_signalled = True
        return reached

    def _call_stuck(self, attempt: Attempt, members: list[ProcessInfo]) -> None:
        if attempt.phase is Phase.STUCK:
            return
        attempt.cleanup = attempt.cleanup or "stuck"
        attempt.ended_at_ms = attempt.ended_at_ms or wall_ms()
        where = f"cannot be killed: {describe(members[:20], waits_on)}"
        detail = attempt.ending.detail if attempt.ending is not None else ""
        text = f"{detail}; {where}" if detail else where
        close_attempt(self._context, attempt, is_tree_gone=False, detail=text)
