"""Journal, core, guard and pump of one member on a bench: no sockets, no disk, time by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from replication.config import ReplicationConfig
from replication.core import RaftCore
from replication.guard import Guard
from replication.interface import Applied, SnapshotView
from replication.journal import WalJournal
from replication.messages import RaftMessage, Vote
from replication.node import core_settings
from replication.pump import Pump
from tests.sim.disk import Image, SimStorage


class WatchedStorage(SimStorage):
    """Tells when the hard state was written."""

    on_hard_state: Callable[[int, str | None], None] = staticmethod(lambda _term, _vote: None)

    def set_hard_state(self, term: int, voted_for: str | None) -> None:
        super().set_hard_state(term, voted_for)
        self.on_hard_state(term, voted_for)


class Bench:
    """A member whose peers are played by the test. The library's own clock runs; nothing waits."""

    def __init__(self, name: str, *, names: str = "abc", disk: Image | None = None) -> None:
        self.sent: list[tuple[str, RaftMessage]] = []
        self.on_send: Callable[[str, RaftMessage], None] = lambda _member, _message: None
        self.applied: list[bytes] = []
        self.failures: list[BaseException] = []
        self._soon: list[Callable[[], None]] = []
        self.config = ReplicationConfig(
            name=name,
            cluster_id="bench",
            incarnation=1,
            members=dict.fromkeys(names, ("localhost", 1)),
            listen=("localhost", 1),
            data_dir=Path("/nowhere"),
            tls=None,
            # Nobody stands for election, and no leader steps down, by the passing of time.
            election_timeout_min_ms=3_000_000,
            election_timeout_max_ms=4_000_000,
            append_period_ms=900_000,
            proposal_deadline_ms=9_000_000,
        )
        self.storage = WatchedStorage(disk or Image(), random.Random(0), crash_rate=0.0)
        self.core = RaftCore(core_settings(self.config), WalJournal(self.storage), self)
        self.guard = Guard(self.core)
        self.pump = Pump(
            self.config,
            self.core,
            self.guard,
            self,
            self,
            applied_index=self.storage.base_index,
            applied_term=self.storage.base_term,
            on_fatal=self.failures.append,
        )
        self.guard.on_echo = self.pump.reads.note_echo
        for peer in self.config.peers:
            self.pump.set_connected(peer, is_connected=True)

    # Link

    def send(self, member: str, message: RaftMessage) -> bool:
        self.sent.append((member, message))
        self.on_send(member, message)
        return True

    def is_congested(self, member: str) -> bool:
        return False

    # StateMachine

    def apply(self, index: int, term: int, command: bytes) -> object:
        if command == b"boom":
            raise ValueError("boom")
        self.applied.append(command)
        return index

    def snapshot_view(self) -> SnapshotView:
        raise NotImplementedError

    def restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> None:
        raise NotImplementedError

    # Runtime

    def now(self) -> float:
        return self.core.now()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Time does not pass."""

    def run_in_worker(
        self, work: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        def both() -> None:
            work()
            done(None)

        self._soon.append(both)

    # For tests

    def hear(self, member: str, message: RaftMessage) -> None:
        self.pump.receive(member, message)

    def run(self) -> None:
        """Run turns and syncs until nothing is left to do."""
        self.pump.wake()
        while self._soon:
            self._soon.pop(0)()

    def lead(self, *voters: str) -> None:
        """Stand for election and be voted for."""
        self.core.tick(may_stand=True)
        for voter in voters:
            self.hear(voter, Vote(self.core.term))
        assert self.core.is_leading

    def propose(self, command: bytes) -> list[Applied | Exception]:
        """The list gets the outcome."""
        outcome: list[Applied | Exception] = []
        self.pump.propose(command, outcome.append)
        return outcome

    def sent_to(self, member: str) -> list[RaftMessage]:
        return [message for target, message in self.sent if target == member]
