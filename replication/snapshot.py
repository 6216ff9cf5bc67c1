"""Snapshots: taken from an immutable view, fetched by members too far behind, installed at once.

Taking. Every so many entries or bytes the state machine gives a view (a few ms on the loop), a
worker writes it, reads it back, and only then is the log trimmed, to a tail that is kept for
members that were briefly absent. The worker pauses after each chunk as long as the chunk took: it
shares the interpreter with the loop, and a commit must not wait for it. Chunks are small, then.

Fetching. A leader that no longer has the entries a member needs offers its snapshot instead. The
member *pulls* it, piece by piece, over a connection of its own: pacing and memory are bounded by
the receiver, the leader keeps no state of the transfer, and heartbeats never queue behind it.

Installing. The file is verified and durable before anything changes. A worker reads it into a
state beside the present one, so that the loop goes on and a failure leaves everything as it was.
Then, in one step of the loop, the log is reset behind it (durable) and the state machine is
replaced. A crash in between leaves a snapshot newer than the log, which `recover` completes. One
not ahead of what was applied is never installed (B20).

Event loop, except what is said to run in a worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import msgspec

from replication.config import ReplicationConfig
from replication.core import RaftCore
from replication.errors import ReplicationError, StorageMismatch
from replication.interface import SnapshotView, StateMachine
from replication.journal import WalJournal
from replication.messages import SnapshotOffer
from replication.pump import Pump
from replication.session import Session
from replication.transport import Transport
from wal.errors import WalError
from wal.log import WriteAheadLog
from wal.snapshots import SnapshotInfo, SnapshotStore

logger = logging.getLogger(__name__)

OPEN_KIND: Final = "snapshot.open"
READ_KIND: Final = "snapshot.read"
PIECE_BYTES: Final = 512 * 1024
#: Time for one piece; the leader may be busy, but not that busy.
PIECE_TIMEOUT_S: Final = 30.0
#: The longest a worker waits for one piece, all retries included.
PIECE_WAIT_S: Final = PIECE_TIMEOUT_S + 5.0
#: A failed fetch is not begun again before this.
FETCH_PAUSE_S: Final = 1.0
#: Seconds before a snapshot that could not be written (a full disk) is tried again.
TAKE_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A state that was read and is not in use; one of the two calls is made, once."""

    #: Put it in place; quick, on the event loop. Returns a `discard` for the state before it.
    adopt: Callable[[], Callable[[], None]]
    #: Let it go; slow, in a worker.
    discard: Callable[[], None]


@runtime_checkable
class PreparesRestore(Protocol):
    """A state machine that reads a snapshot in a worker, for states that take long to read."""

    def prepare_restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> Prepared:
        """Read the state without touching the present one. Raises as `StateMachine.restore`.

        Worker thread.
        """
        ...


class _OpenQuery(msgspec.Struct, frozen=True, array_like=True):
    index: int


class _OpenAnswer(msgspec.Struct, frozen=True, array_like=True):
    index: int
    term: int
    size_bytes: int


class _ReadQuery(msgspec.Struct, frozen=True, array_like=True):
    index: int
    offset: int
    size_bytes: int


def recover(
    store: SnapshotStore, log: WriteAheadLog, machine: StateMachine
) -> tuple[int, int, SnapshotInfo | None]:
    """Restore the newest valid snapshot and make log and state meet; at start, before any traffic.

    Returns applied index, its term, and the snapshot. Raises StorageMismatch for a gap. Blocks.
    """
    info = store.newest_valid()
    index, term = (0, 0) if info is None else (info.index, info.term)
    if log.base_index > index:
        raise StorageMismatch(
            f"the log begins after entry {log.base_index}, but the newest valid snapshot ends at"
            f" {index}: rebuild this member from its peers (`pertinax cluster replace`)"
        )
    if info is None:
        return 0, 0, None
    if log.last_index < index or log.term_at(index) != term:
        # The crash came between a snapshot's installation and the reset of the log behind it.
        log.reset(index, term)
        log.sync()
    machine.restore(store.open_reader(index), index=index, term=term)
    return index, term, info


class SnapshotEngine:
    """See the module."""

    def __init__(
        self,
        config: ReplicationConfig,
        store: SnapshotStore,
        machine: StateMachine,
        *,
        core: RaftCore,
        pump: Pump,
        transport: Transport,
        newest: SnapshotInfo | None,
    ) -> None:
        self._config = config
        self._store = store
        self._core = core
        self._pump = pump
        self._transport = transport
        self._machine = machine
        self._workers = ThreadPoolExecutor(3, thread_name_prefix="snapshot")
        self._taking: asyncio.Task[None] | None = None
        #: Monotonic instant before which no snapshot is tried, after one that failed.
        self._retry_at = 0.0
        self._fetching: asyncio.Task[None] | None = None
        self._is_closed = False
        self._bytes_at_newest = 0
        #: The newest snapshot on this disk; 0 for none.
        self.newest_index = 0
        self.newest_seconds = 0.0
        if newest is not None:
            self.newest_index = newest.index
            core.snapshot_point = (newest.index, newest.term)
        transport.on_request(OPEN_KIND, self._answer_open)
        transport.on_request(READ_KIND, self._answer_read)

    async def close(self) -> None:
        """Give up what is under way. Idempotent."""
        self._is_closed = True
        tasks = [task for task in (self._taking, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._workers.shutdown)

    # Taking

    def note_applied(self) -> None:
        """Something was applied: is a snapshot due?"""
        pump = self._pump
        entries = pump.applied_index - self.newest_index
        size = pump.applied_bytes - self._bytes_at_newest
        if self._taking is not None and not self._taking.done():
            return
        if time.monotonic() < self._retry_at:
            return
        if entries >= self._config.snapshot_every_entries or (
            size >= self._config.snapshot_every_bytes
        ):
            self.begin()

    def begin(self) -> asyncio.Task[None]:
        """Take a snapshot now; the task ends when it is verified and the log trimmed."""
        if self._taking is None or self._taking.done():
            self._taking = asyncio.get_running_loop().create_task(self._take())
        return self._taking

    async def _take(self) -> None:
        pump = self._pump
        index, term = pump.applied_index, pump.applied_term
        if index <= self.newest_index or pump.is_stopped:
            return
        self._bytes_at_newest = pump.applied_bytes
        started = time.monotonic()
        try:
            view = self._machine.snapshot_view()
            await asyncio.get_running_loop().run_in_executor(
                self._workers, write_snapshot, self._store, view, index, term
            )
        except WalError as error:
            # Nothing was trimmed; the first apply after the pause tries again.
            self._retry_at = time.monotonic() + TAKE_PAUSE_S
            logger.error("snapshot_failed index=%d error=%s", index, error)
            return
        except Exception as error:  # noqa: BLE001 - a view that raises is a bug: fail-stop
            pump.fail(error)
            return
        self.newest_seconds = time.monotonic() - started
        logger.info("snapshot_taken index=%d seconds=%.2f", index, self.newest_seconds)
        self._use(index, term)

    def _use(self, index: int, term: int) -> None:
        """A durable snapshot is there: offer it, and trim the log behind it."""
        self.newest_index = index
        self._core.snapshot_point = (index, term)
        trim_log(self._core.journal, self._pump, index - self._config.keep_tail_entries)

    # Fetching

    def receive_offer(self, member: str, offer: SnapshotOffer) -> None:
        """The leader has no entries for this member, only a snapshot."""
        if offer.index <= self._pump.applied_index or self._pump.is_stopped:
            return
        if self._fetching is None or self._fetching.done():
            logger.info("snapshot_fetch member=%s index=%d", member, offer.index)
            self._fetching = asyncio.get_running_loop().create_task(
                self._fetch(member, offer.index)
            )

    async def _fetch(self, member: str, index: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            session = await self._transport.open_bulk(member)
            try:
                query = msgspec.msgpack.encode(_OpenQuery(index))
                body = await session.request(OPEN_KIND, query, timeout_s=PIECE_TIMEOUT_S)
                opened = msgspec.msgpack.decode(body, type=_OpenAnswer)
                pieces = self._pieces(loop, session, opened)
                info = await loop.run_in_executor(self._workers, self._store.install, pieces)
            finally:
                session.close("the transfer is over")
            if (info.index, info.term) != (opened.index, opened.term):
                raise ReplicationError(f"asked for snapshot {opened.index}, got {info.index}")
        except (OSError, TimeoutError, ReplicationError, WalError, msgspec.MsgspecError) as error:
            logger.warning("snapshot_fetch_failed member=%s error=%s", member, error)
            await asyncio.sleep(FETCH_PAUSE_S)
            return
        try:
            await self._install(info)
        except Exception as error:  # noqa: BLE001 - fail-stop: log and state may not meet any more
            self._pump.fail(error)

    def _pieces(
        self, loop: asyncio.AbstractEventLoop, session: Session, opened: _OpenAnswer
    ) -> Iterator[bytes]:
        """The file's bytes; iterated by a worker, fetched by the loop."""
        for offset in range(0, opened.size_bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, opened.size_bytes - offset)
            query = msgspec.msgpack.encode(_ReadQuery(opened.index, offset, size))
            piece = asyncio.run_coroutine_threadsafe(self._read_paced(session, query), loop)
            yield piece.result(PIECE_WAIT_S)

    async def _read_paced(self, session: Session, query: bytes) -> bytes:
        piece = await session.request(READ_KIND, query, timeout_s=PIECE_TIMEOUT_S)
        await asyncio.sleep(len(piece) / self._config.snapshot_bytes_per_s)
        return piece

    async def _install(self, info: SnapshotInfo) -> None:
        pump, journal = self._pump, self._core.journal
        loop = asyncio.get_running_loop()
        prepared: Prepared | None = None
        if self._is_ahead(info) and not journal.holds(info.index, info.term):
            started = time.monotonic()
            prepared = await loop.run_in_executor(self._workers, self._prepare, info)
            logger.info("snapshot_read index=%d s=%.2f", info.index, time.monotonic() - started)
        surplus = None if prepared is None else prepared.discard

        def restore() -> None:
            nonlocal surplus
            assert prepared is not None, "it was not read because the log held its last entry"
            surplus = prepared.adopt()

        if self._is_ahead(info):
            meet_snapshot(journal, pump, index=info.index, term=info.term, restore=restore)
            self._bytes_at_newest = pump.applied_bytes
            self._use(info.index, info.term)
            logger.info("snapshot_installed index=%d term=%d", info.index, info.term)
            await loop.run_in_executor(self._workers, self._store.prune)
        if surplus is not None:
            await loop.run_in_executor(self._workers, surplus)

    def _is_ahead(self, info: SnapshotInfo) -> bool:
        return not self._pump.is_stopped and info.index > self._pump.applied_index

    def _prepare(self, info: SnapshotInfo) -> Prepared:
        """Worker thread."""
        chunks = self._until_closed(self._store.open_reader(info.index))
        return prepare_restore(self._machine, chunks, index=info.index, term=info.term)

    def _until_closed(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._is_closed:
                raise ReplicationError("this member stops")
            yield chunk

    # Serving

    async def _answer_open(self, member: str, body: bytes) -> bytes:
        del member
        wanted = msgspec.msgpack.decode(body, type=_OpenQuery)
        info = await self._find(wanted.index)
        return msgspec.msgpack.encode(_OpenAnswer(info.index, info.term, info.size_bytes))

    async def _answer_read(self, member: str, body: bytes) -> bytes:
        del member
        query = msgspec.msgpack.decode(body, type=_ReadQuery)
        if not 0 < query.size_bytes <= PIECE_BYTES or query.offset < 0:
            raise ReplicationError("a piece out of range")
        info = await self._find(query.index)
        return await asyncio.get_running_loop().run_in_executor(
            self._workers, read_piece, info.path, query.offset, query.size_bytes
        )

    async def _find(self, index: int) -> SnapshotInfo:
        loop = asyncio.get_running_loop()
        for info in await loop.run_in_executor(self._workers, self._store.infos):
            if info.index == index:
                return info
        raise ReplicationError(f"snapshot {index} is gone; a newer one is offered soon")


def prepare_restore(
    machine: StateMachine, chunks: Iterable[bytes], *, index: int, term: int
) -> Prepared:
    """Read a snapshot for `machine`; one that cannot do so beside its state does it when adopted.

    Worker thread. Raises what `restore` does and wal.errors.Corrupt.
    """
    if isinstance(machine, PreparesRestore):
        return machine.prepare_restore(chunks, index=index, term=term)
    read = list(chunks)

    def adopt() -> Callable[[], None]:
        machine.restore(read, index=index, term=term)
        return read.clear

    return Prepared(adopt, read.clear)


def meet_snapshot(
    journal: WalJournal, pump: Pump, *, index: int, term: int, restore: Callable[[], None]
) -> None:
    """Bring log, state machine and pump to a durable snapshot ahead of what was applied here."""
    if journal.holds(index, term):
        # The entries arrived after all: they need only be applied.
        pump.note_committed(index)
        return
    journal.storage.reset(index, term)
    journal.storage.sync()
    restore()
    pump.note_installed(index, term)


def trim_log(journal: WalJournal, pump: Pump, last_dropped: int) -> None:
    """Drop entries up to `last_dropped`, which a durable snapshot covers.

    Never what is still to be applied: a fetched snapshot may cover entries that are in the log
    and only now known to be committed.
    """
    last_dropped = min(last_dropped, pump.applied_index)
    if last_dropped > journal.base_index and not pump.is_stopped:
        journal.storage.truncate_prefix(last_dropped)
        pump.wake()


def read_piece(path: Path, offset: int, size_bytes: int) -> bytes:
    """Bytes of a file. Blocks."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size_bytes)


def write_snapshot(store: SnapshotStore, view: SnapshotView, index: int, term: int) -> SnapshotInfo:
    """Write, sync and verify one snapshot, then drop the oldest. Worker thread."""
    with store.writer(index, term) as writer:
        started = time.monotonic()
        for chunk in view.chunks():
            writer.write(chunk)
            # Half the interpreter's time belongs to the loop, whatever the state's size.
            time.sleep(time.monotonic() - started)
            started = time.monotonic()
        info = writer.commit()
    store.prune()
    return info
