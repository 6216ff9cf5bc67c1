"""Capturing one stream: pipe -> files, hashed and counted, without ever blocking.

The attempt's end of the pipe is open for reading and writing, so the attempt itself keeps a reader
alive: when the keeper dies, a writer waits for the next keeper instead of dying of SIGPIPE. The new
keeper opens the same pipe again through /proc of a process that still has it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
from pathlib import Path
from typing import Any, Final

from agent.keeper.clock import boottime_ms
from agent.keeper.streams import (
    STREAMS,
    Extent,
    StreamFile,
    extents,
    read_stream,
    stream_digest,
    stream_size,
)

__all__ = ["STREAMS", "Capture", "Extent", "extents", "read_stream", "stream_size"]

#: Bytes read at once, and most bytes of one stream in one turn: others get their share.
READ_BYTES: Final = 64 * 1024
TURN_BYTES_MAX: Final = 512 * 1024
#: Descriptors beside those of attempts: the journal's, the socket's, those for a look at /proc.
DESCRIPTORS_SPARE: Final = 32
#: What may lie in a pipe when its attempt is over; a stranger that goes on writing is cut off here.
DRAIN_BYTES_MAX: Final = 2 * 1024 * 1024


class Capture:
    """One stream of one attempt. Loop thread only."""

    def __init__(self, directory: Path, stream: str, limit_bytes: int) -> None:
        self._file = StreamFile(directory, stream, limit_bytes)
        self._digest: Any = hashlib.sha256()
        self._directory = directory
        self._stream = stream
        self.fd = -1
        #: Identifies the pipe in /proc/PID/fd for a later keeper.
        self.pipe_inode = 0
        self.wrote_at_ms = boottime_ms()

    def open_pipe(self, owner: tuple[int, int] | None = None) -> int:
        """Make the pipe and return the end for the attempt, which the caller closes after the fork.

        `owner` (uid, gid) lets another user's attempt open /dev/stdout. Raises OSError (EMFILE …).
        """
        self.fd, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Descriptors are given out lowest first: this one says how many are in use. The rest is for
        # the output's files and for looking at processes, without which no end could be proven.
        if writer >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - DESCRIPTORS_SPARE:
            os.close(writer)
            self.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        try:
            both = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            os.set_blocking(writer, True)
            return writer  # no /proc: an ordinary write end
        except OSError:
            os.close(writer)
            self.close()
            raise
        os.close(writer)
        if owner is not None:
            os.fchown(both, *owner)
        self.pipe_inode = os.fstat(self.fd).st_ino
        return both

    def resume(self, pids: list[int], pipe_inode: int) -> bool:
        """Find the pipe of an adopted attempt again; False when no process has it any more."""
        self._file.resume()
        self._digest = None
        self.pipe_inode = pipe_inode
        for pid in pids:
            self.fd = _reopen(pid, pipe_inode)
            if self.fd >= 0:
                return True
        return False

    def pump(self) -> bool:
        """Take what is there, within a turn's share; False once the stream has ended."""
        return self._take(TURN_BYTES_MAX)

    def finish(self) -> None:
        """Take what is left and close, whoever else may still hold the pipe."""
        if self.fd >= 0:
            self._take(DRAIN_BYTES_MAX)
        self.close()
        self._file.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def facts(self) -> dict[str, Any]:
        """StreamFacts. The hash is missing when a keeper died and the stream is not kept whole."""
        if self._digest is not None:
            digest = self._digest.hexdigest()
        elif self._file.is_truncated:
            digest = ""
        else:
            digest = stream_digest(self._directory, self._stream)
        return {
            "size_bytes": self._file.size,
            "sha256": digest,
            "is_truncated": self._file.is_truncated,
        }

    @property
    def size(self) -> int:
        return self._file.size

    def _take(self, limit: int) -> bool:
        taken = 0
        while taken < limit:
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            taken += len(data)
            self.wrote_at_ms = boottime_ms()
            if self._digest is not None:
                self._digest.update(data)
            self._file.append(data)
        return True


def _reopen(pid: int, pipe_inode: int) -> int:
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return -1
    for name in names:
        path = f"{directory}/{name}"
        try:
            if os.readlink(path) == f"pipe:[{pipe_inode}]":  # noqa: PTH115
                return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # closed since it was listed
    return -1
