"""Each fault of PySyncObj 0.3.17 that matters here: shown on the stock library, absent from ours.

The stock half is not a test of the library: it fails when an upgrade changes what the cure is for.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.journal import FileJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from replication.entries import encode_command
from replication.errors import LeadershipLost, OutcomeUnknown
from replication.interface import Applied
from replication.messages import (
    AppendAck,
    AppendEntries,
    RequestVote,
    SnapshotOffer,
    Vote,
)
from tests.unit.replication.bench import Bench

A, B, C = Node("a"), Node("b"), Node("c")
NOOP = b"\x01"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Script(Transport):  # type: ignore[misc]
    """A transport that records what is sent and says what it is told."""

    def __init__(self, core: Any, own: Node, others: list[Node]) -> None:
        super().__init__(core, own, others)
        self.sent: list[tuple[Node, dict[str, Any]]] = []
        core.script.append(self)

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.sent.append((node, message))
        return True


class Stock(SyncObj):  # type: ignore[misc]
    def __init__(self, own: Node, others: list[Node], **settings: Any) -> None:
        self.script: list[Script] = []
        super().__init__(
            own, others, SyncObjConf(autoTick=False, **settings), transportClass=Script
        )
        self.log: list[Any] = []
        for node in others:
            self.script[0]._onNodeConnected(node)

    @replicated
    def put(self, value: Any) -> Any:
        if value == "boom":
            raise ValueError("boom")
        self.log.append(value)
        return value

    def hear(self, node: Node, **message: Any) -> None:
        self.script[0]._onMessageReceived(node, message)

    def lead(self, *voters: Node) -> None:
        self._SyncObj__raftElectionDeadline = 0
        self.doTick(0)
        for voter in voters:
            self.hear(voter, type="response_vote", term=self.raftCurrentTerm)
        assert self._isLeader()

    def indexes(self) -> list[int]:
        return [entry[1] for entry in self._SyncObj__raftLog[:]]


def put(value: Any) -> bytes:
    return b"\0" + pickle.dumps((0, (value,)), 2)


def entries(first: int, last: int, term: int) -> list[tuple[bytes, int, int]]:
    return [(encode_command(b"%d" % i), i, term) for i in range(first, last + 1)]


def test_a_late_heartbeat_erases_nothing() -> None:
    stock = Stock(C, [A, B])
    stock.hear(
        A,
        type="append_entries",
        term=1,
        commit_index=6,
        entries=[(NOOP, 2, 1)] + [(put(i), i, 1) for i in range(3, 7)],
        prevLogIdx=1,
        prevLogTerm=0,
    )
    stock.doTick(0)
    assert stock.raftLastApplied == 6
    late = {"entries": [], "prevLogIdx": 2, "prevLogTerm": 1}
    stock.hear(A, type="append_entries", term=1, commit_index=2, **late)
    assert stock.indexes() == [1, 2], "the stock library keeps applied entries now"

    ours = Bench("c")
    ours.hear("a", AppendEntries(1, 6, 0, 0, 1, True, entries(1, 6, 1)))
    ours.hear("a", AppendEntries(1, 2, 2, 1, 1, True, []))
    ours.hear("a", AppendEntries(1, 2, 0, 0, 1, True, entries(1, 3, 1)))
    assert (ours.storage.last_index, ours.core.commit_index) == (6, 6)


def test_a_message_without_previous_entry_moves_no_commit() -> None:
    stock = Stock(A, [B, C])
    stock.lead(B)
    told: list[Any] = []
    stock.put("never", callback=lambda result, error: told.append((result, error)))
    stock.doTick(0)
    stock.hear(C, type="append_entries", term=5, commit_index=5000, serialized=None)
    stock.doTick(0)
    assert told == [("never", 0)], "the stock library calls no uncommitted success now"

    ours = Bench("a")
    ours.lead("b")
    outcome = ours.propose(b"never")
    ours.run()
    last = ours.storage.last_index
    ours.hear("c", SnapshotOffer(5, 1, 5_000, 4))
    ours.hear("c", AppendEntries(5, 5_000, 4_999, 4, 1, True, []))
    ours.run()
    assert ours.core.commit_index < last
    assert outcome == []


def test_an_answer_from_an_earlier_leadership_is_not_counted() -> None:
    stock = Stock(A, [B, C])
    stock.lead(B)
    for value in range(5):
        stock.put(value)
    stock.doTick(0)
    tail = {"entries": [(NOOP, 3, 2)], "prevLogIdx": 2, "prevLogTerm": 1}
    stock.hear(C, type="append_entries", term=2, commit_index=2, **tail)
    stock.lead(C)
    stock.put("x")
    stock.doTick(0)
    stock.hear(B, type="next_node_idx", next_node_idx=8, reset=False, success=True)
    stock.doTick(0)
    assert stock.raftCommitIndex > 4, "the stock library drops stale answers now"

    ours = Bench("a")
    ours.lead("b")
    ours.run()
    stale_term = ours.core.term
    ours.hear("c", AppendEntries(stale_term + 1, 0, 0, 0, 1, True, entries(1, 1, stale_term + 1)))
    ours.lead("c")
    ours.run()
    last = ours.storage.last_index
    ours.hear("b", AppendAck(stale_term, last, last + 1, False, 0, False, 0))
    ours.run()
    assert ours.core.commit_index == 0
    ours.hear("b", AppendAck(ours.core.term, last, last + 1, False, 0, False, 0))
    ours.run()
    assert ours.core.commit_index == last


def test_a_vote_is_on_disk_before_it_is_sent(tmp_path: Path) -> None:
    synced: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", synced.append)
        patch.setattr("os.fdatasync", synced.append)
        stock = FileJournal(str(tmp_path / "journal"))
        stock.add(NOOP, 1, 0)
        stock.setCurrentTerm(7, "b")
        assert synced == [], "the stock journal syncs now"
        stock._destroy()

    ours = Bench("a")
    order: list[object] = []
    ours.storage.on_hard_state = lambda term, vote: order.append((term, vote))
    ours.on_send = lambda _member, message: order.append(message)
    ours.hear("b", RequestVote(7, 0, 0, False))
    assert order == [(7, None), (7, "b"), Vote(7)]


def test_nothing_is_acknowledged_before_the_sync_that_covers_it() -> None:
    stock = Stock(C, [A, B])
    new = {"entries": [(NOOP, 2, 1)], "prevLogIdx": 1, "prevLogTerm": 0}
    stock.hear(A, type="append_entries", term=1, commit_index=1, **new)
    assert stock.script[0].sent[-1][1]["next_node_idx"] == 3, "the stock library waits now"

    ours = Bench("c")
    ours.hear("a", AppendEntries(1, 0, 0, 0, 9, True, entries(1, 3, 1)))
    echo = ours.sent_to("a")[-1]
    assert isinstance(echo, AppendAck)
    assert (echo.match_index, echo.round) == (0, 9), "contact is proven at once"
    ours.run()
    assert ours.sent_to("a")[-1] == AppendAck(1, 3, 4, False, 0, False, 0)


def test_a_leader_counts_itself_only_for_what_it_has_on_disk() -> None:
    ours = Bench("a", names="a")
    ours.guard.tick()
    assert ours.core.is_leading
    ours.guard.tick()
    assert ours.core.commit_index == 0, "the no-op is not synced yet"
    ours.storage.sync()
    ours.guard.tick()
    assert ours.core.commit_index == 1

    three = Bench("a")
    three.lead("b")
    last = three.storage.last_index
    for peer in "bc":
        three.hear(peer, AppendAck(three.core.term, last, last + 1, False, 0, False, 0))
    three.guard.tick()
    assert three.core.commit_index == 0, "even with every other disk"
    three.storage.sync()
    three.guard.tick()
    assert three.core.commit_index == last


def test_a_commit_index_beyond_a_lost_tail_is_not_believed() -> None:
    ours = Bench("a")
    ours.hear("b", AppendEntries(1, 5, 0, 0, 1, True, entries(1, 5, 1)))
    ours.run()
    ours.storage.disk.commit_index = 50
    del ours.storage.disk.entries[3:]
    again = Bench("a", disk=ours.storage.disk)
    assert again.core.commit_index == 3


def test_a_diverged_tail_behind_a_backlog_is_answered_consistently() -> None:
    ours = Bench("c")
    ours.hear("a", AppendEntries(1, 2, 0, 0, 1, True, entries(1, 9, 1)))
    ours.run()
    # A new leader's burst: the first probe conflicts, the later ones lie beyond the log.
    ours.sent.clear()
    for prev in (8, 20, 30):
        ours.hear("b", AppendEntries(2, 30, prev, 2, 1, True, entries(prev + 1, prev + 1, 2)))
    answers = [m for m in ours.sent_to("b") if isinstance(m, AppendAck)]
    assert [(m.needs_reset, m.next_index) for m in answers] == [(True, 3)] * 3


def test_a_member_below_the_log_is_offered_a_snapshot_once_a_broadcast() -> None:
    ours = Bench("a")
    ours.lead("b")
    for _ in range(20):
        ours.propose(b"x")
    ours.run()
    last = ours.storage.last_index
    ours.hear("b", AppendAck(ours.core.term, last, last + 1, False, 0, False, 0))
    ours.run()
    ours.storage.truncate_prefix(last - 2)
    ours.core.snapshot_point = (last - 2, ours.core.term)
    ours.hear("c", AppendAck(ours.core.term, 0, 1, True, 0, False, 0))
    ours.sent.clear()
    ours.core.broadcast()
    assert [type(m) for m in ours.sent_to("c")] == [SnapshotOffer]


def test_an_apply_that_raises_stops_the_member_before_anything_is_told() -> None:
    stock = Stock(B, [A, C])
    poison = [(put("boom"), 2, 1), (put("later"), 3, 1)]
    begin = {"entries": poison, "prevLogIdx": 1, "prevLogTerm": 0}
    stock.hear(A, type="append_entries", term=1, commit_index=3, **begin)
    for _ in range(3):
        with pytest.raises(ValueError, match="boom"):
            stock.doTick(0)
    assert stock.raftLastApplied == 1, "the stock library no longer tries for ever"

    ours = Bench("a", names="a")
    ours.run()
    outcome = ours.propose(b"boom")
    later = ours.propose(b"later")
    ours.run()
    assert [type(o) for o in outcome + later] == [OutcomeUnknown, OutcomeUnknown]
    assert [str(error) for error in ours.failures] == ["boom"]
    assert ours.applied == []


def test_a_proposal_under_a_snapshot_is_resolved() -> None:
    ours = Bench("a")
    ours.lead("b")
    outcome = ours.propose(b"x")
    ours.run()
    ours.hear("c", AppendEntries(9, 0, 0, 0, 1, True, []))
    ours.storage.reset(50, 8)
    ours.storage.sync()
    ours.pump.note_installed(50, 8)
    assert [type(o) for o in outcome] == [LeadershipLost]


def test_a_working_leader_is_not_deposed_by_a_request_for_votes() -> None:
    stock = Stock(A, [B, C])
    stock.lead(B)
    request = {"type": "request_vote", "last_log_index": 1, "last_log_term": 0}
    stock.hear(C, term=stock.raftCurrentTerm + 10, **request)
    assert not stock._isLeader(), "the stock library has stickiness now"

    ours = Bench("a")
    ours.lead("b")
    ours.hear("c", RequestVote(ours.core.term + 10, 99, 99, False))
    assert ours.core.is_leading

    follower = Bench("b")
    follower.hear("a", AppendEntries(3, 0, 0, 0, 1, True, []))
    follower.hear("c", RequestVote(9, 99, 99, False))
    assert follower.core.term == 3
    follower.guard.set_connected("a", is_connected=False)
    follower.hear("c", RequestVote(9, 99, 99, False))
    assert follower.core.voted_for == "c", "the leader's connection ended"


def test_a_repeated_vote_counts_once() -> None:
    five = [Node(name) for name in "bcde"]
    stock = Stock(A, five)
    stock._SyncObj__raftElectionDeadline = 0
    stock.doTick(0)
    for _ in range(2):
        stock.hear(five[0], type="response_vote", term=stock.raftCurrentTerm)
    assert stock._isLeader(), "the stock library counts voters now"

    ours = Bench("a", names="abcde")
    ours.core.tick(may_stand=True)
    for _ in range(3):
        ours.hear("b", Vote(ours.core.term))
    assert not ours.core.is_leading
    ours.hear("c", Vote(ours.core.term))
    assert ours.core.is_leading


def test_pickles_never_enter_the_log() -> None:
    ours = Bench("a")
    for kind in (b"\x00", b"\x02", b"\x03", b""):
        evil = kind + pickle.dumps(1)
        ours.hear("b", AppendEntries(1, 1, 0, 0, 1, True, [(evil, 1, 1)]))
    assert ours.storage.last_index == 0
    assert ours.core.term == 0


def test_a_proposal_is_resolved_by_its_own_entry_only() -> None:
    ours = Bench("a")
    ours.lead("b")
    outcome = ours.propose(b"mine")
    ours.run()
    index = ours.storage.last_index
    other = [(encode_command(b"%d" % i), i, 9) for i in range(1, index + 1)]
    ours.hear("c", AppendEntries(9, index, 0, 0, 1, True, other))
    ours.run()
    assert [getattr(o, "code", "") for o in outcome] == ["discarded"]
    assert not any(isinstance(o, Applied) for o in outcome)
