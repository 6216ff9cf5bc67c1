"""Virtual time: a heap of events, and the pump's runtime on it."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable


class SimClock:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self.now_s

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), event))

    def run_until(self, end_s: float, *, is_over: Callable[[], bool] = lambda: False) -> None:
        """Run events in order until virtual `end_s`, or until `is_over`."""
        while self._events and self._events[0][0] <= end_s and not is_over():
            at, _, event = heapq.heappop(self._events)
            self.now_s = max(self.now_s, at)
            event()
        if not is_over():
            self.now_s = max(self.now_s, end_s)


class SimRuntime:
    """Dies with its member: what a crashed process had scheduled never runs."""

    def __init__(self, clock: SimClock, rng: random.Random, sync_s: tuple[float, float]) -> None:
        self._clock = clock
        self._rng = rng
        self._sync_s = sync_s
        self.is_alive = True

    def now(self) -> float:
        return self._clock.now()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._later(0.0, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._later(delay_s, callback)

    def run_in_worker(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        def write() -> None:
            error: BaseException | None = None
            try:
                work()
            except Exception as raised:
                error = raised
            self._later(0.0001, lambda: done(error))

        self._later(self._rng.uniform(*self._sync_s), write)

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._clock.after(delay_s, lambda: callback() if self.is_alive else None)
