# ruff: noqa: N802, N803, ARG002, FBT001
"""PySyncObj's election and replication core, held to what it is good for.

The library is one class with everything in it. This subclass keeps its term, vote, election, match
index and commit code, and replaces what is wrong or unwanted (specification 2.1): journal,
transport, poller, sending, apply, snapshots. All private names of the library that this project
touches are in this file; `contract.py` lists them with hashes of their sources, so that an upgrade
is reviewed. (The rules switched off above concern names and signatures, which are the library's.)

What the core must never do by itself: start an election (`guard.py` runs a pre-vote first), count
an entry as committed that is not on this member's own disk, apply, or send an acknowledgement.

Event loop only. Two traps of the base class shape the code: its constructor evaluates every
property of the subclass, and it creates its journal and poller through module globals.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pysyncobj import SyncObj, SyncObjConf, syncobj
from pysyncobj.monotonic import monotonic
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from replication.entries import NOOP
from replication.interface import Role
from replication.journal import WalJournal
from replication.messages import (
    APPEND_BYTES_MAX,
    AppendEntries,
    RaftMessage,
    RequestVote,
    SnapshotOffer,
    TimeoutNow,
    Vote,
)

#: Messages to one member in one broadcast; the rest follows in the next turn of the loop.
MESSAGES_PER_BROADCAST_MAX: Final = 16
#: Entries in one message, whatever their size.
ENTRIES_PER_MESSAGE_MAX: Final = 2_048

ROLES: Final = (Role.FOLLOWER, Role.CANDIDATE, Role.LEADER)

Fields = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """The part of the configuration that the core needs, in seconds."""

    name: str
    peers: tuple[str, ...]
    election_timeout_min_s: float
    election_timeout_max_s: float
    append_period_s: float
    fallback_s: float


class Link(Protocol):
    """Where messages to other members go."""

    def send(self, member: str, message: RaftMessage) -> bool:
        """Queue a message; False when there is no connection."""
        ...

    def is_congested(self, member: str) -> bool:
        """Whether the member's queue is over its mark: send heartbeats, no entries."""
        ...


class MemberNode(Node):  # type: ignore[misc]
    """A member by name. Its hash is stable: the library's sets iterate alike in each run."""

    def __init__(self, id: str) -> None:  # noqa: A002 - the library's name
        super().__init__(id)
        self.stable_hash = zlib.crc32(id.encode())

    def __hash__(self) -> int:
        return self.stable_hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, MemberNode) and self.id == other.id)


class CoreTransport(Transport):  # type: ignore[misc]
    """The library's transport plug-in: turns its dictionaries into messages.

    Acknowledgements are not passed on: the guard sends its own, because only it knows what is
    verified and on disk.
    """

    def __init__(self, core: RaftCore, link: Link) -> None:
        super().__init__(core, None, [])
        self._core = core
        self._link = link

    def send(self, node: Node, message: Fields) -> bool:
        match message["type"]:
            case "request_vote":
                wire: RaftMessage = RequestVote(
                    self._core.term,
                    self._core.journal.last_index,
                    self._core.journal.last_term,
                    self._core.is_transfer_election,
                )
            case "response_vote":
                wire = Vote(self._core.term)
            case "timeout_now":
                wire = TimeoutNow(self._core.term)
            case "next_node_idx":
                return True
            case kind:
                raise AssertionError(f"the library must not send {kind!r}")
        return self._link.send(node.id, wire)


class NullPoller:
    """No file descriptor is left to the library."""

    def poll(self, timeout: float) -> None:
        """Nothing to wait for."""


class RaftCore(SyncObj):  # type: ignore[misc]
    """See the module. Names without underscore are this project's, used by guard and pump."""

    # Attributes of the base class, declared so that the type checker knows them.
    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftNextIndex: dict[Node, int]
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__lastResponseTime: dict[Node, float]
    _SyncObj__connectedNodes: set[Node]
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__transferInProgress: bool

    def __init__(
        self,
        settings: CoreSettings,
        journal: WalJournal,
        link: Link,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.settings = settings
        self.journal = journal
        self.link = link
        self.now = clock
        self.nodes: dict[str, Node] = {peer: MemberNode(peer) for peer in settings.peers}
        self.is_transfer_election = False
        #: Number of the newest broadcast as leader; grows for ever, whatever the term.
        self.round = 0
        self._wants_echo = False
        self._echo_due = 0.0
        self._is_counting = False
        #: Index and term of the newest snapshot that can be offered to a member too far behind.
        self.snapshot_point = (journal.base_index, journal.storage.base_term)
        transport = CoreTransport(self, link)
        globals_ = vars(syncobj)
        saved = globals_["createJournal"], globals_["createPoller"]
        globals_["createJournal"] = lambda _name: journal
        globals_["createPoller"] = lambda _kind: NullPoller()
        try:
            super().__init__(
                MemberNode(settings.name),
                list(self.nodes.values()),
                _library_settings(settings),
                nodeClass=MemberNode,
                transport=transport,
            )
        finally:
            globals_["createJournal"], globals_["createPoller"] = saved
        self._SyncObj__raftLastApplied = journal.base_index
        self.core_transport = transport
        if not settings.peers:
            self._SyncObj__raftElectionDeadline = 0.0

    # State, as guard and pump see it.

    @property
    def term(self) -> int:
        return self._SyncObj__raftCurrentTerm

    @property
    def role(self) -> Role:
        return ROLES[self._SyncObj__raftState]

    @property
    def is_leading(self) -> bool:
        return self._SyncObj__raftState == 2

    @property
    def leader_name(self) -> str | None:
        leader = self._SyncObj__raftLeader
        return None if leader is None else str(leader.id)

    @property
    def voted_for(self) -> str | None:
        return self._SyncObj__votedForNodeId

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    def match_index(self, member: str) -> int:
        """As leader: how much of this log the member is known to hold on disk."""
        return self._SyncObj__raftMatchIndex.get(self.nodes[member], 0)

    def next_index(self, member: str) -> int:
        return self._SyncObj__raftNextIndex.get(self.nodes[member], self.journal.last_index + 1)

    def set_next_index(self, member: str, index: int) -> None:
        """Send from `index` on, within what this log can have."""
        allowed = max(1, min(index, self.journal.last_index + 1))
        self._SyncObj__raftNextIndex[self.nodes[member]] = allowed

    def forget_match(self, member: str) -> None:
        """The member lost its disk: what it once acknowledged counts no more."""
        self._SyncObj__raftMatchIndex[self.nodes[member]] = 0

    def connected_peers(self) -> list[str]:
        return sorted(node.id for node in self._SyncObj__connectedNodes)

    def contact_age_s(self, member: str) -> float:
        """As leader: time since the member last answered in this leadership."""
        return self.now() - self._SyncObj__lastResponseTime.get(self.nodes[member], -math.inf)

    @property
    def election_deadline(self) -> float:
        return self._SyncObj__raftElectionDeadline

    def set_election_deadline(self, deadline: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline

    @property
    def is_told_to_stand(self) -> bool:
        """The leader handed over to this member and the election has not begun."""
        return self._SyncObj__transferInProgress

    def random_timeout_s(self) -> float:
        low, high = self.settings.election_timeout_min_s, self.settings.election_timeout_max_s
        return low + (high - low) * random.random()

    # Inputs.

    def feed(self, member: str, message: Mapping[str, object]) -> None:
        """Give one checked message to the library's handler."""
        self._SyncObj__onMessageReceived(self.nodes[member], dict(message))

    def set_connected(self, member: str, *, is_connected: bool) -> None:
        node = self.nodes[member]
        if is_connected:
            self._SyncObj__onNodeConnected(node)
        else:
            self._SyncObj__onNodeDisconnected(node)

    def step_down(self, term: int) -> None:
        """Become a follower of nobody; in a higher term when `term` is one (durable on return)."""
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(0)
        self._SyncObj__raftLeader = None

    def bind_vote(self, leader: str) -> None:
        """Record that this member stands by `leader` in the current term (durable on return)."""
        self._SyncObj__setCurrentTerm(self.term, leader)

    def set_applied(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    def jump_to_snapshot(self, index: int) -> None:
        """After an installed snapshot: everything up to `index` is committed and applied."""
        self._SyncObj__raftCommitIndex = max(self._SyncObj__raftCommitIndex, index)
        self._SyncObj__raftLastApplied = max(self._SyncObj__raftLastApplied, index)

    def note_committed(self, index: int) -> None:
        """A snapshot proves that this log is committed up to `index`."""
        self._SyncObj__raftCommitIndex = max(self._SyncObj__raftCommitIndex, index)

    def append(self, payload: bytes, *, may_use_reserve: bool = False) -> int:
        """As leader: add one entry of the current term; returns its index. Not durable yet.

        Raises wal.errors.OutOfSpace, and then nothing changed.
        """
        index = self.journal.last_index + 1
        self.journal.storage.append(
            payload, index=index, term=self.term, may_use_reserve=may_use_reserve
        )
        return index

    def append_noop(self) -> None:
        """As leader: add an empty entry."""
        self.journal.add(NOOP, self.journal.last_index + 1, self.term)

    def tick(self, *, may_stand: bool) -> None:
        """Advance elections, commit and heartbeats. An election starts only when `may_stand`."""
        deadline = self._SyncObj__raftElectionDeadline
        if may_stand:
            self.is_transfer_election = self._SyncObj__transferInProgress
            self._SyncObj__raftElectionDeadline = 0.0
        else:
            self._SyncObj__raftElectionDeadline = math.inf
        # A leader's tick asks for the last index in its commit scan only; see there.
        self._is_counting = self.is_leading
        try:
            self._onTick(0.0)
        finally:
            self._is_counting = False
        if self._SyncObj__raftElectionDeadline in (0.0, math.inf):
            self._SyncObj__raftElectionDeadline = deadline

    def broadcast(self, *, wants_echo: bool = False) -> int:
        """As leader: send what each member lacks, or a heartbeat; returns the round's number."""
        self._wants_echo = wants_echo
        self._SyncObj__sendAppendEntries()
        return self.round

    def hand_over(self, member: str) -> bool:
        """As leader: tell a member that holds the whole log to stand for election."""
        accepted: list[object] = []
        self.transferLeadership(self.nodes[member], lambda _, reason: accepted.append(reason))
        return accepted == [0]

    # Replaced methods of the base class.

    def _SyncObj__sendAppendEntries(self) -> None:
        """Replaces B14 to B16: no spin while a snapshot is made, flow control, no pickles."""
        now = self.now()
        self._SyncObj__newAppendEntriesTime = now + self.settings.append_period_s
        # A member whose disk is slow proves its contact this often, or it would depose its leader.
        if now >= self._echo_due:
            self._wants_echo = True
        if self._wants_echo:
            self._echo_due = now + self.settings.append_period_s
        self.round += 1
        for member, node in self.nodes.items():
            if node in self._SyncObj__connectedNodes:
                self._send_to(member, node)
        self._wants_echo = False

    def _send_to(self, member: str, node: Node) -> None:
        journal = self.journal
        for _ in range(MESSAGES_PER_BROADCAST_MAX):
            start = self._SyncObj__raftNextIndex[node]
            if start <= journal.base_index:
                index, term = self.snapshot_point
                self.link.send(member, SnapshotOffer(self.term, self.round, index, term))
                return
            entries = []
            if start <= journal.last_index and not self.link.is_congested(member):
                entries = journal.batch_from(
                    start, bytes_max=APPEND_BYTES_MAX, entries_max=ENTRIES_PER_MESSAGE_MAX
                )
                self._SyncObj__raftNextIndex[node] = start + len(entries)
            prev = start - 1
            self.link.send(
                member,
                AppendEntries(
                    self.term,
                    self.commit_index,
                    prev,
                    journal.term_at(prev),
                    self.round,
                    self._wants_echo,
                    entries,
                ),
            )
            if not entries or start + len(entries) > journal.last_index:
                return

    def has_unsent(self) -> bool:
        """As leader: whether a connected member with room in its queue lacks entries."""
        last = self.journal.last_index
        return any(
            self._SyncObj__raftNextIndex[node] <= last
            and self._SyncObj__raftNextIndex[node] > self.journal.base_index
            and node in self._SyncObj__connectedNodes
            and not self.link.is_congested(member)
            for member, node in self.nodes.items()
        )

    def _SyncObj__getCurrentLogIndex(self) -> int:
        """As the base, but a leader's commit scan ends at what is on disk: it would look at every
        entry behind that once a tick, in vain (`__getEntries` is what hides them)."""
        storage = self.journal.storage
        return storage.durable_index if self._is_counting else storage.last_index

    def _SyncObj__getEntries(
        self, fromIDx: int | None, count: int | None = None, maxSizeBytes: int | None = None
    ) -> list[tuple[bytes, int, int]]:
        """As the base, but the commit scan (the only caller with count 1) sees what is on disk.

        The library counts this member as holding every entry it appended; an entry that it does not
        see is not committed, and one without a majority ends the scan as before.
        """
        assert maxSizeBytes is None
        journal = self.journal
        base = journal.base_index
        if fromIDx is None or fromIDx < base:
            return []
        if count == 1 and fromIDx > base:
            if fromIDx > journal.durable_index:
                return []
            return [journal.storage.entry(fromIDx)]
        stop = None if count is None else fromIDx - base + count
        return journal[fromIDx - base : stop]

    def _SyncObj__applyLogEntries(self) -> bool:
        """The pump applies, in slices; the library neither applies nor calls back."""
        return False

    def _SyncObj__tryLogCompaction(self) -> None:
        """The snapshot engine trims the log."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        raise AssertionError("the library's dumps are not used")

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        raise AssertionError("the library must not apply: it would unpickle")

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        return None  # membership is fixed by the configuration, and the base would unpickle

    def _checkCommandsToApply(self) -> None:
        """The pump appends; the library's queue stays empty."""


def _library_settings(settings: CoreSettings) -> SyncObjConf:
    return SyncObjConf(
        autoTick=False,
        raftMinTimeout=settings.election_timeout_min_s,
        raftMaxTimeout=settings.election_timeout_max_s,
        appendEntriesPeriod=settings.append_period_s,
        appendEntriesUseBatch=True,
        leaderFallbackTimeout=settings.fallback_s,
        connectionTimeout=settings.election_timeout_max_s,
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        journalFile=None,
        fullDumpFile=None,
    )
