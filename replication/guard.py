"""What of a peer's message reaches the library: the cures of specification 2.1.

Follower's side
  * An append is compared with the log first. What is already there is skipped, only a conflict
    truncates, and never at or below the commit index (B1). The commit index moves only up to the
    last entry *verified against this leader in this term* (B2).
  * A failed match is answered with one consistent place to go on from: after a conflict the entry
    behind the commit index, until something matches again (B13).
  * An acknowledgement says `min(verified, on disk)`. It leaves after the sync that makes more true;
    when the leader wants proof of contact also at once, with what is true now.
Leader's side
  * Answers carry the sender's term: older ones are dropped (B3), newer ones depose.
  * Votes are counted once per voter; a next index never moves back because of a success.
Elections
  * `elections.py` holds pre-vote and stickiness; a vote is given and asked for only through it.
A member that came back with an empty disk (joining) neither votes nor counts: `joining.py`.

Event loop only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from replication.core import RaftCore
from replication.elections import Elections
from replication.entries import is_known_payload
from replication.errors import ReplicationError
from replication.interface import Role
from replication.joining import Joiners
from replication.journal import WalJournal
from replication.messages import (
    Admit,
    AppendAck,
    AppendEntries,
    PreVote,
    PreVoteReply,
    RaftMessage,
    RequestVote,
    SnapshotOffer,
    TimeoutNow,
    Vote,
)
from wal.errors import OutOfSpace

logger = logging.getLogger(__name__)

#: A follower without room asks for entries this often: each time the leader may send megabytes.
FULL_PAUSE_S: Final = 2.0


class LogContradiction(ReplicationError):
    """A leader's entry contradicts one that is committed here: this replica must stop."""

    code = "log_contradiction"


@dataclass(frozen=True, slots=True)
class Matched:
    """The log equals the leader's up to `prev_index`; `new` follows, after dropping the rest."""

    prev_index: int
    prev_term: int
    new: Sequence[tuple[bytes, int, int]]

    @property
    def verified_index(self) -> int:
        return self.prev_index + len(self.new)


@dataclass(frozen=True, slots=True)
class Missing:
    """The log ends before the leader's previous entry, or begins after it."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another entry stands where the leader's previous entry should."""


def check_append(journal: WalJournal, message: AppendEntries) -> Matched | Missing | Conflict:
    """Compare an append with the log; changes nothing."""
    prev_index, prev_term = message.prev_index, message.prev_term
    if not journal.base_index <= prev_index <= journal.last_index:
        return Missing()
    if journal.term_at(prev_index) != prev_term:
        return Conflict()
    last = journal.last_index
    for position, (_, index, term) in enumerate(message.entries):
        if index > last or journal.term_at(index) != term:
            return Matched(prev_index, prev_term, message.entries[position:])
        prev_index, prev_term = index, term
    return Matched(prev_index, prev_term, ())


def is_held(verdict: Matched | Missing | Conflict) -> bool:
    """Whether everything of the append is in the log already."""
    return isinstance(verdict, Matched) and not verdict.new


def is_wellformed(message: AppendEntries) -> bool:
    """Whether entries follow each other, belong to no later term and carry known payloads."""
    expected, term = message.prev_index, message.prev_term
    for payload, index, entry_term in message.entries:
        expected += 1
        if index != expected or not term <= entry_term <= message.term:
            return False
        if not is_known_payload(payload):
            return False
        term = entry_term
    return term <= message.term


class Guard:
    """One member's gate between the network and the core."""

    def __init__(
        self,
        core: RaftCore,
        *,
        is_joining: bool = False,
    ) -> None:
        self._core = core
        self._journal = core.journal
        #: Came back with an empty disk and is not counted yet (persistent, kept by the owner).
        self.is_joining = is_joining
        self.elections = Elections(core)
        self.joiners = Joiners(core)
        #: Whether this member's disk has room for what a leader must write; else it never stands.
        self.has_room: Callable[[], bool] = lambda: True
        #: As leader: a counting member answered this broadcast in the current term.
        self.on_echo: Callable[[str, int], None] = lambda _member, _round: None
        #: As follower: the leader offers a snapshot.
        self.on_offer: Callable[[str, SnapshotOffer], None] = lambda _member, _offer: None
        #: As joining member: forget durably that this member is one.
        self.on_admitted: Callable[[], None] = lambda: None
        #: The (term, leader) that the three fields below speak of.
        self._following: tuple[int, str] | None = None
        self._verified_index = 0
        self._acked_index = 0
        self._has_conflicted = False
        #: The disk had no room for an append: until then no other is asked for.
        self._full_until = -math.inf

    # The pump's side.

    def tick(self) -> None:
        """One turn of the core, standing for election only after a won pre-vote."""
        may_lead = not self.is_joining and self.has_room()
        self._core.tick(may_stand=may_lead and self.elections.may_stand())

    def set_connected(self, member: str, *, is_connected: bool) -> None:
        core = self._core
        core.set_connected(member, is_connected=is_connected)
        if is_connected and core.is_leading:
            # What was in flight on the old connection is gone; go on from what is known.
            known = core.match_index(member)
            if known:
                core.set_next_index(member, known + 1)
        if not is_connected:
            self.elections.note_lost(member)

    def release_acks(self) -> None:
        """After a sync: tell the leader what is on disk now."""
        if self._following is None:
            return
        term, leader = self._following
        if term != self._core.term or leader != self._core.leader_name:
            return
        if self._has_news():
            self._acknowledge(leader, round_=0)

    def note_installed(self, index: int) -> None:
        """After a snapshot was installed: its leader's log is held up to `index`."""
        self._verified_index = max(self._verified_index, index)
        if self._following is not None and self._following[0] == self._core.term:
            self._acknowledge(self._following[1], round_=0, next_index=index + 1)

    def receive(self, member: str, message: RaftMessage) -> None:
        """Handle one message of a peer. Raises LogContradiction, and what the log raises."""
        match message:
            case AppendEntries():
                self._receive_append(member, message)
            case AppendAck():
                self._receive_ack(member, message)
            case RequestVote():
                if not self.is_joining:
                    self.elections.receive_request(member, message)
            case Vote():
                self.elections.receive_vote(member, message)
            case PreVote():
                if not self.is_joining:
                    self.elections.receive_pre_vote(member, message)
            case PreVoteReply():
                self.elections.receive_pre_vote_reply(member, message)
            case TimeoutNow():
                if not self.is_joining and self.has_room():
                    self._core.feed(member, {"type": "timeout_now", "term": message.term})
            case SnapshotOffer():
                if self._follow(member, message.term):
                    self._receive_offer(member, message)
            case Admit():
                self._receive_admit(member, message)

    # Follower.

    def _follow(self, leader: str, term: int) -> bool:
        """Accept `leader` for `term`; False when the term is over, which the sender is told."""
        core = self._core
        if term < core.term:
            self._acknowledge(leader, round_=0)
            return False
        if term == core.term and core.is_leading:
            logger.error("second_leader term=%d member=%s", term, leader)
            return False
        # Without the previous index the library changes term, state, leader and deadline only; its
        # own commit index in the message keeps it from moving that (B2).
        core.feed(
            leader,
            {"type": "append_entries", "term": term, "commit_index": core.commit_index},
        )
        if self._following != (term, leader):
            self._following = (term, leader)
            self._verified_index = self._acked_index = 0
            self._has_conflicted = False
        self.elections.note_leader_contact()
        return True

    def _receive_append(self, leader: str, message: AppendEntries) -> None:
        if not is_wellformed(message):
            logger.error("malformed_append member=%s prev=%d", leader, message.prev_index)
            return
        if not self._follow(leader, message.term):
            return
        verdict = check_append(self._journal, message)
        if self._core.now() < self._full_until and not is_held(verdict):
            # Asked for again, it would be sent again at once, for ever: only contact is told.
            if message.wants_echo:
                self._acknowledge(leader, round_=message.round)
            return
        match verdict:
            case Matched():
                self._has_conflicted = False
                try:
                    self._accept(leader, message, verdict)
                except OutOfSpace:
                    self._full_until = self._core.now() + FULL_PAUSE_S
                    raise
                if message.wants_echo or self._has_news():
                    self._acknowledge(leader, round_=message.round)
            case Conflict():
                self._has_conflicted = True
                self._acknowledge(leader, round_=message.round, next_index=self._resume_index())
            case Missing():
                self._acknowledge(leader, round_=message.round, next_index=self._resume_index())

    def _receive_offer(self, leader: str, message: SnapshotOffer) -> None:
        if message.index > self._core.commit_index:
            self._acknowledge(leader, round_=message.round)
            self.on_offer(leader, message)
            return
        # Both are committed up to here, so both logs are equal up to here. The leader must hear
        # it: a member that restored this very snapshot would be offered it again for ever.
        self._verified_index = max(self._verified_index, message.index)
        self._acknowledge(leader, round_=message.round, next_index=message.index + 1)

    def _has_news(self) -> bool:
        """Whether more is verified and on disk than the leader was told."""
        return min(self._verified_index, self._journal.durable_index) > self._acked_index

    def _resume_index(self) -> int:
        """Where the leader should go on: one answer per situation, or it never catches up (B13)."""
        if self._has_conflicted:
            return self._core.commit_index + 1
        return self._journal.last_index + 1

    def _accept(self, leader: str, message: AppendEntries, matched: Matched) -> None:
        core = self._core
        if matched.new:
            if matched.prev_index < core.commit_index:
                raise LogContradiction(
                    f"leader {leader} of term {message.term} contradicts committed entry"
                    f" {matched.prev_index + 1}"
                )
            core.feed(
                leader,
                {
                    "type": "append_entries",
                    "term": message.term,
                    "commit_index": message.commit_index,
                    "prevLogIdx": matched.prev_index,
                    "prevLogTerm": matched.prev_term,
                    "entries": matched.new,
                },
            )
        elif message.commit_index > core.commit_index:
            # Everything is present: the tail stays, and commit goes no further than was verified.
            commit_index = max(core.commit_index, min(message.commit_index, matched.verified_index))
            core.feed(
                leader,
                {"type": "append_entries", "term": message.term, "commit_index": commit_index},
            )
        self._verified_index = max(self._verified_index, matched.verified_index)

    def _acknowledge(self, leader: str, *, round_: int, next_index: int | None = None) -> None:
        core = self._core
        is_followed = self._following == (core.term, leader)
        match_index = min(self._verified_index, self._journal.durable_index) if is_followed else 0
        self._acked_index = max(self._acked_index, match_index)
        core.link.send(
            leader,
            AppendAck(
                core.term,
                match_index,
                match_index + 1 if next_index is None else next_index,
                next_index is not None,
                round_,
                self.is_joining,
                core.applied_index,
            ),
        )

    def _receive_admit(self, leader: str, message: Admit) -> None:
        core = self._core
        if not self.is_joining or self._following != (core.term, leader):
            return
        if message.term != core.term or message.entry_term != core.term:
            return
        held = min(self._verified_index, self._journal.durable_index)
        if message.index > held or not self._journal.holds(message.index, message.entry_term):
            return
        # This member may have voted in this term before it lost its disk. Binding the vote to the
        # leader it knows keeps it from electing a second one in the same term.
        core.bind_vote(leader)
        self.is_joining = False
        self.on_admitted()
        logger.info("member_admitted leader=%s term=%d index=%d", leader, core.term, message.index)

    # Leader.

    def _receive_ack(self, member: str, message: AppendAck) -> None:
        core = self._core
        if message.term > core.term:
            core.step_down(message.term)
            return
        if message.term < core.term or core.role is not Role.LEADER:
            return
        if message.match_index > self._journal.last_index:
            logger.error("impossible_ack member=%s match=%d", member, message.match_index)
            return
        if message.is_joining:
            self.joiners.receive_ack(member, message)
            return
        self.joiners.forget(member)
        self._count_ack(member, message)
        self.on_echo(member, message.round)

    def _count_ack(self, member: str, message: AppendAck) -> None:
        core = self._core
        next_index = core.next_index(member)
        core.feed(
            member,
            {
                "type": "next_node_idx",
                "next_node_idx": message.match_index + 1,
                "reset": False,
                # Contact alone must not touch the indexes.
                "success": message.match_index > 0,
            },
        )
        known = core.match_index(member)
        if message.needs_reset:
            next_index = message.next_index
        # A success for an older batch must not send newer ones, already on their way, again.
        core.set_next_index(member, max(next_index, known + 1))
