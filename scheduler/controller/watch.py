"""Events as they are applied, for watchers that follow at their own pace.

A bounded ring in memory: a watcher that falls out of it gets `Lagged` with the index to go on from.
It begins empty at each start of the process; older events are asked for by object (history).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from scheduler.controller.errors import Lagged

#: Events kept for watchers: some seconds of the fastest log.
EVENTS_MAX: Final = 20_000

View = dict[str, Any]


class EventHub:
    """Event loop only."""

    def __init__(
        self, *, render: Callable[[Any], View] = dict, events_max: int = EVENTS_MAX
    ) -> None:
        #: Makes what watchers get of an event; asked only where somebody watches.
        self._render = render
        self._ring: deque[tuple[int, Any]] = deque()
        self._events_max = events_max
        #: Number of events that ever left the ring: position p of the stream is ring[p - dropped].
        self._dropped = 0
        #: All events with a greater index are in the ring.
        self._complete_after = 0
        self._news = asyncio.Event()
        self._is_closed = False

    def publish(self, index: int, events: Sequence[Any]) -> None:
        """Add what one entry brought; wakes the watchers."""
        for event in events:
            self._ring.append((index, event))
        while len(self._ring) > self._events_max:
            dropped_index, _ = self._ring.popleft()
            self._dropped += 1
            self._complete_after = dropped_index
        news, self._news = self._news, asyncio.Event()
        news.set()

    def restart(self, index: int) -> None:
        """The state was replaced by a snapshot at `index`: what came before is not known here."""
        self._dropped += len(self._ring)
        self._ring.clear()
        self._complete_after = index
        self.publish(index, ())

    def close(self) -> None:
        """End all watchers."""
        self._is_closed = True
        self.publish(0, ())

    async def watch(self, after_index: int) -> AsyncIterator[View]:
        """Events of entries after `after_index`, for ever. Raises Lagged.

        An index older than this process (or ring) knows of raises Lagged at once.
        """
        if after_index < self._complete_after:
            raise Lagged(self._complete_after)
        position = self._dropped + self._first_after(after_index)
        while not self._is_closed:
            if position < self._dropped:
                raise Lagged(self._complete_after)
            if position - self._dropped < len(self._ring):
                _, event = self._ring[position - self._dropped]
                position += 1
                yield self._render(event)
                continue
            await self._news.wait()

    def _first_after(self, index: int) -> int:
        """Place in the ring of the first event of an entry after `index`."""
        place = len(self._ring)
        for held_index, _ in reversed(self._ring):
            if held_index <= index:
                break
            place -= 1
        return place
