"""Opening a directory: the lock, and a log's records replayed into memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from wal.batch import Encoder
from wal.errors import Corrupt, Locked, SyncFailed
from wal.files import FileSystem, Lock
from wal.frame import Entry, Frame, RecordType
from wal.identity import IdentityFile, write_identity_file
from wal.recovery import Chain, recover
from wal.segment import KIND_LOG, SegmentHeader
from wal.settings import WalSettings
from wal.writer import SegmentWriter

SEGMENTS_DIRECTORY: Final = "wal"
LOCK_NAME: Final = "lock"


class Replay:
    """The log in memory as its records make it. ValueError for a record that cannot follow."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.base_index = 0
        self.base_term = 0
        self.commit_index = 0
        self._start = 1

    @property
    def next_index(self) -> int:
        return self._start + len(self.entries)

    def begin(self, header: SegmentHeader) -> None:
        """Start with the oldest segment there is."""
        self.base_index, self.base_term = header.base_index, header.base_term
        self._start = header.next_index

    def bulk(self) -> list[Entry] | None:
        """Where entries that follow may be put without a call for each."""
        return self.entries

    def enter(self, name: str) -> None:
        """Nothing depends on where a record stands."""

    def visit(self, frame: Frame) -> None:
        """Take one record."""
        kind, index = frame.type, frame.index
        if kind == RecordType.ENTRY:
            if index != self._start + len(self.entries):
                raise ValueError(f"entry {index} follows entry {self.next_index - 1}")
            self.entries.append(Entry(frame.payload, index, frame.term))
        elif kind == RecordType.COMMIT:
            self.commit_index = index
        elif kind == RecordType.TRUNCATE:
            self._truncate(index)
        elif kind == RecordType.BASE:
            self.base_index, self.base_term = index, frame.term
        elif kind == RecordType.RESET:
            self.base_index, self.base_term = index, frame.term
            self.entries.clear()
            self._start = index + 1
        else:
            raise ValueError(f"a log holds no record of type {kind}")

    def finish(self) -> None:
        """Drop what lies before the base. Raises ValueError if entries behind it are missing."""
        if self.base_index < self._start - 1 or self.base_index >= self.next_index:
            raise ValueError(
                f"entries {self.base_index + 1} to {self._start - 1} are missing: "
                "a segment that is still needed is gone"
            )
        del self.entries[: self.base_index + 1 - self._start]
        self._start = self.base_index + 1

    def _truncate(self, index: int) -> None:
        if index > self.next_index:
            raise ValueError(f"truncation at {index}, behind the end of the log")
        if index <= self._start:
            self.entries.clear()
            self._start = index
        else:
            del self.entries[index - self._start :]


def take_lock(directory: Path, *, fs: FileSystem) -> Lock:
    """Take the directory's lock. Raises Locked, naming what the holder left in the file."""
    path = directory / LOCK_NAME
    try:
        return fs.lock(path, note=f"pid {os.getpid()}\n")
    except BlockingIOError as error:
        holder = fs.read(path).decode(errors="replace").strip()
        raise Locked(f"{directory} is in use by another process ({holder})", path=path) from error


def open_segments(
    directory: Path, founded: IdentityFile, settings: WalSettings, fs: FileSystem, replay: Replay
) -> tuple[SegmentWriter, Chain]:
    """Recover `directory`/wal into `replay`, or begin it. Raises as `WriteAheadLog.open`."""
    segments = directory / SEGMENTS_DIRECTORY
    if not fs.exists(segments):
        fs.make_directory(segments)
        fs.sync_directory(directory)
    with _collector_paused():
        chain = recover(fs, segments, identity=founded.identity, kind=KIND_LOG, visitor=replay)
    encoder = Encoder(founded.identity, KIND_LOG, b"", settings.segment_bytes, fs.entropy)
    writer = SegmentWriter(fs, segments, encoder=encoder, settings=settings)
    if not chain.segments:
        if founded.is_started:
            raise Corrupt("the segments of a log that was in use are gone", path=segments)
        encoder.store_id = fs.entropy(16)
        writer.create_first(chain.leftovers)
    else:
        try:
            replay.finish()
        except ValueError as error:
            raise Corrupt(str(error), path=segments / chain.segments[0].name) from error
        encoder.store_id = chain.segments[-1].header.store_id
        encoder.next_index = replay.next_index
        encoder.base_index, encoder.base_term = replay.base_index, replay.base_term
        writer.resume(chain)
    if not founded.is_started:
        write_identity_file(directory, IdentityFile(founded.identity, is_started=True), fs=fs)
    writer.ensure_reserve()
    return writer, chain


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collections while a million entries come to be: half of opening's time else."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def close_writer(writer: SegmentWriter) -> None:
    """Leave a mark behind if the writer still can, and close it."""
    # A writer that failed refuses; whoever wrote has heard of it, and the files close all the same.
    with suppress(SyncFailed):
        writer.write_mark()
    writer.close()
