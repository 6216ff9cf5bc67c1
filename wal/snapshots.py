"""Snapshots as checksummed files: the newest valid one counts, two are kept.

A file, little-endian:

    header  8s magic, u32 format, u32 zero, u64 index, u64 term, u32 crc32 of the 32 bytes before
    chunk   u32 length > 0, u32 crc32 of the data started from the checksum before it, then the data
    trailer u32 zero, u32 last checksum, u64 total data bytes, u32 crc32 of the 16 bytes before

The checksums chain from the header on, so chunks cannot be lost, swapped or borrowed from another
file. Written aside, synced, read back, renamed, directory synced: a name never shows half a
snapshot, and a log is trimmed only after `commit` returned.

Thread-safe between instances of the calls; one writer object is used by one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from threading import Lock
from types import TracebackType
from typing import Final, Self
from zlib import crc32

from wal.errors import Corrupt, OutOfSpace, SyncFailed, UnsupportedVersion, WalError
from wal.files import NO_SPACE_ERRNOS, REAL_FILES, File, FileSystem

_HEADER: Final = Struct("<8sIIQQ")
_CHUNK: Final = Struct("<II")
_TRAILER: Final = Struct("<IIQ")
_CRC_BYTES: Final = 4
_MAGIC: Final = b"PTXNSNAP"
_FORMAT: Final = 1
#: Largest chunk; larger pieces are split.
CHUNK_BYTES_MAX: Final = 1 << 20
#: Synced at least this often while it is written: a sync of hundreds of MB at the end would keep
#: the log's own syncs on the same disk waiting.
SYNC_BYTES: Final = 8 << 20
#: Snapshots kept: the newest, and one to fall back on.
KEPT_COUNT: Final = 2
_CHOICES: Final = (
    "Choices: an older snapshot serves while the log still reaches back to it; else rebuild this "
    "member from its peers (`pertinax cluster replace NAME`)"
)
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.snap")


@dataclass(frozen=True, slots=True, order=True)
class SnapshotInfo:
    """A snapshot file: the state after the entry `index` of `term`."""

    index: int
    term: int
    path: Path
    size_bytes: int


class SnapshotStore:
    """The `snapshots` directory of a member. Methods block and may run in any thread."""

    def __init__(self, directory: Path, *, fs: FileSystem = REAL_FILES) -> None:
        self._directory = directory
        self._fs = fs
        self._counting = Lock()
        self._aside_count = 0

    def open(self) -> None:
        """Create the directory and remove unfinished files. Call once, before other use."""
        self._fs.make_directory(self._directory)
        self._fs.sync_directory(self._directory.parent)
        for name in self._fs.names(self._directory):
            if name.endswith(".tmp"):
                self._fs.remove(self._directory / name)

    def infos(self) -> list[SnapshotInfo]:
        """All snapshots by name, newest first, unverified."""
        found: list[SnapshotInfo] = []
        try:
            names = self._fs.names(self._directory)
        except FileNotFoundError:
            return []
        for name in names:
            match = _NAME.fullmatch(name)
            if match:
                path = self._directory / name
                found.append(SnapshotInfo(int(match[1]), int(match[2]), path, self._fs.size(path)))
        return sorted(found, reverse=True)

    def newest_valid(self) -> SnapshotInfo | None:
        """The newest snapshot that verifies when read whole; None if none does."""
        for info in self.infos():
            try:
                verify(info.path, fs=self._fs)
            except Corrupt:
                continue
            return info
        return None

    def writer(self, index: int, term: int) -> SnapshotWriter:
        """Begin a snapshot; nothing is visible before its `commit`."""
        return SnapshotWriter(self._fs, self._directory, self._aside(), index=index, term=term)

    def open_reader(self, index: int) -> SnapshotReader:
        """The chunks of the snapshot at `index`. Raises FileNotFoundError."""
        for info in self.infos():
            if info.index == index:
                return SnapshotReader(info.path, fs=self._fs)
        raise FileNotFoundError(f"no snapshot at index {index} in {self._directory}")

    def install(self, raw: Iterable[bytes]) -> SnapshotInfo:
        """Store a snapshot file received as raw bytes; visible only once it verified.

        Raises Corrupt for bytes that are no whole snapshot, OutOfSpace, SyncFailed; then nothing
        changed. `raw` may be any iterable of pieces.
        """
        aside = self._aside()
        try:
            with _mapped(aside):
                file = self._fs.create(aside)
                try:
                    offset, synced = 0, 0
                    for piece in raw:
                        file.pwrite(piece, offset)
                        offset += len(piece)
                        if offset - synced >= SYNC_BYTES:
                            file.sync()
                            synced = offset
                    file.sync()
                finally:
                    file.close()
            info = verify(aside, fs=self._fs)
        except BaseException:
            self._fs.remove(aside)
            raise
        return publish(self._fs, aside, self._directory, index=info.index, term=info.term)

    def prune(self, *, keep: int = KEPT_COUNT) -> int:
        """Remove all but the newest `keep`; returns how many went."""
        surplus = self.infos()[keep:]
        for info in surplus:
            self._fs.remove(info.path)
        if surplus:
            self._fs.sync_directory(self._directory)
        return len(surplus)

    def _aside(self) -> Path:
        with self._counting:
            self._aside_count += 1
            return self._directory / f"{self._aside_count}.tmp"


class SnapshotWriter:
    """Writes one snapshot. As a context manager it removes what was not committed."""

    def __init__(
        self, fs: FileSystem, directory: Path, aside: Path, *, index: int, term: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._aside = aside
        self._index, self._term = index, term
        head = _HEADER.pack(_MAGIC, _FORMAT, 0, index, term)
        self._crc = crc32(head)
        self._total = 0
        self._offset = 0
        self._synced = 0
        self._is_open = True
        with _mapped(aside):
            self._file: File = fs.create(aside)
        self._put(head + self._crc.to_bytes(_CRC_BYTES, "little"))

    def write(self, data: bytes) -> None:
        """Append to the body. Raises OutOfSpace, SyncFailed: then `abort`."""
        for start in range(0, len(data), CHUNK_BYTES_MAX):
            piece = data[start : start + CHUNK_BYTES_MAX]
            self._crc = crc32(piece, self._crc)
            self._put(_CHUNK.pack(len(piece), self._crc) + piece)
            self._total += len(piece)

    def commit(self) -> SnapshotInfo:
        """Finish, sync, read back and verify, then give it its name; durable on return.

        Raises OutOfSpace, SyncFailed and Corrupt (it did not read back as written).
        """
        tail = _TRAILER.pack(0, self._crc, self._total)
        self._put(tail + crc32(tail).to_bytes(_CRC_BYTES, "little"))
        with _mapped(self._aside):
            self._file.sync()
        self._close()
        verify(self._aside, fs=self._fs)
        return publish(self._fs, self._aside, self._directory, index=self._index, term=self._term)

    def abort(self) -> None:
        """Remove what was written. Idempotent; nothing after `commit`."""
        if self._is_open:
            self._close()
            self._fs.remove(self._aside)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def _put(self, data: bytes) -> None:
        with _mapped(self._aside):
            self._file.pwrite(data, self._offset)
            self._offset += len(data)
            if self._offset - self._synced >= SYNC_BYTES:
                self._file.sync()
                self._synced = self._offset

    def _close(self) -> None:
        self._is_open = False
        self._file.close()


class SnapshotReader:
    """Iterates the body's chunks of one file and verifies on the way. One pass, one thread.

    Raises Corrupt at the first chunk that does not verify, or at the end if the file is not whole:
    what was read is not to be used before the iteration ended well.
    """

    def __init__(self, path: Path, *, fs: FileSystem = REAL_FILES) -> None:
        self.path = path
        self._file = fs.open(path, writable=False)
        self._size = fs.size(path)
        self._offset = 0
        try:
            head = self._take(_HEADER.size, "header")
            magic, version, _, self.index, self.term = _HEADER.unpack(head)
            self._crc = crc32(head)
            stated = int.from_bytes(self._take(_CRC_BYTES, "header"), "little")
            if magic != _MAGIC or stated != self._crc:
                raise self._corrupt("the snapshot's header does not verify", 0)
            if version > _FORMAT:
                raise UnsupportedVersion(f"{path} has format {version}", path=path)
        except WalError:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        total = 0
        try:
            while True:
                start = self._offset
                length, stated = _CHUNK.unpack(self._take(_CHUNK.size, "chunk"))
                if length == 0:
                    break
                if length > CHUNK_BYTES_MAX:
                    raise self._corrupt("a chunk's length is out of range", start)
                data = self._take(length, "chunk")
                self._crc = crc32(data, self._crc)
                if self._crc != stated:
                    raise self._corrupt("a chunk does not verify", start)
                total += length
                yield data
            self._check_trailer(start, stated, total)
        finally:
            self.close()

    def close(self) -> None:
        """Release the file. Idempotent."""
        self._file.close()

    def _check_trailer(self, start: int, stated: int, total: int) -> None:
        rest = self._take(_TRAILER.size - _CHUNK.size + _CRC_BYTES, "trailer")
        tail = _TRAILER.pack(0, stated, int.from_bytes(rest[:8], "little"))
        if crc32(tail) != int.from_bytes(rest[8:], "little"):
            raise self._corrupt("the trailer does not verify", start)
        if stated != self._crc or int.from_bytes(rest[:8], "little") != total:
            raise self._corrupt("the trailer belongs to other contents", start)
        if self._offset != self._size:
            raise self._corrupt("bytes behind the trailer", self._offset)

    def _take(self, count: int, what: str) -> bytes:
        data = self._file.pread(count, self._offset)
        if len(data) != count:
            raise self._corrupt(f"the file ends within a {what}", self._offset + len(data))
        self._offset += count
        return data

    def _corrupt(self, what: str, offset: int) -> Corrupt:
        return Corrupt(what, path=self.path, offset=offset, choices=_CHOICES)


def verify(path: Path, *, fs: FileSystem = REAL_FILES) -> SnapshotInfo:
    """Read a snapshot file whole. Raises Corrupt with the place, UnsupportedVersion."""
    reader = SnapshotReader(path, fs=fs)
    for _ in reader:
        pass
    return SnapshotInfo(reader.index, reader.term, path, reader.size_bytes)


def publish(fs: FileSystem, aside: Path, directory: Path, *, index: int, term: int) -> SnapshotInfo:
    """Give a verified, synced file its name; durable on return."""
    path = directory / f"{index:020d}-{term:020d}.snap"
    with _mapped(path):
        fs.rename(aside, path)
        fs.sync_directory(directory)
    return SnapshotInfo(index, term, path, fs.size(path))


class _mapped:  # noqa: N801 - reads as the statement it is
    """Turns OSError into this package's errors."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            if error.errno in NO_SPACE_ERRNOS:
                raise OutOfSpace(f"{self._path}: {error}", path=self._path) from error
            raise SyncFailed(f"{self._path}: {error}", path=self._path) from error
