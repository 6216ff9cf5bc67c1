"""The keeper's journal: what it intended, did and saw, durable before anybody is told.

Per attempt there are small records, one per kind, in a `wal.keyed.KeyedStore`:

    intent    before the fork: the work, its owner, its session, cluster, boot id, lease
    started   after it: pid, start ticks, cgroup, pipes
    order     a kill it was asked for
    status    the main process's wait status, when its tree outlived it
    frozen    since when it is frozen, and how long it was before; `thawed` rewrites it
    exited    the whole finish
    forget    its finish is committed; since when
    void      it never started and never may

What a crash leaves: intent alone means that nobody knows whether the fork came, so its end is
status_lost; started without exited is searched in /proc and adopted or lost; exited is the truth.

Group commit: records of one turn are handed together to one worker thread, which writes them with
one sync and then wakes the loop; the callbacks run in the loop, in order. While it syncs, the next
turns' records gather. Only that thread changes the store. A failed sync ends the process: a new
keeper starts from what is really on disk.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Protocol

import msgpack

from agent.keeper.loop import Loop
from wal import OutOfSpace

KINDS: Final = ("intent", "started", "order", "status", "frozen", "exited", "forget", "void")
#: Between two tries while the disk is full, in seconds.
FULL_DISK_WAIT_S: Final = 1.0
#: What belongs to the keeper and not to an attempt.
META: Final = "~keeper"


class Store(Protocol):
    """What the ledger needs of wal.keyed.KeyedStore. `put` is durable after `sync`."""

    def put(self, key: bytes, value: bytes) -> object: ...
    def get(self, key: bytes) -> bytes | None: ...
    def delete(self, key: bytes) -> object: ...
    def sync(self) -> object: ...
    def close(self) -> object: ...


Record = dict[str, Any]
Callback = Callable[[], None]


@dataclass(slots=True)
class _Batch:
    changes: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    callbacks: list[Callback] = field(default_factory=list)


class Ledger:
    """Group commit over a store. All methods: loop thread."""

    def __init__(self, store: Store, loop: Loop) -> None:
        self._store = store
        self._loop = loop
        self._next = _Batch()
        self._flying: _Batch | None = None
        self._wanted = threading.Condition()
        self._is_synced = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()
        loop.turn_end.append(self.flush)

    def write(self, token: str, kind: str, record: Record, then: Callback | None = None) -> None:
        """Put one record; `then` runs in the loop once it is durable."""
        assert kind in KINDS or token == META
        self._next.changes.append((_key(token, kind), pack(record)))
        self._loop.hurry()
        if then is not None:
            self._next.callbacks.append(then)

    def drop(self, token: str, kinds: Iterable[str] = KINDS) -> None:
        """Remove records of an attempt; they may come back when we crash before the next sync."""
        self._next.changes.extend((_key(token, kind), None) for kind in kinds)
        self._loop.hurry()

    def read(self, token: str, kind: str) -> Record | None:
        """A record that was durable, or is about to be."""
        data = self._store.get(_key(token, kind))
        return None if data is None else unpack(data)

    def after(self, then: Callback) -> None:
        """Run `then` once everything written so far is durable."""
        self._loop.hurry()
        self._next.callbacks.append(then)

    def flush(self) -> None:
        """Complete a finished sync and begin the next one; at the end of each turn."""
        if self._flying is not None and self._is_synced:
            done, self._flying, self._is_synced = self._flying, None, False
            for callback in done.callbacks:
                callback()
        if self._flying is None and (self._next.changes or self._next.callbacks):
            with self._wanted:
                self._flying, self._next = self._next, _Batch()
                self._wanted.notify()

    @property
    def is_idle(self) -> bool:
        """Nothing is written that is not durable."""
        return self._flying is None and not self._next.changes and not self._next.callbacks

    def close(self) -> None:
        """Wait for the sync in flight and close the store. Callbacks no longer run."""
        with self._wanted:
            self._is_closing = True
            self._wanted.notify()
        self._thread.join()
        self._loop.turn_end.remove(self.flush)
        self._store.close()

    def _work(self) -> None:
        try:
            while (batch := self._wait()) is not None:
                for key, value in batch.changes:
                    self._insist(_change(self._store, key, value))
                if batch.changes:
                    self._insist(self._store.sync)
                self._is_synced = True
                self._loop.wake()
        except BaseException:  # noqa: BLE001  the thread's outermost frame: see _die
            _die()

    def _insist(self, step: Callable[[], object]) -> None:
        """Do `step`, waiting for as long as the disk is full.

        Nobody is told anything meanwhile, and nothing that was seen is forgotten; the store keeps
        a reserve for this, and no new work is taken (`disk_low`), so the wait is rare.
        """
        while True:
            try:
                step()
            except OutOfSpace:
                with self._wanted:
                    self._wanted.wait(FULL_DISK_WAIT_S)
                    if self._is_closing:
                        raise
            else:
                return

    def _wait(self) -> _Batch | None:
        with self._wanted:
            while self._flying is None or self._is_synced:
                if self._is_closing:
                    return None
                self._wanted.wait()
            return self._flying


def pack(record: Record) -> bytes:
    """A record's bytes; text that was bytes once stays exact."""
    return bytes(msgpack.packb(record, use_bin_type=True, unicode_errors="surrogateescape"))


def unpack(data: bytes) -> Record:
    """A record from its bytes. Raises ValueError."""
    try:
        record = msgpack.unpackb(
            data, raw=False, strict_map_key=False, unicode_errors="surrogateescape"
        )
    except msgpack.UnpackException as error:
        raise ValueError(str(error)) from None
    if not isinstance(record, dict):
        raise ValueError("a record is a map")
    return record


@dataclass(slots=True)
class Contents:
    """What a store held when it was opened."""

    records: dict[str, dict[str, Record]] = field(default_factory=dict)
    #: Attempts with a record that cannot be read: quarantined.
    damaged: set[str] = field(default_factory=set)
    #: Damage that could not be assigned to an attempt, as text for the log.
    notes: list[str] = field(default_factory=list)


def read_contents(
    items: Iterable[tuple[bytes, bytes]], damaged: Iterable[tuple[bytes | None, object]]
) -> Contents:
    """Sort a store's items by attempt, in insertion order."""
    contents = Contents()
    for key, where in damaged:
        token = None if key is None else _split(key)[0]
        if token is None:
            contents.notes.append(f"unreadable record at {where}")
        else:
            contents.damaged.add(token)
    for key, value in items:
        token, kind = _split(key)
        try:
            contents.records.setdefault(token, {})[kind] = unpack(value)
        except ValueError as error:
            contents.damaged.add(token)
            contents.notes.append(f"record {kind} of {token}: {error}")
    return contents


def _change(store: Store, key: bytes, value: bytes | None) -> Callable[[], object]:
    if value is None:
        return lambda: store.delete(key)
    return lambda: store.put(key, value)


def _key(token: str, kind: str) -> bytes:
    return f"{token}/{kind}".encode()


def _split(key: bytes) -> tuple[str, str]:
    token, _, kind = key.decode(errors="replace").rpartition("/")
    return token, kind


def _die() -> NoReturn:
    """Leave at once: the journal's durable state is unknown, so nothing more may be said or done.

    The jobs live on; the agent starts a new keeper, which recovers from the disk.
    """
    try:
        traceback.print_exc()
    finally:
        os._exit(74)  # whatever became of standard error
