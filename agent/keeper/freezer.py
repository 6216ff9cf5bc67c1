"""What happens at a lease's end, and the way back from it.

`frozen` is in the journal before the tree is stopped, `thawed` before it goes on. The journal may
be slow, the lease's end is not: after half of the margin the tree is stopped, whatever the disk
does.
"""

from __future__ import annotations

import signal
from typing import Final

from agent.keeper.attempt import Attempt, Phase
from agent.keeper.context import Context
from agent.keeper.endings import Endings
from agent.keeper.trees import signal_all

#: Rounds of SIGSTOP until no process is found that was not stopped before.
STOP_ROUNDS_MAX: Final = 20
STOP_INTERVAL_MS: Final = 10
_ALIVE: Final = (Phase.RUNNING, Phase.LINGERING, Phase.CHECKING)


class Freezer:
    """Loop thread only."""

    def __init__(self, context: Context, endings: Endings) -> None:
        self._context = context
        self._endings = endings

    def arm_lease(self, attempt: Attempt) -> None:
        """Look again when the lease, as it is now, would end."""
        at_ms = self._context.leases.acts_at_ms(attempt.token)
        attempt.arm(
            "lease", self._context.loop.call_at(at_ms, lambda: self._on_lease_timer(attempt))
        )

    def renewed(self, attempt: Attempt) -> None:
        """The attempt's lease was renewed: thaw it if it is frozen."""
        if attempt.phase not in _ALIVE or not self._is_leased(attempt):
            return
        if attempt.is_frozen:
            self._thaw(attempt)
        elif "lease" not in attempt.timers:
            self.arm_lease(attempt)

    def hold_again(self, attempt: Attempt) -> None:
        """Stop the tree of an adopted attempt that the journal calls frozen."""
        self._hold(attempt)

    def _is_leased(self, attempt: Attempt) -> bool:
        return self._context.leases.is_valid(attempt.token, now_ms=self._context.loop.now_ms())

    def _on_lease_timer(self, attempt: Attempt) -> None:
        if attempt.phase not in _ALIVE or attempt.is_frozen:
            return
        if self._is_leased(attempt):
            self.arm_lease(attempt)
            return
        attempt.disarm("lease")
        margin_ms = self._context.leases.margin_ms
        if attempt.ending is not None:
            self._endings.hasten(attempt)
        elif attempt.work.on_lease_end == "kill":
            self._endings.begin(
                attempt,
                cause="lease_expired",
                detail="no controller renewed its lease",
                grace_ms=min(attempt.work.grace_ms, margin_ms // 2),
            )
        elif attempt.work.on_lease_end == "freeze":
            self._freeze(attempt)

    def _freeze(self, attempt: Attempt) -> None:
        context = self._context
        attempt.frozen_since_ms = context.loop.now_ms()
        attempt.disarm("timeout")
        attempt.disarm("stall")
        record = {"since_boottime_ms": attempt.frozen_since_ms, "total_ms": attempt.frozen_ms}
        context.ledger.write(attempt.token, "frozen", record, lambda: self._hold(attempt))
        delay_ms = context.leases.margin_ms // 2
        attempt.arm("hold", context.loop.call_later(delay_ms, lambda: self._hold(attempt)))

    def _hold(self, attempt: Attempt) -> None:
        if attempt.phase not in _ALIVE or not attempt.is_frozen or "stop" in attempt.timers:
            return
        attempt.disarm("hold")
        if attempt.group is not None and attempt.group.freeze(is_frozen=True):
            self._context.tell({"is": "frozen", "token": attempt.token})
        else:
            self._stop_round(attempt, set(), newer_than_ms=None, rounds=0)

    def _stop_round(
        self,
        attempt: Attempt,
        stopped: set[tuple[int, int]],
        *,
        newer_than_ms: int | None,
        rounds: int,
    ) -> None:
        """SIGSTOP whoever has not got it, and look again until nobody new is found.

        A round at a time, so that many attempts whose leases end together share their looks.
        """
        attempt.disarm("stop")
        if attempt.phase not in _ALIVE or not attempt.is_frozen:
            return
        members = self._endings.members(attempt, newer_than_ms=newer_than_ms)
        fresh = [m for m in members if (m.pid, m.start_ticks) not in stopped]
        if (not fresh and rounds) or rounds == STOP_ROUNDS_MAX:
            self._context.tell({"is": "frozen", "token": attempt.token})
            return
        signal_all(fresh, signal.SIGSTOP)
        stopped |= {(m.pid, m.start_ticks) for m in fresh}
        now_ms = self._context.loop.now_ms()
        timer = self._context.loop.call_later(
            STOP_INTERVAL_MS,
            lambda: self._stop_round(attempt, stopped, newer_than_ms=now_ms, rounds=rounds + 1),
        )
        attempt.arm("stop", timer)

    def _thaw(self, attempt: Attempt) -> None:
        context = self._context
        assert attempt.frozen_since_ms is not None
        span_ms = context.loop.now_ms() - attempt.frozen_since_ms
        attempt.disarm("hold")
        attempt.disarm("stop")
        attempt.frozen_since_ms = None
        attempt.frozen_ms += span_ms
        attempt.thawed_at = context.loop.now_ms()
        record = {"since_boottime_ms": None, "total_ms": attempt.frozen_ms}
        context.ledger.write(attempt.token, "frozen", record, lambda: self._release(attempt))

    def _release(self, attempt: Attempt) -> None:
        if attempt.phase not in _ALIVE or attempt.is_frozen:
            return  # frozen again before the journal was ready
        if attempt.group is None or not attempt.group.freeze(is_frozen=False):
            # As seen just now: one that is missed here would stay stopped for ever.
            members = self._endings.members(attempt, newer_than_ms=attempt.thawed_at)
            signal_all(members, signal.SIGCONT)
        self._context.tell({"is": "thawed", "token": attempt.token})
        self.arm_lease(attempt)
        self._endings.arm_limits(attempt)
        self._endings.go_on(attempt)
