"""Who this node is, across restarts: its UUID, how often the agent started, what it was shown.

One cell in the data directory. The lock beside it makes sure that one agent runs on the directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from agent.errors import AlreadyRunning
from scheduler.protocol.messages import Seen
from wal.cell import Cell

CELL_NAME: Final = "node.cell"
LOCK_NAME: Final = "agent.lock"
RESERVE_NAME: Final = "reserve"
#: Enough for a few replacements of the cell and of the status file.
RESERVE_BYTES: Final = 64 * 1024
_VERSION: Final = 1
#: Seconds between two looks at a lock: the end of another process cannot be awaited.
_LOOK_S: Final = 0.02


class NodeRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the cell holds."""

    version: int = _VERSION
    node_uuid: str
    start_number: int
    seen: Seen = Seen()


@dataclass(slots=True)
class NodeCell:
    """The record and its cell. One thread at a time."""

    cell: Cell
    record: NodeRecord
    #: A file that is given up when the disk is full.
    reserve: Path

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Read the record, or make one, and count this start; durable on return. Blocking.

        Raises wal's Corrupt for damage and ValueError for a newer agent's record.
        """
        cell = Cell(directory / CELL_NAME)
        raw = cell.read()
        if raw is None:
            record = NodeRecord(node_uuid=str(uuid.uuid4()), start_number=0)
        else:
            record = msgspec.msgpack.decode(raw, type=NodeRecord)
            if record.version != _VERSION:
                raise ValueError(f"{directory / CELL_NAME} was made by a newer agent")
        node = cls(cell, record, directory / RESERVE_NAME)
        node._write(msgspec.structs.replace(record, start_number=record.start_number + 1))
        node.keep_reserve()
        return node

    def save_seen(self, seen: Seen) -> None:
        """Remember `seen`; durable on return. Blocking; raises OSError when the disk is full."""
        self._write(msgspec.structs.replace(self.record, seen=seen))

    def _write(self, record: NodeRecord) -> None:
        value = msgspec.msgpack.encode(record)
        try:
            self.cell.write(value)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # An agent must come back on a full disk, too: the jobs' ends are still to be told.
            self.reserve.unlink(missing_ok=True)
            self.cell.write(value)
        self.record = record

    def keep_reserve(self) -> None:
        """Take the space that a full disk must not deny us; nothing when there is none now."""
        if self.reserve.exists():
            return
        try:
            with self.reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            self.reserve.unlink(missing_ok=True)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class DirectoryLock:
    """Held by the one agent of a data directory; its file holds that agent's pid."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, directory: Path, *, wait_s: float = 0) -> Self:
        """Lock `directory`. Raises AlreadyRunning with the holder's pid after `wait_s`.

        A killed predecessor holds it until the last of its threads has ended, which is later than
        it looks gone. Blocking.
        """
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        while not _try_lock(fd):
            if time.monotonic() >= deadline:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
                os.close(fd)
                raise AlreadyRunning(f"agent {holder or '?'} runs on {directory}")
            time.sleep(_LOOK_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(fd)

    def release(self) -> None:
        os.close(self._fd)


def running_agent(directory: Path) -> int | None:
    """Pid of the agent that holds `directory`; None when there is none."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdecimal() else None
    finally:
        os.close(fd)
    return None
