"""One simulated member: the real journal, core, guard and pump on a simulated disk and network."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from replication.config import ReplicationConfig
from replication.core import RaftCore
from replication.guard import Guard
from replication.interface import Leadership, Role, SnapshotView
from replication.journal import WalJournal
from replication.messages import RaftMessage, SnapshotOffer
from replication.node import core_settings
from replication.pump import Pump
from replication.snapshot import meet_snapshot, trim_log
from tests.sim.clock import SimClock, SimRuntime
from tests.sim.disk import Image, SimCrash, SimStorage
from tests.sim.network import SimNetwork
from tests.sim.oracle import Oracle
from wal.errors import SyncFailed

KEEP_TAIL = 10


class History:
    """The state machine: the list of commands, told to the oracle."""

    def __init__(self, told: Callable[[int, int, bytes], None]) -> None:
        self.commands: list[bytes] = []
        self._told = told

    def apply(self, index: int, term: int, command: bytes) -> object:
        self.commands.append(command)
        self._told(index, term, command)
        return None

    def snapshot_view(self) -> SnapshotView:
        raise NotImplementedError

    def restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> None:
        self.commands = list(chunks)


class SimLink:
    def __init__(
        self, network: SimNetwork, name: str, rng: random.Random, crash_rate: float
    ) -> None:
        self._network = network
        self._name = name
        self._rng = rng
        self._crash_rate = crash_rate

    def send(self, member: str, message: RaftMessage) -> bool:
        if self._rng.random() < self._crash_rate:
            raise SimCrash
        return self._network.send(self._name, member, message)

    def is_congested(self, member: str) -> bool:
        return self._network.is_congested(self._name, member)


class SimMember:
    def __init__(
        self,
        name: str,
        names: list[str],
        clock: SimClock,
        network: SimNetwork,
        oracle: Oracle,
        rng: random.Random,
        *,
        peers: dict[str, SimMember],
        checks_disks: Callable[[], bool],
        crash_rate: float,
        sync_s: tuple[float, float],
    ) -> None:
        self.name = name
        self.disk = Image()
        self._clock = clock
        self._network = network
        self._oracle = oracle
        self._rng = rng
        self._peers = peers
        self._checks_disks = checks_disks
        self._crash_rate = crash_rate
        self._sync_s = sync_s
        self._is_fetching = False
        self.is_up = False
        address = dict.fromkeys(names, ("localhost", 1))
        self.config = ReplicationConfig(
            name=name,
            cluster_id="sim",
            incarnation=1,
            members=address,
            listen=("localhost", 1),
            data_dir=Path("/nowhere"),
            tls=None,
            election_timeout_min_ms=400,
            election_timeout_max_ms=900,
            append_period_ms=100,
            proposal_deadline_ms=3_000,
        )

    def boot(self) -> None:
        """Start the process on what its disk holds."""
        assert not self.is_up
        self.is_up = True
        self._is_fetching = False
        self.runtime = SimRuntime(self._clock, self._rng, self._sync_s)
        self.storage = self._open_storage()
        self.machine = History(self._note_applied)
        applied_index, applied_term = self._recover()
        link = SimLink(self._network, self.name, self._rng, self._crash_rate)
        journal = WalJournal(self.storage)
        self.core = RaftCore(core_settings(self.config), journal, link, clock=self._clock.now)
        if self.disk.snapshots:
            self.core.snapshot_point = self.disk.snapshots[-1][:2]
        self.guard = Guard(self.core, is_joining=self.disk.is_joining)
        self.pump = Pump(
            self.config,
            self.core,
            self.guard,
            self.machine,
            self.runtime,
            applied_index=applied_index,
            applied_term=applied_term,
            on_leadership=self._note_leadership,
            on_fatal=self._note_fatal,
        )
        self.guard.on_echo = self.pump.reads.note_echo
        self.guard.on_offer = self._receive_offer
        self.guard.on_admitted = self._note_admitted
        self.pump.start()

    def _open_storage(self) -> SimStorage:
        return SimStorage(self.disk, self._rng, crash_rate=self._crash_rate)

    def _recover(self) -> tuple[int, int]:
        """As `replication.snapshot.recover`."""
        if not self.disk.snapshots:
            return 0, 0
        index, term, commands = self.disk.snapshots[-1]
        storage = self.storage
        assert storage.base_index <= index, "a gap between snapshot and log"
        if storage.last_index < index or storage.term_at(index) != term:
            storage.reset(index, term)
            storage.sync()
        self.machine.restore(commands, index=index, term=term)
        return index, term

    def crash(self) -> None:
        """The process dies at once; connections end."""
        if not self.is_up:
            return
        self.is_up = False
        self.runtime.is_alive = False
        self.storage.crash()
        self.pump.stop("the process died")
        self._oracle.note_death(self.name)
        for peer in self._peers:
            if peer != self.name:
                self._network.disconnect(self.name, peer)

    def wipe(self) -> None:
        """The disk is lost; the member comes back as a replacement."""
        self.crash()
        self.disk = Image(is_joining=True)

    def receive(self, source: str, message: RaftMessage) -> None:
        if self.is_up:
            self.pump.receive(source, message)

    def set_connected(self, peer: str, *, is_connected: bool) -> None:
        if self.is_up:
            self.pump.set_connected(peer, is_connected=is_connected)

    def propose(self, payload: bytes) -> None:
        self._oracle.pending[payload] = (self._clock.now() + 5.0, self.name)
        self.pump.propose(payload, lambda outcome: self._oracle.note_outcome(payload, outcome))

    def read(self) -> None:
        must_cover = self._oracle.acked_index
        deadline = self._clock.now() + 2.0
        self.pump.reads.request(
            lambda outcome: self._oracle.note_read(must_cover, outcome),
            leader=None,
            deadline=deadline,
        )
        self.pump.wake()

    def take_snapshot(self) -> None:
        """Take one, slowly, as the engine does: the log is trimmed when it is durable."""
        index, term = self.pump.applied_index, self.pump.applied_term
        if self.disk.snapshots and self.disk.snapshots[-1][0] >= index:
            return
        commands = tuple(self.machine.commands)

        def finish() -> None:
            if not self.disk.snapshots or self.disk.snapshots[-1][0] < index:
                self.disk.snapshots.append((index, term, commands))
                self._use(index, term)

        self.runtime.call_later(self._rng.uniform(0.01, 0.3), finish)

    def _use(self, index: int, term: int) -> None:
        self.core.snapshot_point = (index, term)
        trim_log(self.core.journal, self.pump, index - KEEP_TAIL)

    def _receive_offer(self, member: str, offer: SnapshotOffer) -> None:
        if self._is_fetching or offer.index <= self.pump.applied_index:
            return
        self._is_fetching = True
        self.runtime.call_later(
            self._rng.uniform(0.02, 0.5), lambda: self._finish_fetch(member, offer.index)
        )

    def _finish_fetch(self, member: str, index: int) -> None:
        self._is_fetching = False
        source = self._peers[member]
        if not self._network.is_connected(self.name, member) or not source.is_up:
            return
        found = [snapshot for snapshot in source.disk.snapshots if snapshot[0] == index]
        if not found or index <= self.pump.applied_index:
            return
        snapshot = found[0]
        if not self.disk.snapshots or self.disk.snapshots[-1][0] < index:
            self.disk.snapshots.append(snapshot)
        try:
            if self._rng.random() < 10 * self._crash_rate:
                raise SimCrash  # between the file and the reset of the log behind it
            meet_snapshot(
                self.core.journal,
                self.pump,
                index=index,
                term=snapshot[1],
                restore=lambda: self.machine.restore(snapshot[2], index=index, term=snapshot[1]),
            )
        except Exception as error:
            self.pump.fail(error)
            return
        self._use(index, snapshot[1])

    def _note_admitted(self) -> None:
        self.disk.is_joining = False

    def _note_applied(self, index: int, term: int, command: bytes) -> None:
        disks = None
        if self._checks_disks():
            disks = {name: peer.disk for name, peer in self._peers.items()}
        self._oracle.note_applied(self.name, index, term, command, disks)

    def _note_leadership(self, leadership: Leadership) -> None:
        if leadership.role is Role.LEADER:
            base = self.storage.base_index
            entries = self.storage.entries(base + 1, self.storage.last_index + 1)
            log = {index: term for _, index, term in entries}
            self._oracle.note_leader(self.name, leadership.term, log, base)

    def _note_fatal(self, error: BaseException) -> None:
        if not isinstance(error, (SimCrash, SyncFailed)):
            self._oracle.report(f"FATAL: {self.name}: {error!r}")
        self.crash()
