"""What must hold, checked as it happens. The first violation ends a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from replication.errors import Certainty, ProposalError
from replication.interface import Applied
from tests.sim.disk import Image


@dataclass(slots=True)
class Oracle:
    violations: list[str] = field(default_factory=list)
    #: Index to (term, payload) as first applied anywhere.
    applied: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    acked: dict[bytes, Applied] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    #: Unresolved proposals, to the time they are due and the member that took them.
    pending: dict[bytes, tuple[float, str]] = field(default_factory=dict)
    acked_index: int = 0
    reads: int = 0

    def report(self, what: str) -> None:
        self.violations.append(what)

    def note_applied(
        self, member: str, index: int, term: int, payload: bytes, disks: dict[str, Image] | None
    ) -> None:
        """`disks` to check that the first apply comes after a majority has the entry on disk."""
        known = self.applied.get(index)
        if known is None:
            self.applied[index] = (term, payload)
            if disks is not None:
                holders = sum(1 for disk in disks.values() if disk.holds(index, term))
                if 2 * holders <= len(disks):
                    self.report(f"NOT-DURABLE: entry {index} applied by {member}: {holders} disks")
        elif known != (term, payload):
            self.report(f"STATE-MACHINE-SAFETY: entry {index} differs on {member}")

    def note_leader(self, member: str, term: int, disk_entries: dict[int, int], base: int) -> None:
        """`disk_entries` is the new leader's log, index to term; `base` is in its snapshot."""
        known = self.leaders.setdefault(term, member)
        if known != member:
            self.report(f"TWO-LEADERS: {known} and {member} in term {term}")
        for index, (entry_term, _) in self.applied.items():
            # An entry of a later term may be committed before this late leader is noticed.
            if index > base and entry_term <= term and disk_entries.get(index) != entry_term:
                self.report(f"LEADER-COMPLETENESS: {member} of term {term} lacks entry {index}")
                return

    def note_outcome(self, payload: bytes, outcome: Applied | Exception) -> None:
        if payload not in self.pending:
            self.report(f"RESOLVED-TWICE: {name_of(payload)}")
            return
        del self.pending[payload]
        if isinstance(outcome, Applied):
            self.acked[payload] = outcome
            self.acked_index = max(self.acked_index, outcome.index)
        elif not isinstance(outcome, ProposalError):
            self.report(f"UNTYPED-OUTCOME: {outcome!r}")
        elif outcome.certainty is Certainty.NOT_APPLIED:
            self.refused.add(payload)

    def note_read(self, must_cover: int, outcome: int | Exception) -> None:
        if isinstance(outcome, int):
            self.reads += 1
            if outcome < must_cover:
                self.report(f"STALE-READ: index {outcome} misses acknowledged {must_cover}")

    def check_overdue(self, now: float) -> None:
        for payload, (due, member) in self.pending.items():
            if now > due:
                self.report(f"UNRESOLVED: {name_of(payload)} on {member}")
                return

    def note_death(self, member: str) -> None:
        """The process died with the callers of its proposals: they hear nothing more."""
        self.pending = {p: entry for p, entry in self.pending.items() if entry[1] != member}

    def check_end(self, states: dict[str, list[bytes]]) -> None:
        """After healing and convergence: `states` are the members' applied commands."""
        first = next(iter(states.values()))
        for member, state in states.items():
            if state != first:
                self.report(f"STATE-DIVERGED: {member}")
        present = set(first)
        if len(present) != len(first):
            self.report("APPLIED-TWICE")
        for payload in self.acked:
            if payload not in present:
                self.report(f"ACKED-LOST: {name_of(payload)}")
                return
        for payload in self.refused & present:
            self.report(f"REFUSED-BUT-APPLIED: {name_of(payload)}")
            return


def name_of(payload: bytes) -> str:
    """A command without its padding."""
    return payload.rstrip(b"\0").decode()
