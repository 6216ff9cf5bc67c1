"""One session with a leader: heartbeats, acknowledgements, the guard against stale leaders. Pure.

A session begins with Welcome and ends with its connection. It is *joined* once the rejoin's answer
came; from then on reports flow and orders are taken. What the agent may conclude from silence:

    unanswered for ack_timeout      ask the other controllers who leads (QueryLeader)
    unacknowledged for              say goodbye `reconnect` and dial again, whoever leads:
    heartbeat_timeout               the loss may be in one direction only
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from scheduler.protocol.messages import Seen, Verdict, Welcome

#: Heartbeats go out at an interval shortened by at most this share, so that nodes spread out.
JITTER: Final = 0.1
#: Heartbeats remembered while unanswered; more than the timeouts let accumulate.
UNANSWERED_MAX: Final = 64
#: A list with orders about to start is asked for again after this long.
RELIST_MS: Final = 200
#: The keeper's margin before a lease's end (specification 3.5): max(1 s, 10 % of it).
LEASE_MARGIN_MS_MIN: Final = 1_000
LEASE_MARGIN_DIVISOR: Final = 10


def lease_margin_ms(lease_ms: int) -> int:
    """How long before a lease's end the keeper acts."""
    return max(LEASE_MARGIN_MS_MIN, lease_ms // LEASE_MARGIN_DIVISOR)


@dataclass(slots=True)
class OrderLog:
    """Numbers of the orders of one session: which is the highest below which all are handled."""

    received: int = 0
    _open: set[int] = field(default_factory=set)

    def receive(self, sequence: int) -> None:
        self.received = max(self.received, sequence)
        self._open.add(sequence)

    def finish(self, sequence: int) -> None:
        self._open.discard(sequence)

    @property
    def handled(self) -> int:
        return min(self._open) - 1 if self._open else self.received


@dataclass(slots=True)
class Session:
    """State of one session; loop thread only."""

    number: int
    term: int
    incarnation: str
    leader: str
    heartbeat_interval_ms: int
    heartbeat_timeout_ms: int
    ack_timeout_ms: int
    lease_ms: int
    log_retention_ms: int
    hello_boottime_ms: int
    #: What the agent had been shown before this session. A controller below it is stale: a deposed
    #: leader, or an old backup started by mistake.
    guard: Seen
    #: The controller knows less than the guard: nothing it says is acted on.
    is_stale: bool
    is_joined: bool = False
    #: The controller knows another incarnation than the last one: it gets every retained finish.
    wants_all: bool = False
    #: None | void | list | relist | sent: how far the inventory is.
    inventory: str | None = None
    inventory_sent_ms: int = 0
    relist_at_ms: int = 0
    #: Verdicts of the parts received so far.
    verdicts: list[Verdict] = field(default_factory=list)
    not_renewed: set[str] = field(default_factory=set)
    orders: OrderLog = field(default_factory=OrderLog)
    heartbeat_sequence: int = 0
    #: Sequence of the last acknowledged heartbeat.
    acknowledged: int = 0
    next_heartbeat_ms: int = 0
    last_ack_ms: int = 0
    next_query_ms: int = 0
    #: sequence -> when sent.
    unanswered: dict[int, int] = field(default_factory=dict)

    @classmethod
    def open(
        cls, welcome: Welcome, *, leader: str, hello_boottime_ms: int, guard: Seen, now_ms: int
    ) -> Session:
        """The session that `welcome` begins."""
        return cls(
            number=welcome.session,
            term=welcome.term,
            incarnation=welcome.incarnation,
            leader=leader,
            heartbeat_interval_ms=max(1, welcome.heartbeat_interval_ms),
            heartbeat_timeout_ms=max(1, welcome.heartbeat_timeout_ms),
            ack_timeout_ms=max(1, welcome.ack_timeout_ms),
            lease_ms=welcome.lease_ms,
            log_retention_ms=welcome.log_retention_ms,
            hello_boottime_ms=hello_boottime_ms,
            guard=guard,
            is_stale=welcome.seen < guard,
            wants_all=bool(guard.incarnation) and welcome.incarnation != guard.incarnation,
            last_ack_ms=now_ms,
            next_heartbeat_ms=now_ms + max(1, welcome.heartbeat_interval_ms),
        )

    def knows_less(self, seen: Seen, newest: Seen) -> bool:
        """Whether an order that shows `seen` comes from a controller that knows less than we do.

        Within one incarnation and term only the index shown before this session counts: there the
        leader is one process, whose messages need not carry the newest index in order.
        """
        if seen < self.guard:
            return True
        return (seen.incarnation, seen.term) < (newest.incarnation, newest.term)

    def begin_heartbeat(self, now_ms: int, rng: random.Random) -> int:
        """Number the heartbeat that is sent now, and plan the next."""
        self.heartbeat_sequence += 1
        while len(self.unanswered) >= UNANSWERED_MAX:
            # The oldest stays: it says since when nothing was answered.
            del self.unanswered[next(reversed(self.unanswered))]
        self.unanswered[self.heartbeat_sequence] = now_ms
        interval = self.heartbeat_interval_ms
        self.next_heartbeat_ms = now_ms + max(1, int(interval * (1 - JITTER * rng.random())))
        return self.heartbeat_sequence

    def acknowledge(self, sequence: int, now_ms: int) -> None:
        """Heartbeat `sequence`, and with it every earlier one, is answered."""
        for earlier in [known for known in self.unanswered if known <= sequence]:
            del self.unanswered[earlier]
        self.acknowledged = max(self.acknowledged, sequence)
        self.last_ack_ms = now_ms

    def unanswered_since_ms(self, outbox_oldest_ms: int | None) -> int | None:
        """Since when something sent has no answer; None when all is answered."""
        oldest = [since for since in (outbox_oldest_ms,) if since is not None]
        oldest += list(self.unanswered.values())[:1]
        if self.inventory == "sent":
            oldest.append(self.inventory_sent_ms)
        return min(oldest, default=None)

    def is_query_due(self, now_ms: int, outbox_oldest_ms: int | None) -> bool:
        """Whether to ask the others now; once per ack_timeout while the leader is silent."""
        since = self.unanswered_since_ms(outbox_oldest_ms)
        if since is None or now_ms - since <= self.ack_timeout_ms or now_ms < self.next_query_ms:
            return False
        self.next_query_ms = now_ms + self.ack_timeout_ms
        return True

    def is_unacknowledged(self, now_ms: int) -> bool:
        """Whether the leader has acknowledged nothing for heartbeat_timeout."""
        return now_ms - self.last_ack_ms > self.heartbeat_timeout_ms
