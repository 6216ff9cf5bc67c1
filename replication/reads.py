"""Linearizable reads without writing: ReadIndex.

A leader may have been deposed without knowing. So before it answers a read it notes its commit
index and asks the others whether they still follow it: a broadcast has a number, and an answer to
it in the same term proves that its sender had no other leader after the broadcast was sent. With a
majority of such answers, the noted index covers every write that was acknowledged anywhere before
the read came.

Reads share rounds: those that come while one is under way wait for the next. A new leader first
commits an entry of its own term (its no-op): only then is its commit index known to be complete.
Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from replication.core import RaftCore
from replication.errors import LeadershipLost, NotLeader, OutcomeUnknown, Overloaded

ReadDone = Callable[[int | Exception], None]

#: Reads that wait for a round; over it they are refused.
READS_MAX: Final = 16_384


@dataclass(slots=True)
class _Round:
    number: int
    term: int
    commit_index: int
    reads: list[tuple[ReadDone, float]]


class ReadIndex:
    """The leader's side; a follower asks its leader over the side channel."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._waiting: list[tuple[ReadDone, float]] = []
        self._round: _Round | None = None
        self._echoed: dict[str, int] = {}

    def request(self, done: ReadDone, *, leader: str | None, deadline: float) -> None:
        """Call `done` with an index that is safe to read at once it is applied, or the refusal."""
        if not self._core.is_leading:
            done(NotLeader(leader))
        elif len(self._waiting) >= READS_MAX:
            done(Overloaded("too many reads wait", retry_after_s=1.0))
        else:
            self._waiting.append((done, deadline))

    def note_echo(self, member: str, number: int) -> None:
        """A counting member answered broadcast `number` in the current term."""
        if number > self._echoed.get(member, 0):
            self._echoed[member] = number

    def advance(self) -> None:
        """Confirm the round under way and start the next; called each turn of the pump."""
        core = self._core
        current = self._round
        if current is not None and (not core.is_leading or core.term != current.term):
            self.fail(LeadershipLost("the leader changed during the read"))
            return
        if not core.is_leading:
            if self._waiting:
                self.fail(LeadershipLost("the leader changed before the read"))
            return
        if current is not None and self._is_confirmed(current.number):
            self._round = None
            for done, _ in current.reads:
                done(current.commit_index)
        if self._round is None and self._waiting and self._has_committed_own_term():
            self._start()

    def _start(self) -> None:
        core = self._core
        reads, self._waiting = self._waiting, []
        commit_index = core.commit_index
        self._round = _Round(core.broadcast(wants_echo=True), core.term, commit_index, reads)
        if self._is_confirmed(self._round.number):
            self.advance()  # a single member is its own majority

    def _is_confirmed(self, number: int) -> bool:
        members = len(self._core.nodes) + 1
        echoes = sum(1 for echoed in self._echoed.values() if echoed >= number)
        return echoes + 1 > members // 2

    def _has_committed_own_term(self) -> bool:
        core = self._core
        return core.journal.term_at(core.commit_index) == core.term

    def expire(self, now: float) -> None:
        """Give up the reads that nobody confirmed in time."""
        overdue = [read for read in self._waiting if read[1] <= now]
        if overdue:
            self._waiting = [read for read in self._waiting if read[1] > now]
        if self._round is not None:
            overdue += [read for read in self._round.reads if read[1] <= now]
            self._round.reads = [read for read in self._round.reads if read[1] > now]
        for done, _ in overdue:
            done(OutcomeUnknown("no majority confirmed the read in time"))

    def fail(self, error: Exception) -> None:
        """End every waiting read with `error`."""
        reads, self._waiting = self._waiting, []
        if self._round is not None:
            reads += self._round.reads
            self._round = None
        for done, _ in reads:
            done(error)
