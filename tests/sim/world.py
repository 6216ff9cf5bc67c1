"""A run: members, a client, faults drawn from a seed, then healing and convergence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pysyncobj import syncobj

from replication import core as core_module
from replication import pump as pump_module
from replication.messages import RaftMessage, decode, encode
from tests.sim.clock import SimClock
from tests.sim.disk import SimCrash
from tests.sim.member import SimMember
from tests.sim.network import SimNetwork
from tests.sim.oracle import Oracle

#: Virtual seconds of faults, and those allowed for convergence afterwards.
FAULTS_S = 10.0
HEAL_S = 15.0
#: Virtual turns are the cost of a run: fewer of them than in reality.
TICK_S = 0.05


@dataclass(slots=True, kw_only=True)
class Result:
    seed: int
    violations: list[str]
    acked: int
    proposals: int
    reads: int
    terms: int
    crashes: int


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        rng = self.rng
        self.clock = SimClock()
        self.oracle = Oracle()
        names = list("abcde"[: rng.choice((1, 3, 3, 3, 3, 3, 5))])
        self.members: dict[str, SimMember] = {}
        self.network = SimNetwork(self.clock, rng, self._deliver, self._notify)
        self.network.loss_rate = rng.choice((0.0, 0.0, 0.01, 0.05))
        self.network.repeat_rate = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.network.delay_s = (0.0002, rng.choice((0.002, 0.01, 0.1)))
        self.has_snapshots = rng.random() < 0.6
        self.has_wipes = len(names) > 1 and rng.random() < 0.3
        self.crash_rate = rng.choice((0.0, 0.0005, 0.003))
        self.fault_period_s = rng.choice((0.1, 0.3, 1.0))
        self.proposal_period_s = rng.choice((0.005, 0.02))
        self.counter = 0
        self.crashes = 0
        self.is_healing = False
        for name in names:
            self.members[name] = SimMember(
                name,
                names,
                self.clock,
                self.network,
                self.oracle,
                rng,
                peers=self.members,
                checks_disks=lambda: not self.has_wipes,
                crash_rate=self.crash_rate,
                sync_s=rng.choice(((0.0003, 0.003), (0.0003, 0.05), (0.01, 0.3))),
            )

    def run(self) -> Result:
        for member in self.members.values():
            member.boot()
        self._connect_all()
        self._propose()
        self._fault()
        end = self.clock.now() + FAULTS_S
        self.clock.run_until(end, is_over=self._is_over)
        if not self.oracle.violations:
            self._heal()
        return Result(
            seed=self.seed,
            violations=self.oracle.violations,
            acked=len(self.oracle.acked),
            proposals=self.counter,
            reads=self.oracle.reads,
            terms=len(self.oracle.leaders),
            crashes=self.crashes,
        )

    def _is_over(self) -> bool:
        return bool(self.oracle.violations)

    # Client

    def _propose(self) -> None:
        if self.is_healing:
            return
        member = self.rng.choice(list(self.members.values()))
        if member.is_up and (member.core.is_leading or self.rng.random() < 0.05):
            self.counter += 1
            size = self.rng.choice((0, 0, 0, 100, 3000))
            member.propose(b"v%d" % self.counter + bytes(size))
            if self.rng.random() < 0.3:
                member.read()
        self.oracle.check_overdue(self.clock.now())
        self.clock.after(self.rng.expovariate(1 / self.proposal_period_s), self._propose)

    # Faults

    def _fault(self) -> None:
        if self.is_healing:
            return
        rng = self.rng
        names = list(self.members)
        a = rng.choice(names)
        b = rng.choice([name for name in names if name != a] or names)
        member = self.members[a]
        chance = rng.random()
        if chance < 0.15:
            self._crash(member)
        elif chance < 0.2 and member.is_up:
            member.storage.is_failing = True
        elif chance < 0.3 and a != b:
            self.network.disconnect(a, b)
        elif chance < 0.38:
            self._isolate_leader()
        elif chance < 0.45 and a != b:
            self.network.block(a, b)
        elif chance < 0.6:
            self.network.unblock_all()
        elif chance < 0.63 and self.has_wipes:
            self._wipe(member)
        elif chance < 0.72 and self.has_snapshots and member.is_up:
            member.take_snapshot()
        elif chance < 0.76 and member.is_up and member.core.is_leading and a != b:
            try:
                member.core.hand_over(b)
            except SimCrash:
                self._crash(member)
        else:
            self._reboot_and_reconnect()
        self.clock.after(rng.expovariate(1 / self.fault_period_s), self._fault)

    def _isolate_leader(self) -> None:
        """The leader goes on appending what nobody hears, or hears too late."""
        for leader in [m.name for m in self.members.values() if m.is_up and m.core.is_leading]:
            is_cut = self.rng.random() < 0.4
            for peer in self.members:
                if peer == leader:
                    continue
                if is_cut:
                    self.network.disconnect(leader, peer)
                else:
                    self.network.block(leader, peer)
                    if self.rng.random() < 0.5:
                        self.network.block(peer, leader)

    def _crash(self, member: SimMember) -> None:
        if member.is_up:
            self.crashes += 1
            member.crash()

    def _wipe(self, member: SimMember) -> None:
        # One at a time: with a majority of the disks gone there is nothing to promise.
        if not any(other.disk.is_joining for other in self.members.values()):
            self._crash(member)
            member.wipe()

    def _reboot_and_reconnect(self) -> None:
        for member in self.members.values():
            if not member.is_up and self.rng.random() < 0.7:
                member.boot()
        self._connect_all(share=0.7)

    def _connect_all(self, share: float = 1.0) -> None:
        up = [name for name, member in self.members.items() if member.is_up]
        for position, a in enumerate(up):
            for b in up[position + 1 :]:
                if self.rng.random() < share:
                    self.network.connect(a, b)

    # End

    def _heal(self) -> None:
        self.is_healing = True
        network = self.network
        network.loss_rate = network.repeat_rate = 0.0
        network.delay_s = (0.0002, 0.002)
        end = self.clock.now() + HEAL_S
        marker = None
        while self.clock.now() < end and not self._is_over():
            network.unblock_all()
            for member in self.members.values():
                if not member.is_up:
                    member.boot()
            self._connect_all()
            self.clock.run_until(self.clock.now() + 0.2, is_over=self._is_over)
            marker = marker or self._propose_marker()
            if marker is not None and marker not in self.oracle.acked:
                marker = marker if marker in self.oracle.pending else None
            if marker is not None and marker in self.oracle.acked and self._has_converged():
                break
        else:
            self.oracle.report("NO-CONVERGENCE")
            return
        self.oracle.check_end({n: m.machine.commands for n, m in self.members.items()})
        if self.oracle.pending:
            self.clock.run_until(self.clock.now() + 6.0, is_over=self._is_over)
            self.oracle.check_overdue(self.clock.now())

    def _propose_marker(self) -> bytes | None:
        for member in self.members.values():
            if member.is_up and member.core.is_leading:
                self.counter += 1
                payload = b"end%d" % self.counter
                member.propose(payload)
                return payload
        return None

    def _has_converged(self) -> bool:
        members = list(self.members.values())
        applied = {member.pump.applied_index for member in members}
        return len(applied) == 1 and not any(member.disk.is_joining for member in members)

    # Wiring

    def _deliver(self, source: str, target: str, message: RaftMessage) -> None:
        if self.rng.random() < 0.02:
            copy = decode(encode(message))
            assert copy == message
            message = copy  # type: ignore[assignment]
        self.members[target].receive(source, message)

    def _notify(self, member: str, peer: str, is_connected: bool) -> None:
        if member in self.members:
            self.members[member].set_connected(peer, is_connected=is_connected)


@contextmanager
def virtual_library(world: World) -> Iterator[None]:
    """PySyncObj and the pump on the world's clock and randomness, with small batches."""
    state = random.getstate()
    saved = syncobj.monotonicTime, pump_module.TICK_S, core_module.APPEND_BYTES_MAX
    random.seed(world.seed)
    syncobj.monotonicTime = world.clock.now
    pump_module.TICK_S = TICK_S  # type: ignore[misc]
    core_module.APPEND_BYTES_MAX = 400  # type: ignore[misc]
    try:
        yield
    finally:
        syncobj.monotonicTime, pump_module.TICK_S, core_module.APPEND_BYTES_MAX = saved
        random.setstate(state)


def run_seed(seed: int) -> Result:
    """One whole run."""
    world = World(seed)
    with virtual_library(world):
        return world.run()
