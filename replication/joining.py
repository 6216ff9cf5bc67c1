"""The leader's view of members that came back with an empty disk.

Such a member may have acknowledged entries and voted, and has forgotten both. Until it is admitted
it is sent entries and snapshots like any other, but it is not counted: neither for commits, nor
for reads, nor as contact. It is admitted once it holds an entry of the current term that was
appended after it came and that the *others* committed. Then everything it could have helped to
forget is below an entry it holds again.

An idle cluster would never append such an entry, so the leader adds a no-op when a member comes.
Event loop only.
"""

from __future__ import annotations

import logging

from replication.core import RaftCore
from replication.messages import Admit, AppendAck

logger = logging.getLogger(__name__)


class Joiners:
    """Members that are catching up, by name, with the last index at the time they came."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._came_at: dict[str, int] = {}
        #: The term of that; a new leadership measures anew.
        self._term = 0

    def forget(self, member: str) -> None:
        """The member counts again."""
        self._came_at.pop(member, None)

    def names(self) -> list[str]:
        return sorted(self._came_at)

    def receive_ack(self, member: str, message: AppendAck) -> None:
        """Steer what the member is sent, and admit it when it may be."""
        core = self._core
        if core.term != self._term:
            self._term = core.term
            self._came_at.clear()
        if member not in self._came_at:
            logger.info("member_joins member=%s at=%d", member, core.journal.last_index)
            self._came_at[member] = core.journal.last_index
            core.forget_match(member)
            core.append_noop()
        next_index = message.next_index if message.needs_reset else core.next_index(member)
        core.set_next_index(member, max(next_index, message.match_index + 1))
        commit_index = core.commit_index
        if commit_index <= self._came_at[member] or message.match_index < commit_index:
            return
        term = core.journal.term_at(commit_index)
        if term == core.term:
            core.link.send(member, Admit(core.term, commit_index, term))
