"""A small event loop: descriptors, timers on CLOCK_BOOTTIME, and a hook at the end of each turn.

asyncio is not used: the keeper lives for months beside the jobs, one thread does everything but the
journal's syncs, and a turn is the unit of group commit (`ledger.py`), so the turn must be ours.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
from collections import deque
from collections.abc import Callable
from typing import Final

from agent.keeper.clock import boottime_ms

#: Longest sleep in ms. The kernel's poll does not count suspend but leases do: after a resume a
#: timer must be looked at within this time.
SLEEP_MS_MAX: Final = 1_000

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE


class Timer:
    """A call that is due at `at_ms`; `cancel` is idempotent."""

    __slots__ = ("at_ms", "callback")

    def __init__(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Runs callbacks in one thread. Only `wake` may be called from another."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[int, int, Timer]] = []
        self._order = itertools.count()
        self._soon: deque[Callable[[], None]] = deque()
        self._is_stopping = False
        self._is_hurried = False
        #: When this turn's work began.
        self.turn_began_ms = boottime_ms()
        self.turn_end: list[Callable[[], None]] = []
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self.wake_fd, READ, self._drain_wake)

    def now_ms(self) -> int:
        return boottime_ms()

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback(ready events)` whenever `fd` is ready; replaces an earlier watch of it."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def unwatch(self, fd: int) -> None:
        """Forget `fd`; must happen before it is closed. Idempotent."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Timer:
        timer = Timer(at_ms, callback)
        heapq.heappush(self._timers, (at_ms, next(self._order), timer))
        return timer

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return self.call_at(self.now_ms() + delay_ms, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` in this or the next turn, after what was queued before it."""
        self._soon.append(callback)

    def hurry(self) -> None:
        """Do not sleep before the next end of a turn: its hooks have something to do."""
        self._is_hurried = True

    def wake(self) -> None:
        """End the current sleep. Any thread."""
        os.eventfd_write(self.wake_fd, 1)

    def stop(self) -> None:
        """Let `run` return after this turn."""
        self._is_stopping = True

    def run(self) -> None:
        """Turn until `stop`."""
        while not self._is_stopping:
            self.turn()

    def turn(self, sleep_ms_max: int = SLEEP_MS_MAX) -> None:
        """Wait for something, handle all that is ready, then run the hooks."""
        ready = self._selector.select(self._sleep_ms(sleep_ms_max) / 1_000)
        self.turn_began_ms = self.now_ms()
        for key, events in ready:
            key.data(events)
        self._run_due()
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        self._is_hurried = False
        for hook in self.turn_end:
            hook()

    def close(self) -> None:
        self._selector.close()
        os.close(self.wake_fd)

    def _sleep_ms(self, limit_ms: int) -> int:
        if self._soon or self._is_hurried:
            return 0
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return limit_ms
        return max(0, min(limit_ms, self._timers[0][0] - self.now_ms()))

    def _run_due(self) -> None:
        now_ms = self.now_ms()
        while self._timers and self._timers[0][0] <= now_ms:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()

    def _drain_wake(self, _events: int) -> None:
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return
