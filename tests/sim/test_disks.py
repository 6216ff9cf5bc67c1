"""Three members whose disks are full, failing or slow, in virtual time; full ones are real logs."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from pysyncobj import syncobj

from replication import core
from replication.errors import DiskFull, ProposalError
from replication.interface import Applied
from replication.messages import RaftMessage
from tests.crash.disk import MemoryDisk
from tests.sim.clock import SimClock
from tests.sim.disk import SimStorage
from tests.sim.member import SimMember
from tests.sim.network import SimNetwork
from tests.sim.oracle import Oracle
from wal import Identity, SyncFailed, WalSettings, WriteAheadLog, create_directory
from wal.writer import RESERVE_NAME

ROOT = Path("/store")
FAST_S = (0.0003, 0.003)
SLOW_S = (0.1, 1.0)
#: Room for about 60 entries of PAYLOAD bytes, and for as many in the reserve.
SETTINGS = WalSettings(
    segment_bytes=1 << 16, reserve_bytes=1 << 16, record_bytes_max=4096, housekeeping=False
)
PAYLOAD = 1000


class WalMember(SimMember):
    """On a real log, whose disk is in memory."""

    memory: MemoryDisk

    def _open_storage(self) -> SimStorage:
        self.memory = MemoryDisk(seed=1)
        self.memory.make_directory(ROOT)
        identity = Identity("sim", self.name)
        create_directory(ROOT, identity, fs=self.memory)
        log = _Wal.open(ROOT, identity=identity, settings=SETTINGS, fs=self.memory)
        self.wal = log
        self._keep_house()
        return cast("SimStorage", log)

    def _keep_house(self) -> None:
        """The housekeeper's part, once a virtual second and after half a segment."""
        if self.wal._writer.wants_spare:
            self.wal.prepare_spare()
        self.runtime.call_later(1.0, self._keep_house)

    def fill_disk(self) -> None:
        """From now on there is only what the log has allocated already."""
        self.memory.capacity_bytes = self.memory._used_bytes()

    @property
    def has_reserve(self) -> bool:
        return self.memory.exists(ROOT / "wal" / RESERVE_NAME)


class _Wal(WriteAheadLog):
    def crash(self) -> None:
        """Nothing of it is looked at again."""


class Trio:
    """Members a, b and c with nobody's faults but their disks'."""

    def __init__(self, kind: type[SimMember], sync_s: dict[str, tuple[float, float]]) -> None:
        rng = random.Random(7)
        self.clock = SimClock()
        self.oracle = Oracle()
        self.members: dict[str, SimMember] = {}
        self.network = SimNetwork(
            self.clock,
            rng,
            lambda source, target, message: self.members[target].receive(source, message),
            lambda member, peer, up: self.members[member].set_connected(peer, is_connected=up),
        )
        for name in "abc":
            self.members[name] = kind(
                name,
                list("abc"),
                self.clock,
                self.network,
                self.oracle,
                rng,
                peers=self.members,
                checks_disks=lambda: False,
                crash_rate=0.0,
                sync_s=sync_s.get(name, FAST_S),
            )

    def start(self) -> None:
        for member in self.members.values():
            member.boot()
        for pair in ("ab", "ac", "bc"):
            self.network.connect(*pair)
        self.until(lambda: self.leader() is not None, "a leader")

    def leader(self) -> SimMember | None:
        """Whom all that are up follow."""
        up = [member for member in self.members.values() if member.is_up]
        leaders = {member.pump.leadership.leader for member in up}
        name = leaders.pop() if len(leaders) == 1 else None
        return None if name is None else self.members[name]

    def led_by(self, name: str) -> None:
        """Hand leadership to `name`."""
        while (leader := self.leader()) is not self.members[name]:
            if leader is not None:
                leader.core.hand_over(name)
            self.run(0.2)

    def run(self, seconds: float) -> None:
        self.clock.run_until(self.clock.now() + seconds)
        assert self.oracle.violations == []

    def until(self, condition: Callable[[], bool], what: str, *, limit_s: float = 20.0) -> None:
        end = self.clock.now() + limit_s
        while not condition():
            assert self.clock.now() < end, what
            self.run(0.01)

    def propose(self, number: int, *, is_urgent: bool = False) -> Applied | Exception:
        """The outcome of one proposal at the leader."""
        outcomes: list[Applied | Exception] = []
        leader = self.leader()
        assert leader is not None
        command = b"%d" % number + bytes(PAYLOAD)
        leader.pump.propose(command, outcomes.append, is_urgent=is_urgent)
        self.until(lambda: bool(outcomes), f"an outcome of {number}")
        return outcomes[0]

    def propose_until_refused(self, *, is_urgent: bool = False) -> int:
        """How many were applied before one found the disk full."""
        for count in range(500):
            outcome = self.propose(count, is_urgent=is_urgent)
            if isinstance(outcome, DiskFull):
                return count
            assert isinstance(outcome, Applied), outcome
        raise AssertionError("never full")

    @property
    def terms(self) -> int:
        return len(self.oracle.leaders)


@contextmanager
def trio(
    kind: type[SimMember] = WalMember, *, sync_s: dict[str, tuple[float, float]] | None = None
) -> Iterator[Trio]:
    """A running one, with the library on its clock and on fixed randomness."""
    members = Trio(kind, sync_s or {})
    state, saved = random.getstate(), syncobj.monotonicTime
    random.seed(7)
    syncobj.monotonicTime = members.clock.now
    try:
        members.start()
        yield members
    finally:
        syncobj.monotonicTime = saved
        random.setstate(state)


# ---- full --------------------------------------------------------------------------------------


def full(members: Trio) -> WalMember:
    """Leader a, which has just refused for want of room."""
    members.led_by("a")
    leader = members.members["a"]
    assert isinstance(leader, WalMember)
    leader.fill_disk()
    assert members.propose_until_refused() > 10
    return leader


def test_a_full_leader_refuses_what_is_new_and_records_what_frees_work() -> None:
    with trio() as members:
        leader = full(members)
        assert leader.has_reserve, "the whole of it is kept"
        terms = members.terms
        for number in range(30):
            assert isinstance(members.propose(1000 + number, is_urgent=True), Applied)
            assert isinstance(members.propose(2000 + number), DiskFull)
        assert members.leader() is leader
        assert members.terms == terms


def test_room_coming_back_is_enough() -> None:
    with trio() as members:
        leader = full(members)
        for number in range(30):
            members.propose(number, is_urgent=True)
        assert not leader.has_reserve
        leader.memory.capacity_bytes = None
        members.run(3.0)
        assert leader.has_reserve
        for number in range(200):
            assert isinstance(members.propose(3000 + number), Applied)
        assert members.leader() is leader


def test_an_urgent_proposal_does_not_wait_behind_refused_ones() -> None:
    with trio() as members:
        leader = full(members)
        outcomes: list[str] = []

        def note(outcome: Applied | Exception) -> None:
            outcomes.append(type(outcome).__name__)

        for number in range(300):
            leader.pump.propose(b"%d" % number + bytes(PAYLOAD), note)
        leader.pump.propose(b"urgent", note, is_urgent=True)
        members.run(0.1)
        assert outcomes == ["DiskFull"] * 300 + ["Applied"]


def test_a_leader_that_can_record_nothing_more_hands_over_to_one_with_room() -> None:
    with trio() as members:
        leader = full(members)
        for number in range(500):
            if members.leader() is not leader:
                break
            members.propose(number, is_urgent=True)
            members.run(0.02)
        members.until(lambda: members.leader() not in (None, leader), "another one leads")
        for number in range(50):
            assert isinstance(members.propose(4000 + number), Applied)
        assert members.leader() is not leader, "it does not come back without room"
        leader.memory.capacity_bytes = None
        last = members.propose(5000)
        assert isinstance(last, Applied)
        members.until(
            lambda: leader.pump.applied_index >= last.index, "it catches up when there is room"
        )


def test_a_full_follower_takes_nobody_down_and_catches_up() -> None:
    with trio() as members:
        members.led_by("a")
        follower = members.members["b"]
        assert isinstance(follower, WalMember)
        follower.fill_disk()
        terms = members.terms
        for number in range(300):
            assert isinstance(members.propose(number), Applied)
        assert members.leader() is members.members["a"]
        assert members.terms == terms
        assert not follower.wal.has_room
        applied = members.members["a"].pump.applied_index
        assert follower.pump.applied_index < applied
        follower.memory.capacity_bytes = None
        members.until(lambda: follower.pump.applied_index >= applied, "the follower catches up")


def test_what_a_full_follower_cannot_take_is_not_sent_to_it_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So that what it lacks is many messages, as of a log of gigabytes.
    monkeypatch.setattr(core, "APPEND_BYTES_MAX", 4_000)
    with trio() as members:
        members.led_by("a")
        follower = members.members["b"]
        assert isinstance(follower, WalMember)
        follower.fill_disk()
        for number in range(300):
            assert isinstance(members.propose(number), Applied)
        received: list[RaftMessage] = []
        receive = follower.receive

        def count(source: str, message: RaftMessage) -> None:
            received.append(message)
            receive(source, message)

        monkeypatch.setattr(follower, "receive", count)
        members.run(10.0)
        heartbeats = 10.0 / 0.1
        assert len(received) < 10 * heartbeats
        applied = members.members["a"].pump.applied_index
        follower.memory.capacity_bytes = None
        members.until(lambda: follower.pump.applied_index >= applied, "the follower catches up")
        assert members.leader() is members.members["a"]


def test_when_all_are_full_the_leader_stays_and_all_go_on_later() -> None:
    with trio() as members:
        members.led_by("a")
        walls = [member for member in members.members.values() if isinstance(member, WalMember)]
        for member in walls:
            member.fill_disk()
        assert members.propose_until_refused() > 10
        assert members.propose_until_refused(is_urgent=True) > 10
        terms = members.terms
        members.run(10.0)
        assert members.terms == terms, "nobody stands who could not lead"
        assert isinstance(members.propose(1), DiskFull)
        for member in walls:
            member.memory.capacity_bytes = None
        members.run(3.0)
        assert isinstance(members.propose(2), Applied)


# ---- failing -----------------------------------------------------------------------------------


def test_a_leader_whose_sync_fails_stops_and_another_takes_over() -> None:
    with trio() as members:
        members.led_by("a")
        leader = members.members["a"]
        assert isinstance(leader, WalMember)
        assert isinstance(members.propose(1), Applied)

        def fail(kind: str) -> None:
            if kind == "sync":
                raise OSError(errno.EIO, "input/output error")

        leader.memory.fault = fail
        outcome = members.propose(2)
        assert isinstance(outcome, ProposalError)
        assert not leader.is_up
        assert isinstance(leader.pump.error, SyncFailed)
        members.until(lambda: members.leader() not in (None, leader), "another one leads")
        assert isinstance(members.propose(3), Applied)


# ---- slow --------------------------------------------------------------------------------------


def slowest_commit(members: Trio, *, count: int) -> float:
    slowest = 0.0
    for number in range(count):
        started = members.clock.now()
        assert isinstance(members.propose(number), Applied)
        slowest = max(slowest, members.clock.now() - started)
    return slowest


def test_a_followers_slow_disk_slows_no_commit() -> None:
    with trio(SimMember, sync_s={"b": SLOW_S}) as members:
        members.led_by("a")
        terms = members.terms
        assert slowest_commit(members, count=300) < SLOW_S[0] / 2
        members.run(5.0)
        assert members.terms == terms
        applied = members.members["a"].pump.applied_index
        members.until(
            lambda: members.members["b"].pump.applied_index >= applied, "the slow one keeps up"
        )


def test_a_leaders_slow_disk_slows_commits_and_deposes_nobody() -> None:
    with trio(SimMember, sync_s={"a": SLOW_S}) as members:
        members.led_by("a")
        terms = members.terms
        slowest = slowest_commit(members, count=50)
        assert SLOW_S[0] <= slowest < 3 * SLOW_S[1]
        members.run(20.0)
        assert members.terms == terms
        assert members.leader() is members.members["a"]
