"""A seeded life of a keyed store on a `MemoryDisk`, and what each moment of it allows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.crash.disk import MemoryDisk
from wal import Identity, KeyedStore, WalSettings

ROOT = Path("/node/ledger")
IDENTITY = Identity("cluster", "node-1")
SETTINGS = WalSettings(
    segment_bytes=8192, reserve_bytes=8192, record_bytes_max=2048, housekeeping=False
)
Items = tuple[tuple[bytes, bytes], ...]


def open_store(disk: MemoryDisk) -> KeyedStore:
    return KeyedStore.open(ROOT, identity=IDENTITY, settings=SETTINGS, fs=disk)


@dataclass(frozen=True)
class AllowedItems:
    """What recovery may find: the items after any number of the changes handed to the disk."""

    states: tuple[Items, ...]


class KeyedLife:
    """Drives one store and notes in the trace what is allowed from there on."""

    def __init__(self, disk: MemoryDisk, seed: int) -> None:
        self.disk = disk
        self.random = Random(seed)
        self._history: list[Items] = [()]
        disk.note(AllowedItems(((),)))
        disk.make_directory(ROOT.parent)
        self.store = open_store(disk)

    def steps(self, count: int) -> None:
        for _ in range(count):
            key = b"key-%d" % self.random.randrange(9)
            if self.random.random() < 0.25:
                self.store.delete(key)
            else:
                value = self.random.randbytes(self.random.choice((0, 9, 100, 700)))
                self.store.put(key, value)
            self._history.append(tuple(self.store.items()))
            if self.random.random() < 0.4:
                self.sync()
            if self.random.random() < 0.1:
                self.store.write_mark()

    def sync(self) -> None:
        self.disk.note(AllowedItems(tuple(self._history)))
        self.store.sync()
        self._history = self._history[-1:]
        self.disk.note(AllowedItems(tuple(self._history)))
