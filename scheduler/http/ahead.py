"""A stream read one item ahead, so that its answer can tell "nothing yet" from "the next one"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Owns `source` and the task that waits for its next item; `close` ends both."""

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source
        self._task: asyncio.Task[T | None] | None = None

    async def is_ready(self, wait_s: float) -> bool:
        """Whether `next` would return or raise at once; waits up to `wait_s` for it."""
        if self._task is None:
            self._task = asyncio.create_task(self._step())
        if wait_s <= 0:
            await asyncio.sleep(0)  # lets the step run: what is at hand is taken without a wait
            return self._task.done()
        done, _ = await asyncio.wait({self._task}, timeout=wait_s)
        return bool(done)

    def raise_if_failed(self) -> None:
        """Raise what the next `next` would raise, when that is known already."""
        if self._task is not None and self._task.done() and self._task.exception() is not None:
            self._task.result()

    async def next(self) -> T | None:
        """The next item; None at the end. Raises what the source raises."""
        if self._task is None:
            return await self._step()
        item = await self._task
        self._task = None
        return item

    async def close(self) -> None:
        """Stop waiting and close the source. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            # The reader is gone: whatever the source would have said is for nobody.
            await asyncio.gather(task, return_exceptions=True)
        aclose = getattr(self._source, "aclose", None)
        if aclose is not None:
            await aclose()

    async def _step(self) -> T | None:
        try:
            return await anext(self._source)
        except StopAsyncIteration:
            return None
