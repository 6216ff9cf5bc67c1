from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from replication.errors import LeadershipLost, NotLeader, OutcomeUnknown
from replication.interface import Leadership, ReplicatedLog, Role, SnapshotView
from replication.memory import MemoryLog


class Recorder:
    """A state machine that remembers, and fails on b"boom"."""

    def __init__(self) -> None:
        self.commands: list[tuple[int, bytes]] = []

    def apply(self, index: int, term: int, command: bytes) -> object:
        if command == b"boom":
            raise ValueError("boom")
        self.commands.append((index, command))
        return command.upper()

    def snapshot_view(self) -> SnapshotView:
        raise NotImplementedError

    def restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> None:
        raise NotImplementedError


@pytest.fixture
async def log() -> MemoryLog:
    log = MemoryLog(Recorder(), members=("a", "b", "c"))
    await log.start()
    return log


async def test_a_proposal_resolves_with_the_result_of_its_apply(log: MemoryLog) -> None:
    protocol: ReplicatedLog = log  # the type checker proves that it is one
    first = await protocol.propose(b"x")
    second = await protocol.propose(b"y")
    assert (first.index, first.result) == (2, b"X")
    assert second.index == 3
    assert await protocol.read_barrier() == 3


async def test_held_proposals_become_unknown_when_the_leader_changes(log: MemoryLog) -> None:
    log.hold()
    pending = asyncio.ensure_future(log.propose(b"x"))
    await asyncio.sleep(0)
    log.set_leader("b")
    with pytest.raises(LeadershipLost):
        await pending
    with pytest.raises(NotLeader) as refusal:
        await log.propose(b"y")
    assert refusal.value.leader == "b"
    assert log.entries == []


async def test_held_proposals_commit_in_order_after_release(log: MemoryLog) -> None:
    log.hold()
    pending = [asyncio.ensure_future(log.propose(bytes([65 + i]))) for i in range(3)]
    await asyncio.sleep(0)
    assert not any(p.done() for p in pending)
    log.release()
    assert [applied.index for applied in await asyncio.gather(*pending)] == [2, 3, 4]


async def test_an_apply_that_raises_stops_the_member(log: MemoryLog) -> None:
    failures: list[BaseException] = []
    log.on_fatal(failures.append)
    with pytest.raises(OutcomeUnknown):
        await log.propose(b"boom")
    assert [str(failure) for failure in failures] == ["boom"]
    with pytest.raises(OutcomeUnknown):
        await log.propose(b"x")


async def test_leadership_changes_are_told_in_order(log: MemoryLog) -> None:
    seen: list[Leadership] = []
    log.on_leadership(seen.append)
    log.set_leader("b")
    log.set_leader("a")
    assert [(change.role, change.leader) for change in seen] == [
        (Role.FOLLOWER, "b"),
        (Role.LEADER, "a"),
    ]
