"""Proposals, reads and syncs of one member, with peers played by hand."""

from __future__ import annotations

from dataclasses import replace

from replication.entries import COMMAND_BYTES_MAX
from replication.errors import (
    CommandTooLarge,
    LeadershipLost,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
)
from replication.interface import Applied, Role
from replication.messages import AppendAck, AppendEntries, SnapshotOffer
from replication.proposals import Proposals
from tests.unit.replication.bench import Bench
from wal.errors import OutOfSpace, SyncFailed


def leading() -> Bench:
    bench = Bench("a")
    bench.lead("b")
    acknowledge(bench)
    return bench


def acknowledge(bench: Bench, member: str = "b", round_: int = 0) -> None:
    bench.run()
    last = bench.storage.last_index
    bench.hear(member, AppendAck(bench.core.term, last, last + 1, False, round_, False, 0))
    bench.run()


def test_a_proposal_is_applied_after_a_majority_has_it() -> None:
    bench = leading()
    outcome = bench.propose(b"x")
    bench.run()
    assert outcome == []
    acknowledge(bench)
    assert outcome == [Applied(index=2, term=1, result=2)]
    assert bench.applied == [b"x"]


def test_what_arrives_during_a_sync_is_one_batch() -> None:
    bench = leading()
    before = bench.pump.syncs
    first = bench.propose(b"1")
    bench.pump._turn()
    assert bench.pump.is_syncing
    later = [bench.propose(b"%d" % i) for i in range(50)]
    bench.run()
    assert bench.pump.syncs == before + 2
    acknowledge(bench)
    assert all(isinstance(o[0], Applied) for o in [first, *later])


def test_refusals_say_that_nothing_was_appended() -> None:
    bench = Bench("a")
    outcome = bench.propose(b"x")
    assert outcome == [], "never from within the call"
    bench.run()
    assert isinstance(outcome[0], NotLeader)
    bench = leading()
    outcome = bench.propose(bytes(COMMAND_BYTES_MAX + 1))
    bench.run()
    assert isinstance(outcome[0], CommandTooLarge)


def test_a_full_queue_refuses() -> None:
    bench = leading()
    small = replace(bench.config, queue_entries_max=2, queue_bytes_max=100)
    proposals = Proposals(small)
    proposals.add(b"1", lambda _: None, deadline=0)
    assert proposals.refusal(b"2") is None
    assert isinstance(proposals.refusal(bytes(100)), Overloaded)
    proposals.add(b"2", lambda _: None, deadline=0)
    assert isinstance(proposals.refusal(b"3"), Overloaded)


def test_a_deposed_leaders_proposals_become_unknown_in_the_end() -> None:
    bench = leading()
    appended = bench.propose(b"appended")
    bench.run()
    queued = bench.propose(b"queued")
    bench.hear("c", AppendEntries(9, 0, 0, 0, 1, True, []))
    assert isinstance(queued[0], NotLeader)
    assert appended == []
    now = bench.now()
    bench.pump.proposals.expire(now + 1)
    assert appended == []
    bench.pump.proposals.expire(now + 100_000)
    assert isinstance(appended[0], LeadershipLost)


def test_a_deadline_leaves_the_outcome_unknown() -> None:
    bench = leading()
    outcome = bench.propose(b"x")
    bench.run()
    bench.pump.proposals.expire(bench.now() + 100_000)
    assert isinstance(outcome[0], OutcomeUnknown)


def test_a_failed_sync_stops_the_member() -> None:
    bench = leading()
    outcome = bench.propose(b"x")
    bench.storage.is_failing = True
    bench.run_in_worker = lambda work, done: done(SyncFailed("disk"))  # type: ignore[method-assign]
    bench.run()
    assert isinstance(outcome[0], OutcomeUnknown)
    assert isinstance(bench.failures[0], SyncFailed)
    sent = len(bench.sent)
    acknowledge(bench)
    assert len(bench.sent) == sent, "it says nothing more"


def test_a_full_disk_refuses_and_goes_on() -> None:
    bench = leading()

    def full(*_: object, **__: object) -> None:
        raise OutOfSpace("full")

    append = bench.storage.append
    bench.storage.append = full  # type: ignore[method-assign]
    outcome = bench.propose(b"x")
    bench.run()
    assert isinstance(outcome[0], Overloaded)
    bench.storage.append = append  # type: ignore[method-assign]
    outcome = bench.propose(b"y")
    acknowledge(bench)
    assert isinstance(outcome[0], Applied)


def test_reads_share_a_round_and_wait_for_its_echo() -> None:
    bench = leading()
    answers: list[int | Exception] = []

    def read() -> None:
        bench.pump.reads.request(answers.append, leader=None, deadline=bench.now() + 1_000)

    rounds = bench.core.round
    read()
    bench.run()
    assert bench.core.round == rounds + 1
    for _ in range(5):
        read()
    bench.run()
    assert answers == []
    acknowledge(bench, round_=bench.core.round)
    assert answers == [1]
    assert bench.core.round == rounds + 2
    acknowledge(bench, round_=bench.core.round)
    assert answers == [1] * 6


def test_a_read_is_refused_when_the_leadership_is_lost() -> None:
    bench = leading()
    answers: list[int | Exception] = []
    bench.pump.reads.request(answers.append, leader=None, deadline=bench.now() + 1_000)
    bench.run()
    bench.hear("c", AppendEntries(9, 0, 0, 0, 1, True, []))
    bench.run()
    assert isinstance(answers[0], LeadershipLost)
    assert bench.pump.leadership.role is Role.FOLLOWER


def test_a_new_leader_reads_only_after_its_own_entry_is_committed() -> None:
    bench = Bench("a")
    bench.lead("b")
    bench.run()
    answers: list[int | Exception] = []
    bench.pump.reads.request(answers.append, leader=None, deadline=bench.now() + 1_000)
    bench.hear("b", AppendAck(1, 0, 1, False, bench.core.round, False, 0))
    bench.run()
    assert answers == []
    acknowledge(bench)
    acknowledge(bench, round_=bench.core.round)
    assert answers == [1]


def test_a_joining_member_is_counted_only_after_its_admission() -> None:
    bench = leading()
    outcome = bench.propose(b"x")
    bench.run()
    last = bench.storage.last_index
    joining = AppendAck(bench.core.term, last, last + 1, False, bench.core.round, True, 0)
    bench.hear("c", joining)
    bench.run()
    assert outcome == []
    acknowledge(bench, "b")
    assert isinstance(outcome[0], Applied)
    admitted = [m for m in bench.sent_to("c") if type(m).__name__ == "Admit"]
    assert admitted == []
    last = bench.storage.last_index
    bench.hear("c", AppendAck(bench.core.term, last, last + 1, False, 0, True, 0))
    admitted = [m for m in bench.sent_to("c") if type(m).__name__ == "Admit"]
    assert [(m.index, m.entry_term) for m in admitted] == [(last, bench.core.term)]  # type: ignore[union-attr]


def test_a_member_that_has_the_offered_snapshot_says_where_to_go_on() -> None:
    bench = Bench("a")
    bench.storage.reset(50, 3)
    bench.storage.sync()
    bench = Bench("a", disk=bench.storage.disk)
    offers: list[int] = []
    bench.guard.on_offer = lambda _member, offer: offers.append(offer.index)
    bench.hear("b", SnapshotOffer(4, 1, 50, 3))
    assert bench.sent_to("b")[-1] == AppendAck(4, 50, 51, True, 1, False, 50)
    assert offers == []
    bench.hear("b", SnapshotOffer(4, 1, 60, 3))
    assert offers == [60]
