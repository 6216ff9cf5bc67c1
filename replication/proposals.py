"""Proposals on their way: waiting to be appended, then in the log until they are applied.

Every proposal resolves exactly once: with its result, as not applied (never appended, or its slot
was taken by another entry), or as unknown (deadline, leader change, this member stops).
Event loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from replication.config import ReplicationConfig
from replication.entries import COMMAND_BYTES_MAX
from replication.errors import (
    CommandTooLarge,
    Discarded,
    LeadershipLost,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    ProposalError,
)
from replication.interface import Applied

Done = Callable[[Applied | Exception], None]

#: What a refused proposer is asked to wait: about the time a full queue takes to drain.
RETRY_AFTER_S: Final = 1.0


@dataclass(slots=True)
class Waiting:
    """Accepted, not appended yet."""

    command: bytes
    done: Done
    deadline: float
    is_urgent: bool = False


@dataclass(slots=True)
class InFlight:
    """Appended at an index in `term`; its fate is known when that index is applied."""

    term: int
    done: Done
    deadline: float


class Proposals:
    """The bounded tables of one member's proposals."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._config = config
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._in_flight: dict[int, InFlight] = {}
        #: When to give up the proposals of a lost leadership; None while leading.
        self._give_up_at: float | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def refusal(self, command: bytes) -> ProposalError | None:
        """Why `command` cannot be accepted now; None when it can."""
        if len(command) > COMMAND_BYTES_MAX:
            return CommandTooLarge(f"{len(command)} bytes; at most {COMMAND_BYTES_MAX} fit")
        if len(self._waiting) >= self._config.queue_entries_max:
            return Overloaded("the proposal queue is full", retry_after_s=RETRY_AFTER_S)
        if self._waiting_bytes + len(command) > self._config.queue_bytes_max:
            return Overloaded("the proposal queue is full", retry_after_s=RETRY_AFTER_S)
        if len(self._in_flight) >= self._config.inflight_entries_max:
            return Overloaded("too many proposals are uncommitted", retry_after_s=RETRY_AFTER_S)
        return None

    def add(self, command: bytes, done: Done, *, deadline: float, is_urgent: bool = False) -> None:
        self._waiting.append(Waiting(command, done, deadline, is_urgent))
        self._waiting_bytes += len(command)

    def take(self) -> Waiting | None:
        """The next proposal to append."""
        if not self._waiting:
            return None
        proposal = self._waiting.popleft()
        self._waiting_bytes -= len(proposal.command)
        return proposal

    def put_back(self, proposal: Waiting) -> None:
        self._waiting.appendleft(proposal)
        self._waiting_bytes += len(proposal.command)

    def note_appended(self, proposal: Waiting, *, index: int, term: int) -> None:
        displaced = self._in_flight.pop(index, None)
        self._in_flight[index] = InFlight(term, proposal.done, proposal.deadline)
        if displaced is not None:
            # The slot was truncated and appended to again. A member that still has the earlier
            # entry may yet win an election and commit that one.
            displaced.done(LeadershipLost("the entry was displaced after a leader change"))

    def resolve_applied(self, index: int, term: int, result: object) -> None:
        """The entry (index, term) was applied here."""
        proposal = self._in_flight.pop(index, None)
        if proposal is None:
            return
        if proposal.term == term:
            proposal.done(Applied(index, term, result))
        else:
            proposal.done(Discarded(f"entry {index} was taken by term {term}"))

    def resolve_jumped(self, index: int) -> None:
        """A snapshot replaced everything up to `index`: what is in it is not known one by one."""
        for jumped in [i for i in self._in_flight if i <= index]:
            self._in_flight.pop(jumped).done(
                LeadershipLost("a snapshot of another leader covers the entry")
            )

    def note_leading(self) -> None:
        self._give_up_at = None

    def note_deposed(self, leader: str | None, *, now: float) -> None:
        """This member no longer leads: queued proposals were never appended; the others get a
        moment to be committed or displaced by the new leader before they count as unknown."""
        while (proposal := self.take()) is not None:
            proposal.done(NotLeader(leader))
        self._give_up_at = now + 2 * self._config.election_timeout_max_ms / 1000

    def expire(self, now: float) -> None:
        """Resolve what is past its deadline."""
        is_given_up = self._give_up_at is not None and now >= self._give_up_at
        while self._waiting and self._waiting[0].deadline <= now:
            proposal = self.take()
            assert proposal is not None
            proposal.done(Overloaded("not appended in time", retry_after_s=RETRY_AFTER_S))
        # Indexes and deadlines grow together, so the first live one ends the scan.
        for index, in_flight in (
            list(self._in_flight.items()) if is_given_up else self._overdue(now)
        ):
            del self._in_flight[index]
            if is_given_up:
                in_flight.done(LeadershipLost("the leader changed while the entry was in flight"))
            else:
                in_flight.done(OutcomeUnknown("the deadline passed"))

    def _overdue(self, now: float) -> list[tuple[int, InFlight]]:
        overdue = []
        for index, proposal in self._in_flight.items():
            if proposal.deadline > now:
                break
            overdue.append((index, proposal))
        return overdue

    def fail_all(self, reason: str) -> None:
        """This member stops."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        in_flight, self._in_flight = self._in_flight, {}
        for queued in waiting:
            queued.done(OutcomeUnknown(reason))
        for appended in in_flight.values():
            appended.done(OutcomeUnknown(reason))
