"""A seeded life of a log on a `MemoryDisk`, with what each moment of it allows recovery to find.

The oracle is exact. Every change of the log is an operation; a batch makes a run of them durable.
At any moment recovery must give the log after k operations, for some k between those that were
durable and those that were handed to the disk, and a hard state that was set or is being set. Never
less, never a mixture, and never a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.crash.disk import Image, MemoryDisk, Replayer
from wal import Entry, Identity, WalSettings, WriteAheadLog, create_directory

ROOT = Path("/store")
IDENTITY = Identity("cluster", "a")
SETTINGS = WalSettings(
    segment_bytes=8192, reserve_bytes=8192, record_bytes_max=2048, housekeeping=False
)
Hard = tuple[int, str | None]


@dataclass(frozen=True)
class State:
    """What a log holds."""

    base_index: int = 0
    base_term: int = 0
    entries: tuple[Entry, ...] = ()

    @classmethod
    def of(cls, log: WriteAheadLog) -> State:
        entries = tuple(log.entries(log.first_index, log.last_index + 1))
        return cls(log.base_index, log.base_term, entries)


@dataclass(frozen=True)
class Allowed:
    """What recovery may find at one moment."""

    states: tuple[State, ...]
    hards: tuple[Hard, ...]
    is_founded: bool = True


def found(disk: MemoryDisk) -> None:
    """What `cluster init` does, and does again if it was interrupted."""
    disk.make_directory(ROOT)
    create_directory(ROOT, IDENTITY, fs=disk)


def open_log(disk: MemoryDisk) -> WriteAheadLog:
    return WriteAheadLog.open(ROOT, identity=IDENTITY, settings=SETTINGS, fs=disk)


class Life:
    """Drives one log and notes in the trace what is allowed from there on."""

    def __init__(self, disk: MemoryDisk, seed: int) -> None:
        self.disk = disk
        self.random = Random(seed)
        self.term = 0
        self._vote: str | None = None
        self._history = [State()]
        self._durable = 0
        self._taken = 0
        self._hards: tuple[Hard, ...] = ((0, None),)
        self.log: WriteAheadLog

    def begin(self) -> None:
        self.disk.note(Allowed((State(),), self._hards, is_founded=False))
        found(self.disk)
        self._note()
        self.log = open_log(self.disk)
        # As Raft does it: no entry of a term before the term itself is durable.
        self.set_hard_state()

    def resume(self) -> None:
        """Go on with what the disk holds already."""
        self.log = open_log(self.disk)
        self._history = [State.of(self.log)]
        self._hards = ((self.log.term, self.log.voted_for),)
        self.term, self._vote = self.log.term, self.log.voted_for
        self._durable = self._taken = 0
        self._note()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def sync(self) -> None:
        batch = self.log.take_batch()
        if batch is None:
            return
        self._taken = len(self._history) - 1
        self._note()
        self.log.write_batch(batch)
        self.log.finish_batch(batch)
        assert self.log.durable_index == self.log.last_index
        self._durable = self._taken
        self._note()

    def append(self) -> None:
        size = self.random.choice((0, 1, 40, 200, 700, 2048))
        payload = self.random.randbytes(size)
        self.log.append(payload, index=self.log.last_index + 1, term=self.term)
        self._did()

    def set_hard_state(self) -> None:
        if self.term and self._vote is None and self.random.random() < 0.5:
            self._vote = self.random.choice("abc")
        else:
            self.term += 1
            self._vote = self.random.choice(("a", "b", None))
        new = (self.term, self._vote)
        self._hards = (*self._hards, new)
        self._note()
        self.log.set_hard_state(*new)
        self._hards = (new,)
        self._note()

    def reopen(self) -> None:
        """A clean stop and start; what was not synced is gone."""
        self.log.close()
        self.log = open_log(self.disk)
        now = State.of(self.log)
        assert now == self._history[self._durable]
        self._history, self._durable, self._taken = [now], 0, 0

    def _step(self) -> None:
        log, random = self.log, self.random
        match random.choices(range(8), weights=(30, 14, 4, 4, 3, 1, 4, 2))[0]:
            case 0:
                self.append()
            case 1:
                self.sync()
            case 2:
                self.set_hard_state()
            case 3 if log.last_index > log.base_index:
                log.truncate_suffix(random.randint(log.first_index, log.last_index))
                self._did()
            case 4 if log.last_index > log.base_index:
                log.truncate_prefix(random.randint(log.first_index, log.last_index))
                self._did()
            case 5:
                log.reset(log.last_index + random.randint(0, 9), self.term)
                self._did()
            case 6:
                log.write_mark()
            case 7:
                log.note_commit_index(log.durable_index)
                random.choice((log.prepare_spare, self.reopen, self.sync))()
            case _:
                self.append()

    def _did(self) -> None:
        self._history.append(State.of(self.log))

    def _note(self) -> None:
        states = tuple(self._history[self._durable : self._taken + 1])
        self.disk.note(Allowed(states, self._hards))


@dataclass(frozen=True)
class Crash:
    """One thing a power cut can leave, and what may be found in it."""

    image: Image
    allowed: Allowed
    event_number: int


def crashes(
    disk: MemoryDisk, random: Random, *, limit: int, start: Image | None = None
) -> Iterator[Crash]:
    """Power cuts at every event of the disk's trace, `limit` images at most for each."""
    replayer = Replayer(start)
    allowed = Allowed((State(),), ((0, None),), is_founded=False)
    for number, event in enumerate(disk.events):
        replayer.apply(event)
        if event.kind == "note":
            assert isinstance(event.note, Allowed)
            allowed = event.note
            continue
        for image in replayer.images(random, limit=limit):
            yield Crash(image, allowed, number)


def violation(crash: Crash) -> str | None:
    """Recover the image; None if what is found is allowed."""
    disk = MemoryDisk(crash.image, seed=1)
    if not crash.allowed.is_founded:
        found(disk)
    log = open_log(disk)
    state = State.of(log)
    if state not in crash.allowed.states:
        return f"found {_brief(state)}, allowed {[_brief(s) for s in crash.allowed.states]}"
    last_term = log.term_at(log.last_index)
    allowed = {
        (term, vote) if term >= last_term else (last_term, None)
        for term, vote in crash.allowed.hards
    }
    if (log.term, log.voted_for) not in allowed:
        return f"found term and vote {log.term, log.voted_for}, allowed {allowed}"
    if log.durable_index != log.last_index:
        return "recovered entries are not durable"
    return None


def _brief(state: State) -> str:
    terms = "".join(str(entry.term % 10) for entry in state.entries)
    return f"{state.base_index}/{state.base_term}+[{terms}]"
