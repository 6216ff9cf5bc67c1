"""The keeper's clocks: one that decides, one that only labels."""

from __future__ import annotations

import time


def boottime_ms() -> int:
    """CLOCK_BOOTTIME in ms: counts suspend, never jumps; all that is decided is decided by it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Unix ms, a label for people."""
    return time.time_ns() // 1_000_000
