"""Pre-vote and vote stickiness around the library's elections.

A member whose leader is silent first asks the others whether they would vote for it in the next
term. That changes no term and no vote, so a member that comes back from a partition, or is merely
slow, cannot depose a working leader. The others say no while they hear a leader themselves
(stickiness). Only after a majority said yes does the library start its real election.

A leader that was killed is noticed by the end of its connection, long before its silence would be:
the pre-vote starts after a short jitter, and stickiness is lifted, because this member *knows* more
than that it heard nothing for a while. If only one member lost the connection, the others still
refuse, and nothing happens.

Two members that ask at the same time would split the vote. So each yields to the other's request
when that one has the longer log (or, equal, the greater name).

Event loop only.
"""

from __future__ import annotations

import math
import random
from typing import Final

from replication.core import RaftCore
from replication.messages import PreVote, PreVoteReply, RequestVote, Vote

#: A follower whose leader's connection ended waits up to this long before it asks for votes.
LOST_LEADER_JITTER_S: Final = 0.05
#: An own pre-vote outranks another's for this share of the shortest election timeout only: its
#: replies may have been lost, and then the other must get its turn.
ATTEMPT_LIFE: Final = 0.5


class Elections:
    """Decides when this member may stand, and whom it lets stand."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._leader_contact_at = -math.inf
        self._is_leader_gone = False
        self._attempt = 0
        self._attempt_at = -math.inf
        self._attempt_term = 0
        self._supporters: set[str] = set()
        self._has_won = False
        #: Who voted for this member, and in which term: the library counts repeated answers twice.
        self._voters: set[str] = set()
        self._voters_term = 0

    def may_stand(self) -> bool:
        """Whether the library may start an election now; starts a pre-vote when one is due."""
        core = self._core
        if core.is_leading:
            return False
        if not core.nodes:
            return core.election_deadline < core.now()
        if core.is_told_to_stand:
            return True
        if self._has_won and self._attempt_term == core.term + 1:
            self._has_won = False
            return True
        if core.election_deadline < core.now():
            self._ask()
        return False

    def note_leader_contact(self) -> None:
        """A leader of the current term was heard."""
        self._leader_contact_at = self._core.now()
        self._is_leader_gone = False
        self._has_won = False
        self._attempt_at = -math.inf

    def note_lost(self, member: str) -> None:
        """The connection to `member` ended: FIN, RST or replaced."""
        core = self._core
        if core.is_leading or core.leader_name != member:
            return
        self._is_leader_gone = True
        soon = core.now() + random.random() * LOST_LEADER_JITTER_S
        core.set_election_deadline(min(core.election_deadline, soon))

    def known_leader(self) -> str | None:
        """The leader as far as it can be believed: not one that is gone or long silent."""
        core = self._core
        if core.is_leading:
            return core.settings.name
        age_s = core.now() - self._leader_contact_at
        if self._is_leader_gone or age_s > 2 * core.settings.election_timeout_max_s:
            return None
        return core.leader_name

    def is_sticky(self) -> bool:
        """Whether a working leader is known, so that nobody else should be elected."""
        core = self._core
        if core.is_leading:
            return True
        if self._is_leader_gone:
            return False
        age_s = core.now() - self._leader_contact_at
        return age_s < core.settings.election_timeout_min_s

    # Pre-vote.

    def _ask(self) -> None:
        core = self._core
        now = core.now()
        # The next try comes sooner when the leader is known to be gone.
        wait_s = core.random_timeout_s() * (0.5 if self._is_leader_gone else 1.0)
        core.set_election_deadline(now + wait_s)
        self._attempt += 1
        self._attempt_at = now
        self._attempt_term = core.term + 1
        self._supporters = set()
        self._has_won = False
        question = PreVote(
            self._attempt_term, core.journal.last_index, core.journal.last_term, self._attempt
        )
        for member in core.connected_peers():
            core.link.send(member, question)

    def receive_pre_vote(self, member: str, message: PreVote) -> None:
        core = self._core
        is_granted = (
            message.term > core.term and not self.is_sticky() and self._yields_to(member, message)
        )
        if is_granted:
            # Let the asker finish before standing too.
            self._attempt_at = -math.inf
            pause_s = core.settings.election_timeout_min_s * ATTEMPT_LIFE
            core.set_election_deadline(max(core.election_deadline, core.now() + pause_s))
        core.link.send(member, PreVoteReply(core.term, message.attempt, is_granted))

    def _yields_to(self, member: str, message: PreVote) -> bool:
        core = self._core
        mine = (core.journal.last_term, core.journal.last_index)
        theirs = (message.last_term, message.last_index)
        if theirs < mine:
            return False
        life_s = core.settings.election_timeout_min_s * ATTEMPT_LIFE
        is_asking = core.now() - self._attempt_at < life_s
        return not is_asking or (*theirs, member) > (*mine, core.settings.name)

    def receive_pre_vote_reply(self, member: str, message: PreVoteReply) -> None:
        core = self._core
        if message.term > core.term:
            core.step_down(message.term)
            return
        is_current = message.attempt == self._attempt and self._attempt_term == core.term + 1
        if not is_current or not message.is_granted or self._attempt_at == -math.inf:
            return
        self._supporters.add(member)
        if len(self._supporters) + 1 >= self._quorum():
            self._has_won = True

    # Votes.

    def receive_request(self, member: str, message: RequestVote) -> None:
        core = self._core
        if message.term > core.term and not message.is_transfer and self.is_sticky():
            return
        if message.term == core.term and core.voted_for == member:
            # The answer was lost: the vote itself is on disk already.
            core.link.send(member, Vote(core.term))
            return
        core.feed(
            member,
            {
                "type": "request_vote",
                "term": message.term,
                "last_log_index": message.last_index,
                "last_log_term": message.last_term,
            },
        )

    def receive_vote(self, member: str, message: Vote) -> None:
        core = self._core
        if message.term != core.term:
            return
        if self._voters_term != core.term:
            self._voters_term, self._voters = core.term, set()
        if member in self._voters:
            return
        self._voters.add(member)
        core.feed(member, {"type": "response_vote", "term": message.term})

    def _quorum(self) -> int:
        return (len(self._core.nodes) + 1) // 2 + 1
