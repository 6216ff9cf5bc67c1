"""Captured output on disk: its layout, and reading it.

A stream is the file `NAME` with the first bytes and, once it outgrew half its limit, files
`NAME.OFFSET` (20 digits) with the newest ones, of which the oldest is removed when together they
outgrow the other half. All that a reader has to know is in the names: what no file covers is the
gap. Files appear with their first byte, so a silent job costs none.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final, NamedTuple

STREAMS: Final = ("stdout", "stderr")
#: The newest half of a stream is kept in pieces of this part of the limit.
TAIL_PIECES: Final = 8
#: A smaller limit is taken for this one: the tail's pieces must be worth a file.
LIMIT_BYTES_MIN: Final = 4_096
#: A reader that meets a piece just removed looks again this often.
_RETRIES_MAX: Final = 3


class Extent(NamedTuple):
    """`size` bytes of a stream, from `start` on, in the file `path`."""

    start: int
    size: int
    path: Path


def extents(directory: Path, stream: str) -> list[Extent]:
    """What is kept of a stream, in order. Empty when it never wrote, or is gone."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                start = _start_of(entry.name, stream)
                if start is not None and entry.is_file(follow_symlinks=False):
                    found.append(Extent(start, entry.stat().st_size, Path(entry.path)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def stream_size(directory: Path, stream: str) -> int:
    """Bytes written to the stream so far, kept or not."""
    return max((extent.start + extent.size for extent in extents(directory, stream)), default=0)


def read_stream(directory: Path, stream: str, offset: int, length: int) -> tuple[int, bytes]:
    """Up to `length` bytes at `offset` or, when that lies in the gap, at the next kept byte.

    Returns where the bytes begin and the bytes; none at the end. Any process may read at any time.
    """
    for _ in range(_RETRIES_MAX):
        for extent in extents(directory, stream):
            if extent.start + extent.size <= offset:
                continue
            begin = max(extent.start, offset)
            try:
                with extent.path.open("rb") as file:
                    file.seek(begin - extent.start)
                    return begin, file.read(min(length, extent.start + extent.size - begin))
            except FileNotFoundError:
                break
        else:
            return offset, b""
    return offset, b""


def stream_digest(directory: Path, stream: str) -> str:
    """SHA-256 (hex) of a stream that is kept whole; empty when it has a gap."""
    digest = hashlib.sha256()
    at = 0
    for extent in extents(directory, stream):
        if extent.start != at:
            return ""
        with extent.path.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
                at += len(data)
    return digest.hexdigest()


class StreamFile:
    """Appends to one stream within its limit. Never raises for a full disk: bytes are lost then.

    A lost or dropped byte counts for `size` all the same, and `is_truncated` says so.
    """

    def __init__(self, directory: Path, stream: str, limit_bytes: int) -> None:
        self._directory = directory
        self._stream = stream
        limit_bytes = max(limit_bytes, LIMIT_BYTES_MIN)
        self._piece_bytes = limit_bytes // 2 // TAIL_PIECES
        self._head_bytes = limit_bytes - self._piece_bytes * TAIL_PIECES
        self._pieces: list[Path] = []
        self._fd = -1
        self._room = 0
        self.size = 0
        self.is_truncated = False

    def resume(self) -> None:
        """Go on after the bytes that an earlier keeper left."""
        kept = extents(self._directory, self._stream)
        if not kept:
            return
        last = kept[-1]
        self.size = last.start + last.size
        self._pieces = [extent.path for extent in kept if extent.start > 0]
        ends = [extent.start + extent.size for extent in kept]
        self.is_truncated = any(end != extent.start for end, extent in zip(ends, kept[1:]))  # noqa: B905
        whole = self._head_bytes if last.start == 0 else self._piece_bytes
        self._open(last.path, whole - last.size)

    def append(self, data: bytes) -> None:
        """Keep `data` as far as the limit allows."""
        view = memoryview(data)
        while view:
            if self._room <= 0:
                self._next_piece()
            written = self._write(view[: self._room])
            self._room -= written
            self.size += written
            view = view[written:]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _next_piece(self) -> None:
        if self.size == 0:
            self._open(self._directory / self._stream, self._head_bytes)
            return
        path = self._directory / f"{self._stream}.{self.size:020d}"
        self._pieces.append(path)
        if len(self._pieces) > TAIL_PIECES:
            self._pieces.pop(0).unlink(missing_ok=True)
            self.is_truncated = True
        self._open(path, self._piece_bytes)

    def _open(self, path: Path, room: int) -> None:
        self.close()
        self._room = room
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        for _ in range(2):
            try:
                self._fd = os.open(path, flags, 0o600)
            except FileNotFoundError:
                self._directory.mkdir(mode=0o711, exist_ok=True)
            except OSError:
                break
            else:
                return
        self.is_truncated = True

    def _write(self, view: memoryview) -> int:
        """Bytes of `view` dealt with: written, or lost to a full disk."""
        if self._fd < 0:
            self.is_truncated = True
            return len(view)
        try:
            return os.write(self._fd, view)
        except OSError:
            # A hole would shift what follows: this piece ends here, the next is tried later.
            self.is_truncated = True
            self.close()
            return len(view)


def _start_of(name: str, stream: str) -> int | None:
    if name == stream:
        return 0
    prefix, _, digits = name.rpartition(".")
    if prefix == stream and len(digits) == 20 and digits.isdigit():
        return int(digits)
    return None
