"""Reports that wait until a controller answers `committed at index N` (specification 3.4).

`Outbox` is the pure part: which report is on disk, on its way, or due again. `OutboxDisk` keeps the
same reports in a KeyedStore. The order is: `add` numbers a report, `take_writes` hands it to a
worker thread, `mark_written` makes it sendable. Nothing is sent before its write is durable, and
nothing is dropped before it was committed or disowned. What a crash can leave behind is a report
that was committed but is still on disk: it is sent again, which is harmless.

Bounded by the node's attempts: each has at most one report of each kind waiting.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from scheduler.protocol.messages import ITEMS_MAX, Report
from wal.identity import Identity
from wal.keyed import KeyedStore
from wal.settings import WalSettings

#: Reports sent and not yet answered: a slow leader is not buried under a long outbox.
IN_FLIGHT_MAX: Final = 2_000
#: A sent report is due again after RESEND_MS and a full jitter of at most RESEND_JITTER_MS_MAX,
#: which doubles with each try from RESEND_JITTER_MS.
RESEND_MS: Final = 2_000
RESEND_JITTER_MS: Final = 1_000
RESEND_JITTER_MS_MAX: Final = 30_000
#: Highest exponent of that doubling, so that the power stays small.
_DOUBLINGS_MAX: Final = 10

#: Version of the values on disk; a newer one is refused.
_VERSION: Final = 1
_LAST_KEY: Final = b"last"


@dataclass(slots=True)
class _Entry:
    report: Report
    is_written: bool = False
    is_in_flight: bool = False
    tries: int = 0
    #: When it may be sent again; the heap item with another time is stale.
    due_ms: int = 0


@dataclass(frozen=True, slots=True)
class Writes:
    """What one durable write changes on disk. Immutable: it goes to a worker thread."""

    puts: tuple[Report, ...]
    drops: tuple[int, ...]
    #: Highest sequence given out; kept on disk so that a restart never counts back.
    last_sequence: int


@dataclass(slots=True)
class Outbox:
    """The loop thread's view of all waiting reports."""

    last_sequence: int = 0
    written_sequence: int = 0
    _entries: dict[int, _Entry] = field(default_factory=dict)
    _by_token: dict[str, list[int]] = field(default_factory=dict)
    _puts: list[Report] = field(default_factory=list)
    _drops: list[int] = field(default_factory=list)
    #: Sequences that may be sent now, lowest first.
    _ready: list[int] = field(default_factory=list)
    #: (due_ms, sequence) of what waits for an answer or for its retry time.
    _waiting: list[tuple[int, int]] = field(default_factory=list)
    #: sequence -> when sent, oldest first.
    _in_flight: dict[int, int] = field(default_factory=dict)

    @classmethod
    def restore(cls, reports: Iterable[Report], *, last_sequence: int) -> Outbox:
        """The outbox as it was on disk; every report is sendable."""
        outbox = cls(last_sequence=last_sequence, written_sequence=last_sequence)
        for report in reports:
            outbox._enter(report, is_written=True)
            outbox._ready.append(report.sequence)
        heapq.heapify(outbox._ready)
        return outbox

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def has_changes(self) -> bool:
        """Whether `take_writes` has something to hand out."""
        return bool(self._puts or self._drops)

    def has(self, token: str, kind: str) -> bool:
        """Whether a report of this kind waits for this attempt."""
        return any(
            self._entries[sequence].report.kind == kind
            for sequence in self._by_token.get(token, ())
        )

    def add(self, report: Report) -> Report:
        """Number `report` and keep it; it is sent once `mark_written` covers its number."""
        self.last_sequence += 1
        report = msgspec.structs.replace(report, sequence=self.last_sequence)
        self._enter(report, is_written=False)
        self._puts.append(report)
        return report

    def take_writes(self) -> Writes | None:
        """All changes since the last call, for one durable write; None when there are none."""
        if not self._puts and not self._drops:
            return None
        # A report that was dropped before it came to disk needs no write at all.
        puts = tuple(report for report in self._puts if report.sequence in self._entries)
        writes = Writes(puts, tuple(self._drops), self.last_sequence)
        self._puts, self._drops = [], []
        return writes

    def mark_written(self, last_sequence: int) -> None:
        """Everything up to `last_sequence` is durable now and may be sent."""
        for sequence in range(self.written_sequence + 1, last_sequence + 1):
            entry = self._entries.get(sequence)
            if entry is not None and not entry.is_written:
                entry.is_written = True
                heapq.heappush(self._ready, sequence)
        self.written_sequence = max(self.written_sequence, last_sequence)

    def restart_sending(self) -> None:
        """A new session: what was on its way in the old one is due at once, in order."""
        self._waiting.clear()
        self._in_flight.clear()
        self._ready = []
        for sequence, entry in self._entries.items():
            entry.is_in_flight, entry.tries = False, 0
            if entry.is_written:
                self._ready.append(sequence)
        heapq.heapify(self._ready)

    def take_batch(self, now_ms: int, rng: random.Random) -> tuple[Report, ...]:
        """The next reports to send, at most ITEMS_MAX; empty when none is due.

        They count as on their way until answered, or until their retry time.
        """
        self._wake(now_ms)
        batch: list[Report] = []
        while self._ready and len(batch) < ITEMS_MAX and len(self._in_flight) < IN_FLIGHT_MAX:
            sequence = heapq.heappop(self._ready)
            entry = self._entries.get(sequence)
            if entry is None or entry.is_in_flight:
                continue
            jitter = min(RESEND_JITTER_MS << min(entry.tries, _DOUBLINGS_MAX), RESEND_JITTER_MS_MAX)
            entry.tries += 1
            entry.is_in_flight = True
            self._in_flight[sequence] = now_ms
            self._schedule(sequence, entry, now_ms + RESEND_MS + rng.randrange(jitter))
            batch.append(entry.report)
        return tuple(batch)

    def commit(self, sequences: Iterable[int]) -> list[Report]:
        """The cluster has these now: drop them, and return those that were still waiting."""
        return [entry.report for sequence in sequences if (entry := self._drop(sequence))]

    def refuse(self, sequences: Iterable[int], *, retry_at_ms: int) -> None:
        """The cluster cannot take these yet (registry_full): send them again at `retry_at_ms`."""
        for sequence in sequences:
            entry = self._entries.get(sequence)
            if entry is not None and self._in_flight.pop(sequence, None) is not None:
                entry.is_in_flight = False
                self._schedule(sequence, entry, retry_at_ms)

    def drop_token(self, token: str, kinds: Iterable[str] = ()) -> None:
        """Drop every report of this attempt, or those of `kinds`: they are not wanted."""
        wanted = tuple(kinds)
        for sequence in list(self._by_token.get(token, ())):
            if not wanted or self._entries[sequence].report.kind in wanted:
                self._drop(sequence)

    def oldest_in_flight_ms(self) -> int | None:
        """When the longest unanswered report was sent."""
        return next(iter(self._in_flight.values()), None)

    def _enter(self, report: Report, *, is_written: bool) -> None:
        self._entries[report.sequence] = _Entry(report, is_written=is_written)
        self._by_token.setdefault(report.token, []).append(report.sequence)

    def _drop(self, sequence: int) -> _Entry | None:
        entry = self._entries.pop(sequence, None)
        if entry is None:
            return None
        self._in_flight.pop(sequence, None)
        self._drops.append(sequence)
        siblings = self._by_token[entry.report.token]
        siblings.remove(sequence)
        if not siblings:
            del self._by_token[entry.report.token]
        return entry

    def _schedule(self, sequence: int, entry: _Entry, due_ms: int) -> None:
        entry.due_ms = due_ms
        heapq.heappush(self._waiting, (due_ms, sequence))

    def _wake(self, now_ms: int) -> None:
        while self._waiting and self._waiting[0][0] <= now_ms:
            due_ms, sequence = heapq.heappop(self._waiting)
            entry = self._entries.get(sequence)
            if entry is None or entry.due_ms != due_ms:
                continue
            self._in_flight.pop(sequence, None)
            entry.is_in_flight = False
            heapq.heappush(self._ready, sequence)


class OutboxDisk:
    """The outbox's reports in a KeyedStore. One thread at a time: the caller awaits each write."""

    def __init__(self, directory: Path, *, cluster_id: str, name: str) -> None:
        identity = Identity(cluster_id, name)
        self._store = KeyedStore.open(directory, identity=identity, settings=WalSettings.agent())
        #: The write that is under way, and how many of its changes are in the store.
        self._current: Writes | None = None
        self._done = 0

    @property
    def damaged(self) -> int:
        """Records that could not be read at opening: the keeper's ledger still has their facts."""
        return len(self._store.damaged)

    def load(self) -> tuple[list[Report], int]:
        """All reports in order of their numbers, and the highest number ever given out."""
        reports: list[Report] = []
        last = 0
        for key, value in self._store.items():
            if key == _LAST_KEY:
                last = max(last, int.from_bytes(value, "big"))
            else:
                version, report = _VALUE.decode(value)
                if version != _VERSION:
                    raise ValueError(f"outbox record version {version}: made by a newer agent")
                reports.append(report)
        reports.sort(key=lambda report: report.sequence)
        return reports, max([last, *(report.sequence for report in reports[-1:])])

    def write(self, writes: Writes) -> None:
        """Make `writes` durable: one sync. Blocking.

        Raises OutOfSpace: call again with the same `writes`, which goes on where it stopped; and
        SyncFailed, which is fatal.
        """
        if self._current is not writes:
            self._current, self._done = writes, 0
        changes = self._changes(writes)
        for key, value in changes[self._done :]:
            if value is not None:
                self._store.put(key, value)
            else:
                self._store.delete(key)
            self._done += 1
        self._store.sync()

    @staticmethod
    def _changes(writes: Writes) -> list[tuple[bytes, bytes | None]]:
        changes: list[tuple[bytes, bytes | None]] = [
            (_key(report.sequence), _ENCODER.encode((_VERSION, report))) for report in writes.puts
        ]
        changes += [(_key(sequence), None) for sequence in writes.drops]
        # With the newest report dropped, nothing else would tell a restart where to go on.
        if writes.drops:
            changes.append((_LAST_KEY, writes.last_sequence.to_bytes(8, "big")))
        return changes

    def close(self) -> None:
        """Release the store and its lock."""
        self._store.close()


_ENCODER: Final = msgspec.msgpack.Encoder()
_VALUE: Final = msgspec.msgpack.Decoder(tuple[int, Report])


def _key(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")
