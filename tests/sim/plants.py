"""Bugs that the simulator must find: each undoes one cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from replication import guard as guard_module
from replication.elections import Elections
from replication.guard import Guard, Matched
from replication.journal import WalJournal
from replication.messages import AppendAck, AppendEntries
from replication.reads import ReadIndex
from tests.sim.disk import Image, SimStorage
from tests.sim.member import SimMember


def _ack_before_sync() -> dict[tuple[object, str], object]:
    def durable_index(self: WalJournal) -> int:
        return self.storage.last_index

    return {(WalJournal, "durable_index"): property(durable_index)}


def _count_stale_acks() -> dict[tuple[object, str], object]:
    original = Guard._receive_ack

    def receive(self: Guard, member: str, message: AppendAck) -> None:
        if message.term < self._core.term and message.match_index <= self._journal.last_index:
            message = AppendAck(
                self._core.term, message.match_index, message.next_index, *_tail(message)
            )
        original(self, member, message)

    def _tail(message: AppendAck) -> tuple[bool, int, bool, int]:
        return message.needs_reset, message.round, message.is_joining, message.applied_index

    return {(Guard, "_receive_ack"): receive}


def _truncate_on_match() -> dict[tuple[object, str], object]:
    original = guard_module.check_append

    def check(journal: WalJournal, message: AppendEntries) -> object:
        verdict = original(journal, message)
        if isinstance(verdict, Matched) and message.entries and not verdict.new:
            return Matched(message.prev_index, message.prev_term, message.entries)
        return verdict

    return {(guard_module, "check_append"): check}


def _commit_unverified() -> dict[tuple[object, str], object]:
    original = Guard._follow

    def follow(self: Guard, leader: str, term: int) -> bool:
        accepted = original(self, leader, term)
        if accepted:
            last = self._journal.last_index
            self._core.feed(leader, {"type": "append_entries", "term": term, "commit_index": last})
        return accepted

    return {(Guard, "_follow"): follow}


def _forget_votes() -> dict[tuple[object, str], object]:
    def set_hard_state(self: SimStorage, term: int, voted_for: str | None) -> None:
        self.disk.term, self.disk.voted_for = term, None

    return {(SimStorage, "set_hard_state"): set_hard_state}


def _count_repeated_votes() -> dict[tuple[object, str], object]:
    original = Elections.receive_vote

    def receive(self: Elections, member: str, message: object) -> None:
        self._voters = set()
        original(self, member, message)  # type: ignore[arg-type]

    return {(Elections, "receive_vote"): receive}


def _count_joiners() -> dict[tuple[object, str], object]:
    def wipe(self: SimMember) -> None:
        self.crash()
        self.disk = Image()

    return {(SimMember, "wipe"): wipe}


def _read_without_round() -> dict[tuple[object, str], object]:
    return {(ReadIndex, "_is_confirmed"): lambda _self, _number: True}


def _read_before_noop() -> dict[tuple[object, str], object]:
    return {(ReadIndex, "_has_committed_own_term"): lambda _self: True}


def _livelock() -> dict[tuple[object, str], object]:
    def resume(self: Guard) -> int:
        return self._journal.last_index + 1

    return {(Guard, "_resume_index"): resume}


PLANTS: dict[str, Callable[[], dict[tuple[object, str], object]]] = {
    "ack_before_sync": _ack_before_sync,
    "count_stale_acks": _count_stale_acks,
    "truncate_on_match": _truncate_on_match,
    "commit_unverified": _commit_unverified,
    "forget_votes": _forget_votes,
    "count_repeated_votes": _count_repeated_votes,
    "count_joiners": _count_joiners,
    "read_without_round": _read_without_round,
    "read_before_noop": _read_before_noop,
    "resume_at_the_end": _livelock,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Run with one bug planted; None for none."""
    changes = {} if name is None else PLANTS[name]()
    saved = {place: vars(place[0])[place[1]] for place in changes}
    for (owner, attribute), value in changes.items():
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for (owner, attribute), value in saved.items():
            setattr(owner, attribute, value)
