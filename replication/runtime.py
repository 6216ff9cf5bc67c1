"""What the pump needs of the world: a clock, later calls and a worker for blocking work.

The real one stands on an asyncio loop; the simulator has its own, in virtual time. Everything is
called on one thread; only `work` runs elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from pysyncobj.monotonic import monotonic


class Runtime(Protocol):
    """See the module."""

    def now(self) -> float:
        """Seconds on the clock that the core uses."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None: ...

    def run_in_worker(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        """Run `work` off the loop, one at a time and in order; then `done` on the loop."""
        ...


class AsyncioRuntime:
    """On the running loop, with one worker thread for syncs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="log-sync")
        self._is_closed = False

    def now(self) -> float:
        return float(monotonic())

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, callback)

    def run_in_worker(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        def tell(future: Future[None]) -> None:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(done, future.exception())

        self._worker.submit(work).add_done_callback(tell)

    def close(self) -> None:
        """Wait for the work in hand; nothing is called back after this."""
        self._is_closed = True
        self._worker.shutdown(wait=True)
