"""The file system as this package sees it: an interface, so that it can fail and crash in memory.

Contract of every implementation, and all that recovery may rely on: bytes written are durable once
`File.sync` returned, names (create, rename, remove) once `sync_directory` returned. Before that any
subset of them may have reached the disk. Errors are OSError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from pathlib import Path
from typing import Final, Protocol

_ZEROS: Final = bytes(1 << 22)

#: The errors that mean "no room" rather than "the disk is broken".
NO_SPACE_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class File(Protocol):
    """An open file. `pwrite` and `sync` may be called from any one thread at a time."""

    def pwrite(self, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`. Raises OSError; then any part may have been written."""
        ...

    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`; fewer at the end of the file."""
        ...

    def allocate(self, size: int) -> None:
        """Fill the file with real zeros up to `size` bytes. Raises OSError (ENOSPC)."""
        ...

    def sync(self) -> None:
        """Make the written bytes durable (fdatasync). Raises OSError."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """The calls this package makes, and no others."""

    def make_directory(self, path: Path) -> None:
        """Create the directory and its parents; nothing if it exists."""
        ...

    def names(self, path: Path) -> list[str]:
        """Names in a directory, sorted. Raises FileNotFoundError."""
        ...

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def read(self, path: Path) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        ...

    def create(self, path: Path) -> File:
        """A new, empty file; one of that name is replaced."""
        ...

    def open(self, path: Path, *, writable: bool) -> File: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...

    def lock(self, path: Path, *, note: str) -> Lock:
        """Take the lock for the life of this process. Raises BlockingIOError when it is held."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Space an unprivileged writer still has on the file system of `path`."""
        ...

    def entropy(self, count: int) -> bytes:
        """Random bytes; here, so that tests can repeat a run."""
        ...


class _RealFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pwrite(self, data: bytes, offset: int) -> None:
        written = os.pwrite(self._fd, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(self._fd, view[written:], offset + written)

    def pread(self, count: int, offset: int) -> bytes:
        return os.pread(self._fd, count, offset)

    def allocate(self, size: int) -> None:
        # Real zeros, not fallocate: a later fdatasync then has no metadata to write (2.5x faster).
        for offset in range(0, size, len(_ZEROS)):
            self.pwrite(_ZEROS[: min(len(_ZEROS), size - offset)], offset)
            # In small bursts: a batch whose sync meets 64 MiB at once waits 50 ms, so 15 ms.
            self.sync()

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class _RealLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class RealFileSystem:
    """The operating system's files. Thread-safe."""

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def names(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))  # noqa: PTH208 - names, not Path objects, are wanted

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def create(self, path: Path) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        return _RealFile(os.open(path, flags, 0o600))

    def open(self, path: Path, *, writable: bool) -> File:
        mode = os.O_RDWR if writable else os.O_RDONLY
        return _RealFile(os.open(path, mode | os.O_CLOEXEC))

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path, *, note: str) -> Lock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, note.encode(), 0)
        except OSError:
            os.close(fd)
            raise
        return _RealLock(fd)

    def free_bytes(self, path: Path) -> int:
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def entropy(self, count: int) -> bytes:
        return secrets.token_bytes(count)


REAL_FILES: Final[FileSystem] = RealFileSystem()
