"""Connections that delay, hold back in one direction, lose, repeat and break."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

from replication.messages import RaftMessage
from tests.sim.clock import SimClock

#: Messages on their way in one direction above which the sender is told to hold entries back.
CONGESTED = 30


class SimNetwork:
    """Delivers in order within a connection; a new connection starts empty."""

    def __init__(
        self,
        clock: SimClock,
        rng: random.Random,
        deliver: Callable[[str, str, RaftMessage], None],
        notify: Callable[[str, str, bool], None],
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._deliver = deliver
        self._notify = notify
        self._epochs: dict[frozenset[str], int] = {}
        self._epoch = 0
        self._blocked: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, str], list[RaftMessage]] = defaultdict(list)
        self._last_at: dict[tuple[str, str], float] = defaultdict(float)
        self._flying: dict[tuple[str, str], int] = defaultdict(int)
        self.delay_s = (0.0002, 0.002)
        self.loss_rate = 0.0
        self.repeat_rate = 0.0

    def is_connected(self, a: str, b: str) -> bool:
        return frozenset((a, b)) in self._epochs

    def connect(self, a: str, b: str) -> None:
        if not self.is_connected(a, b):
            self._epoch += 1
            self._epochs[frozenset((a, b))] = self._epoch
            self._tell_both(a, b, is_connected=True)

    def disconnect(self, a: str, b: str) -> None:
        if self.is_connected(a, b):
            del self._epochs[frozenset((a, b))]
            for pair in ((a, b), (b, a)):
                self._held.pop(pair, None)
                self._flying[pair] = 0
            self._tell_both(a, b, is_connected=False)

    def block(self, source: str, target: str) -> None:
        """Nothing arrives in this direction, and nobody notices."""
        self._blocked.add((source, target))

    def unblock_all(self) -> None:
        self._blocked.clear()
        for (source, target), messages in list(self._held.items()):
            del self._held[source, target]
            for message in messages:
                self._fly(source, target, message)

    def send(self, source: str, target: str, message: RaftMessage) -> bool:
        if not self.is_connected(source, target):
            return False
        if (source, target) in self._blocked:
            self._held[source, target].append(message)
        elif self._rng.random() >= self.loss_rate:
            self._fly(source, target, message)
            if self._rng.random() < self.repeat_rate:
                self._fly(source, target, message)
        return True

    def is_congested(self, source: str, target: str) -> bool:
        pair = (source, target)
        return self._flying[pair] + len(self._held.get(pair, ())) > CONGESTED

    def _fly(self, source: str, target: str, message: RaftMessage) -> None:
        pair = (source, target)
        epoch = self._epochs.get(frozenset(pair))
        if epoch is None:
            return
        at = max(self._last_at[pair], self._clock.now() + self._rng.uniform(*self.delay_s))
        self._last_at[pair] = at
        self._flying[pair] += 1

        def arrive() -> None:
            if self._epochs.get(frozenset(pair)) == epoch:
                self._flying[pair] -= 1
                self._deliver(source, target, message)

        self._clock.after(at - self._clock.now(), arrive)

    def _tell_both(self, a: str, b: str, *, is_connected: bool) -> None:
        # Each side notices in its own time; if the state has changed back by then, both changes
        # were told in order anyway.
        for own, peer in ((a, b), (b, a)):
            self._notify(own, peer, is_connected)
