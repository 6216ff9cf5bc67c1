"""Whole members on loopback: election, commit, failover, restart, snapshots, replacement."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import uvloop

from replication.errors import ReplicationError
from replication.interface import Role
from replication.node import found_member
from tests.unit.replication.certificates import Authority
from tests.unit.replication.members import PATIENCE_S, Members, until
from wal.errors import WrongIdentity

pytestmark = pytest.mark.timeout(240)


async def test_three_members_elect_commit_and_survive_their_leader(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    await members.start()
    try:
        leader = await members.leader()
        commands = [b"x%d" % i for i in range(50)]
        last = await members.propose_all(commands)
        for log in members.logs.values():
            assert await members.barrier(log) >= last
            assert set(commands) <= set(members.ledgers[log.name].commands)

        leader = await members.leader()
        await members.stop(leader.name)
        after = await members.propose(b"after")
        await members.start(leader.name)
        await members.until_all_applied(after.index)
        ledgers = [ledger.commands for ledger in members.ledgers.values()]
        assert {*commands, b"after"} <= set(ledgers[0])
        assert ledgers[0] == ledgers[1] == ledgers[2]
    finally:
        await members.stop()


async def test_all_members_restarted_hold_everything_that_was_acknowledged(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    await members.start()
    applied = [await members.propose(b"x%d" % i) for i in range(5)]
    await members.stop()
    await members.start()
    try:
        last = await members.propose(b"y")
        assert last.index > applied[-1].index
        await members.until_all_applied(last.index)
        for ledger in members.ledgers.values():
            # A proposal that was tried again after a leader change may be there twice.
            acknowledged = dict.fromkeys(c for c in ledger.commands if c.startswith(b"x"))
            assert list(acknowledged) == [b"x%d" % i for i in range(5)]
    finally:
        await members.stop()


async def test_a_single_member_commits_alone_and_after_a_restart(tmp_path: Path) -> None:
    members = Members(tmp_path, "a")
    members.found()
    for round_ in range(2):
        await members.start()
        applied = await members.propose(b"x%d" % round_)
        assert applied.result == round_ + 1
        assert await members.barrier(members.logs["a"]) == applied.index
        await members.stop()


async def test_leadership_is_handed_over(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    await members.start()
    try:
        await members.propose(b"x")
        was = await members.leader()
        while not await was.transfer_leadership(timeout_s=PATIENCE_S):
            was = await members.leader()  # it moved by itself: a loaded machine
        await until(lambda: was.leadership.leader not in {None, was.name}, "another leader")
        assert was.leadership.role is Role.FOLLOWER
        await members.propose(b"y")
    finally:
        await members.stop()


async def test_a_member_behind_the_log_installs_a_snapshot(tmp_path: Path) -> None:
    members = Members(tmp_path, keep_tail_entries=5)
    members.found()
    await members.start("a", "b")
    try:
        await members.until_all_applied(await members.propose_all([b"%d" % i for i in range(100)]))
        # Either may lead when c comes.
        for log in list(members.logs.values()):
            index = await log.take_snapshot()
            assert log.status().log.first_index == index - 5 + 1
        await members.start("c")
        await members.until_all_applied(index)
        assert members.logs["c"].status().log.snapshot_index > 90
        last = await members.propose(b"last")
        await members.until_all_applied(last.index)
        assert members.ledgers["c"].commands == members.ledgers["a"].commands
        # The restarted member begins with the snapshot it installed.
        await members.stop("c")
        await members.start("c")
        await members.until_all_applied(last.index)
        assert members.ledgers["c"].commands == members.ledgers["a"].commands
    finally:
        await members.stop()


async def test_a_replaced_member_counts_only_after_it_caught_up(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    await members.start()
    try:
        await members.propose(b"x")
        leader = await members.leader()
        lost = next(name for name in "abc" if name != leader.name)
        await members.stop(lost)
        shutil.rmtree(tmp_path / lost)
        found_member(members.config(lost), is_replacement=True)
        other = next(name for name in "abc" if name not in {leader.name, lost})
        await members.stop(other)
        await members.start(lost)
        replaced = members.logs[lost]
        # With the empty disk alone there is no majority: nothing commits, and it says so.
        await until(lambda: not leader.is_leader, "the leader steps down without a counting peer")
        assert replaced.is_joining
        await members.start(other)
        await members.propose(b"y")
        await until(lambda: not replaced.is_joining, "the replaced member is admitted")
        assert not (tmp_path / lost / "joining").exists()
        last = await members.propose(b"z")
        await members.until_all_applied(last.index)
        assert members.ledgers[lost].commands == members.ledgers[other].commands
    finally:
        await members.stop()


async def test_members_answer_each_others_requests(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    await members.start()
    try:
        await members.leader()
        await until(
            lambda: {m.version for m in members.logs["a"].status().members} == {"1.2.3"},
            "all versions known",
        )

        async def answer(member: str, body: bytes) -> bytes:
            if body == b"bad":
                raise ValueError("no such thing")
            return member.encode() + b":" + body

        for log in members.logs.values():
            log.on_request("echo", answer)
        for target in "abc":
            reply = await members.logs["a"].request(target, "echo", b"hi", timeout_s=PATIENCE_S)
            assert reply == b"a:hi"
        with pytest.raises(ReplicationError, match="no such thing"):
            await members.logs["a"].request("b", "echo", b"bad", timeout_s=PATIENCE_S)
        with pytest.raises(ReplicationError, match="nobody answers"):
            await members.logs["a"].request("b", "other", b"", timeout_s=PATIENCE_S)
    finally:
        await members.stop()


async def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.found()
    (tmp_path / "a").rename(tmp_path / "x")
    (tmp_path / "b").rename(tmp_path / "a")
    with pytest.raises(WrongIdentity, match="member 'b'"):
        await members.start("a")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(WrongIdentity, match="no identity"):
        await members.start("a")


def test_members_speak_mutual_tls_on_uvloop(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    tls = {name: authority.issue(name) for name in "abc"}

    async def scenario() -> None:
        members = Members(tmp_path, tls=tls)
        members.found()
        await members.start()
        try:
            last = await members.propose_all([b"%d" % i for i in range(500)])
            await members.until_all_applied(last)
            for log in members.logs.values():
                assert await members.barrier(log) >= last
        finally:
            await members.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
