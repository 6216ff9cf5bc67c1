"""Which controller to dial next, and when: pure.

One after the other, beginning where the last leader was said to be. A round in which nobody took
the node in is followed by a full-jitter wait that doubles up to BACKOFF_MS_MAX.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

BACKOFF_MS: Final = 100
BACKOFF_MS_MAX: Final = 5_000
#: Redirects followed at once; more in a row mean that the controllers disagree about the leader.
REDIRECTS_MAX: Final = 3
#: Longest `come back` that is obeyed, in ms: a wrong one must not keep a node out.
COME_BACK_MS_MAX: Final = 60_000
_DOUBLINGS_MAX: Final = 16


class Dial(NamedTuple):
    """The next thing to try."""

    address: str
    delay_ms: int


class Dialer:
    """Loop thread only."""

    def __init__(self, addresses: tuple[str, ...], rng: random.Random) -> None:
        assert addresses
        self._addresses = addresses
        self._rng = rng
        self._at = rng.randrange(len(addresses))
        self._preferred = ""
        self._delay_ms = 0
        self._misses = 0
        self._redirects = 0

    def next(self) -> Dial:
        """Where to dial now, after `delay_ms`."""
        delay, self._delay_ms = self._delay_ms, 0
        if self._preferred:
            address, self._preferred = self._preferred, ""
            return Dial(address, delay)
        self._at = (self._at + 1) % len(self._addresses)
        return Dial(self._addresses[self._at], delay)

    @property
    def is_directed(self) -> bool:
        """Whether it is known where to dial next."""
        return bool(self._preferred)

    def others(self, address: str) -> tuple[str, ...]:
        """All known controllers but the one at `address`."""
        return tuple(other for other in self._addresses if other != address)

    def prefer(self, address: str) -> None:
        """Dial `address` next: another controller says that the leader is there."""
        self._preferred = address

    def miss(self) -> None:
        """Unreachable, silent, or it knows no leader."""
        self._redirects = 0
        self._misses += 1
        rounds, rest = divmod(self._misses, len(self._addresses))
        if rest == 0:
            longest = min(BACKOFF_MS_MAX, BACKOFF_MS << min(rounds, _DOUBLINGS_MAX))
            self._delay_ms = self._rng.randrange(longest)

    def redirect(self, address: str) -> None:
        """A follower named the leader's address; empty when it knows none."""
        self._redirects += 1
        if not address or self._redirects > REDIRECTS_MAX:
            self.miss()
        else:
            self._preferred = address

    def come_back(self, address: str, after_ms: int) -> None:
        """The leader is at `address` and has no room before `after_ms`."""
        self._preferred = address
        self._delay_ms = min(max(0, after_ms), COME_BACK_MS_MAX)

    def welcomed(self, address: str) -> None:
        """Taken in; after the next loss the same leader is dialled first."""
        self._misses = self._redirects = 0
        self._preferred = address

    def lost(self) -> None:
        """A session ended: spread the nodes of a lost leader before they dial again."""
        self._delay_ms = max(self._delay_ms, self._rng.randrange(BACKOFF_MS))
