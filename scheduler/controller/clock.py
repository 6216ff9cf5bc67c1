"""The clocks of a controller, and log time made from them."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the edge may ask the time of."""

    def boottime_ms(self) -> int:
        """Milliseconds since boot, suspended time included. Decides leases, silence, log time."""
        ...

    def wall_ms(self) -> int:
        """Unix time in ms: a label for people; decides nothing."""
        ...


class SystemClock:
    """The host's clocks. Any thread."""

    def boottime_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class LogTime:
    """The log time of a leader: the last one at its takeover plus its own elapsed time.

    Wall clocks take no part, so that a jump of one fires and freezes nothing (specification 2.4).
    """

    __slots__ = ("_base_ms", "_clock", "_since_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base_ms = 0
        self._since_ms = clock.boottime_ms()

    def take_over(self, last_log_time_ms: int) -> None:
        """Count on from the state's clock, taken once everything earlier is applied."""
        self._base_ms = last_log_time_ms
        self._since_ms = self._clock.boottime_ms()

    def now_ms(self) -> int:
        """Log time now; never runs backwards within one leadership."""
        return self._base_ms + self._clock.boottime_ms() - self._since_ms

    def at_boottime(self, boottime_ms: int) -> int:
        """The log time of an earlier moment of this leadership."""
        return self._base_ms + boottime_ms - self._since_ms
