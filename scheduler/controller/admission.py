"""How fast new sessions are taken in: a takeover with 2,000 agents must not flood the leader (B8).

Who comes too early is told when to come back, and that slot is kept for it: everybody is in after
at most two dials, however many dial at once.
"""

from __future__ import annotations

from typing import Final

#: Sessions taken in per second, in the long run: 2,000 nodes are in after 8 s.
ADMISSIONS_PER_S: Final = 250
#: Sessions taken in at once.
ADMISSIONS_BURST: Final = 100
#: Joins that are proposed and not answered yet, at most.
JOINS_IN_FLIGHT_MAX: Final = 200
#: Appointments kept; beyond them callers are sent away for the longest time, without one.
APPOINTMENTS_MAX: Final = 4_000
#: No appointment is nearer than this: a dial costs a TLS handshake on both sides.
COME_BACK_MS_MIN: Final = 200
#: Given to callers without an appointment.
COME_BACK_MS_MAX: Final = 15_000
#: An appointment lapses this long after its time.
LAPSE_MS: Final = 10_000


class Admission:
    """Times in ms of one monotonic clock. Event loop."""

    __slots__ = ("_appointments", "_burst", "_next_free_ms", "_slot_ms", "in_flight")

    def __init__(self, *, per_s: int = ADMISSIONS_PER_S, burst: int = ADMISSIONS_BURST) -> None:
        self._slot_ms = 1000 / per_s
        self._burst = burst
        #: When the next slot is free; up to `burst` slots lie unused in the past.
        self._next_free_ms = float("-inf")
        #: Caller -> time of its slot.
        self._appointments: dict[str, float] = {}
        #: Counted by the caller: joins proposed and not answered yet.
        self.in_flight = 0

    def ask(self, caller: str, now_ms: int) -> int:
        """0 when `caller` may come in now, else in how many ms it should come back."""
        if self.in_flight >= JOINS_IN_FLIGHT_MAX:
            return COME_BACK_MS_MIN
        kept_ms = self._appointments.get(caller)
        if kept_ms is not None:
            if now_ms < kept_ms:
                return max(1, int(kept_ms - now_ms))
            del self._appointments[caller]
            if now_ms - kept_ms <= LAPSE_MS:
                return 0
        earliest_ms = now_ms - (self._burst - 1) * self._slot_ms
        slot_ms = max(self._next_free_ms, earliest_ms)
        if slot_ms <= now_ms:
            self._next_free_ms = slot_ms + self._slot_ms
            return 0
        if len(self._appointments) >= APPOINTMENTS_MAX and not self._forget_lapsed(now_ms):
            return COME_BACK_MS_MAX
        self._next_free_ms = slot_ms + self._slot_ms
        wait_ms = max(COME_BACK_MS_MIN, int(slot_ms - now_ms) + 1)
        self._appointments[caller] = now_ms + wait_ms
        return wait_ms

    def _forget_lapsed(self, now_ms: int) -> bool:
        before = len(self._appointments)
        self._appointments = {
            caller: at_ms
            for caller, at_ms in self._appointments.items()
            if now_ms - at_ms <= LAPSE_MS
        }
        return len(self._appointments) < before
