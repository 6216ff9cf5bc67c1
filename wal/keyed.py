"""Keys and values on disk, for a keeper's ledger and an agent's outbox.

The same segments as the log's, with PUT and DELETE records (keyed_records.py). The last record of a
key counts. A record that was durable and does not verify any more costs that record, never the
store: it is listed in `damaged`, and the key keeps the value of its last undamaged record, so that
its owner can still look for what that value spoke of.

Compaction puts the live records of the oldest segment once more at the end, gives the segment up
with a BASE record, and deletes it: oldest first, so that a DELETE never goes before the PUT it
undoes.

Thread-safe: changes and reads from any thread; `sync` blocks its caller only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Final, Self

from wal.batch import Batch, Encoder, Sealed
from wal.errors import Closed, OutOfSpace, RecordTooLarge
from wal.files import REAL_FILES, FileSystem, Lock
from wal.frame import Operation, RecordType, frame_bytes
from wal.housekeeping import Housekeeper
from wal.identity import IDENTITY_NAME, Identity, check_identity, create_directory, read_identity
from wal.keyed_records import FRONT_BYTES, Damaged, Live, encode_keyed, hash_key, load
from wal.opening import SEGMENTS_DIRECTORY, close_writer, take_lock
from wal.salvage import salvage
from wal.segment import KIND_KEYED
from wal.settings import WalSettings
from wal.writer import SegmentWriter

#: Longest key in bytes.
KEY_BYTES_MAX: Final = 1024
#: A store is compacted when it uses more than this many times what its live records need.
_SLACK_FACTOR: Final = 4


class KeyedStore:
    """See the head of this file."""

    def __init__(self, fs: FileSystem, directory: Path, settings: WalSettings) -> None:
        """Use `open`."""
        self._fs = fs
        self._directory = directory
        self._settings = settings
        self._changing = RLock()
        self._syncing = RLock()
        self._live: dict[bytes, Live] = {}
        self._live_bytes = 0
        self._pending: list[Operation] = []
        self._pending_bytes = 0
        self._number = 0
        self._previous_hash = 0
        self._batch: Batch | None = None
        self._housekeeper: Housekeeper | None = None
        self._is_closed = False
        self._writer: SegmentWriter
        self._lock: Lock
        #: Durable records that were lost, as found when opening.
        self.damaged: list[Damaged] = []

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        identity: Identity,
        settings: WalSettings | None = None,
        fs: FileSystem = REAL_FILES,
    ) -> Self:
        """Take the directory's lock and read the store; founds it in a missing or empty directory.

        Blocks. Raises Locked, WrongIdentity, UnsupportedVersion, OutOfSpace, SyncFailed, and
        Corrupt for the identity file only: damaged records are in `damaged`.
        """
        settings = settings or WalSettings.agent()
        segments = directory / SEGMENTS_DIRECTORY
        if not fs.exists(directory / IDENTITY_NAME):
            create_directory(directory, identity, fs=fs)
        check_identity(directory, read_identity(directory, fs=fs), identity)
        store = cls(fs, segments, settings)
        store._lock = take_lock(directory, fs=fs)
        try:
            if not fs.exists(segments):
                fs.make_directory(segments)
                fs.sync_directory(directory)
            store._recover(identity)
        except BaseException:
            store._lock.release()
            raise
        if settings.housekeeping:
            store._housekeeper = Housekeeper(
                store._writer, mark_idle_ms=settings.mark_idle_ms, name=identity.member
            )
        return store

    # -- reading ----------------------------------------------------------------------------------

    @property
    def store_id(self) -> str:
        """Random, 32 hexadecimal digits; a new one once the newest segment was lost whole."""
        return self._writer.encoder.store_id.hex()

    def get(self, key: bytes) -> bytes | None:
        """The key's value, durable or not yet; None without one."""
        with self._changing:
            live = self._live.get(key)
            return live.value if live else None

    def __contains__(self, key: bytes) -> bool:
        with self._changing:
            return key in self._live

    def __len__(self) -> int:
        with self._changing:
            return len(self._live)

    def items(self) -> list[tuple[bytes, bytes]]:
        """Keys and values in the order in which the keys were first put."""
        with self._changing:
            return [(key, live.value) for key, live in self._live.items()]

    # -- changing ---------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key's value; durable after the next `sync`.

        Raises RecordTooLarge and OutOfSpace; then nothing changed. ValueError for an empty key.
        """
        if not 0 < len(key) <= KEY_BYTES_MAX:
            raise ValueError(f"a key has 1 to {KEY_BYTES_MAX} bytes")
        if FRONT_BYTES + len(key) + len(value) > self._settings.record_bytes_max:
            raise RecordTooLarge(f"{len(value)} bytes; at most {self._settings.record_bytes_max}")
        with self._changing:
            self._check_room(frame_bytes(FRONT_BYTES + len(key) + len(value)))
            known = self._live.get(key)
            self._add_put(key, value, order=known.order if known else self._number + 1)

    def delete(self, key: bytes) -> bool:
        """Remove a key, durable after the next `sync`; False without one. Raises OutOfSpace."""
        with self._changing:
            self._check_room(frame_bytes(FRONT_BYTES + len(key)))
            live = self._live.pop(key, None)
            if live is None:
                return False
            self._live_bytes -= live.size_bytes
            self._add(RecordType.DELETE, key, b"", order=0)
            return True

    def sync(self) -> None:
        """Make every change so far durable before returning: one write, one sync. Blocks.

        Raises OutOfSpace (call again later: nothing is lost meanwhile) and SyncFailed (fatal).
        Compacts when the store has grown well beyond its live records; that takes a few syncs more.
        """
        with self._syncing:
            self._sync_pending()
            for _ in range(len(self._writer.encoder.sealed)):
                if not self._should_compact():
                    break
                self._compact_oldest()
        if self._housekeeper is not None:
            self._housekeeper.wake()

    def write_mark(self) -> None:
        """Store how far the store is durable. Any thread; housekeeping does it when idle."""
        self._writer.write_mark()

    def prepare_spare(self) -> bool:
        """Prepare the next segment and the reserve; False without room. Any thread."""
        return self._writer.prepare_spare()

    def close(self) -> None:
        """Release everything; changes not synced are lost. Idempotent."""
        with self._syncing, self._changing:
            if self._is_closed:
                return
            self._is_closed = True
        if self._housekeeper is not None:
            self._housekeeper.close()
        close_writer(self._writer)
        self._lock.release()

    # -- writing ----------------------------------------------------------------------------------

    def _add_put(self, key: bytes, value: bytes, *, order: int) -> None:
        size = frame_bytes(FRONT_BYTES + len(key) + len(value))
        self._add(RecordType.PUT, key, value, order=order)
        known = self._live.get(key)
        if known is not None:
            self._live_bytes -= known.size_bytes
            known.value, known.number, known.size_bytes = value, self._number, size
        else:
            self._live[key] = Live(value, order, self._number, size)
        self._live_bytes += size

    def _add(self, kind: RecordType, key: bytes, value: bytes, *, order: int) -> None:
        payload = encode_keyed(key, value, previous_hash=self._previous_hash)
        self._previous_hash = hash_key(key)
        self._number += 1
        self._pending.append(Operation(kind, self._number, order, payload))
        self._pending_bytes += frame_bytes(len(payload))

    def _check_room(self, size: int) -> None:
        if self._is_closed:
            raise Closed(f"{self._directory} is closed", path=self._directory)
        if self._writer.is_full:
            if self._housekeeper is not None:
                self._housekeeper.wake()
            # The ledger's records are what frees work: they may use the reserve to its end.
            in_flight = self._batch.size_bytes if self._batch else 0
            if size + self._pending_bytes + in_flight > self._writer.room_bytes:
                raise OutOfSpace("the disk is full", path=self._directory)

    def _sync_pending(self) -> None:
        with self._changing:
            if self._is_closed:
                raise Closed(f"{self._directory} is closed", path=self._directory)
            had_batch = self._batch is not None
        self._sync_batch()
        if had_batch:
            # That one had found no room before; what was changed since is not in it.
            self._sync_batch()

    def _sync_batch(self) -> None:
        with self._changing:
            if self._batch is None:
                if not self._pending:
                    return
                self._batch = self._writer.encode(self._pending)
                self._pending, self._pending_bytes = [], 0
            batch = self._batch
        self._writer.write(batch)
        with self._changing:
            self._writer.finish(batch)
            self._batch = None

    def _should_compact(self) -> bool:
        with self._changing:
            sealed = self._writer.encoder.sealed
            limit = max(self._live_bytes * _SLACK_FACTOR, self._settings.segment_bytes)
            return bool(sealed) and not self._writer.is_full and self._writer.used_bytes > limit

    def _compact_oldest(self) -> None:
        with self._changing:
            last = self._writer.encoder.sealed[0].last_index
            moved = [(key, live) for key, live in self._live.items() if live.number <= last]
            for key, live in moved:
                self._add_put(key, live.value, order=live.order)
        # Durable at their new place before the old one is given up.
        self._sync_pending()
        with self._changing:
            self._pending.append(Operation(RecordType.BASE, last, 0, b""))
            self._pending_bytes += frame_bytes(0)
        self._sync_pending()

    # -- opening ----------------------------------------------------------------------------------

    def _recover(self, identity: Identity) -> None:
        found = salvage(self._fs, self._directory, identity=identity, kind=KIND_KEYED)
        loaded = load(found)
        self._live, self.damaged = loaded.live, loaded.damaged
        self._live_bytes = sum(live.size_bytes for live in self._live.values())
        self._number, self._previous_hash = loaded.number, loaded.previous_hash
        encoder = Encoder(identity, KIND_KEYED, b"", self._settings.segment_bytes, self._fs.entropy)
        encoder.base_index, encoder.next_index = loaded.base, loaded.number + 1
        self._writer = SegmentWriter(
            self._fs, self._directory, encoder=encoder, settings=self._settings
        )
        self._set_aside(found.unreadable)
        if found.chain is not None:
            encoder.store_id = found.segments[-1].header.store_id
            # Behind the damage, if it ends with some: that place is looked at again.
            end = found.chain.segments[-1].end
            found.chain.segments = [*loaded.kept[:-1], replace(loaded.kept[-1], end=end)]
            found.chain.leftovers = found.leftovers + loaded.obsolete
            self._writer.resume(found.chain)
        else:
            encoder.store_id = self._fs.entropy(16)
            encoder.sealed = [Sealed(s.name, s.next_index - 1, s.end) for s in loaded.kept]
            leftovers = found.leftovers + loaded.obsolete
            self._writer.create_first(leftovers, sequence=found.newest_sequence + 1)
        self._writer.ensure_reserve()

    def _set_aside(self, names: list[str]) -> None:
        """Move files that cannot be read to `quarantine`; the program never deletes them."""
        if not names:
            return
        aside = self._directory.parent / "quarantine"
        self._fs.make_directory(aside)
        for name in names:
            self._fs.rename(self._directory / name, aside / name)
        self._fs.sync_directory(aside)
        self._fs.sync_directory(self._directory)
