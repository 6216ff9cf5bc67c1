"""Which process is ours: what /proc says, and signals that cannot hit a reused pid.

A process is identified by boot id, pid and start time (field 22 of its stat), and belongs to an
attempt by the marker in its environment, its session, its cgroup or its ancestry. A pid alone is
never signalled: a pidfd is opened, the start time read again, and the pidfd signalled.
"""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from agent.keeper.environment import CLUSTER_MARKER, MARKER

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
#: Most bytes of an environment that are searched for the marker (the kernel's limit is 2 MiB).
ENVIRON_BYTES_MAX: Final = 2 * 1024 * 1024
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM, errno.EINVAL})


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for all time."""

    pid: int
    start_ticks: int
    boot_id: str


class ProcessInfo(NamedTuple):
    """One line of /proc/PID/stat."""

    pid: int
    ppid: int
    session: int
    start_ticks: int
    rss_bytes: int
    cpu_ticks: int
    is_zombie: bool


def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def list_pids() -> list[int]:
    """The pids of all processes we can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def read_process(pid: int) -> ProcessInfo | None:
    """What the kernel says of `pid`; None when it is gone."""
    data = _read(f"/proc/{pid}/stat", 4096)
    # The name may hold anything, brackets too; what follows the last one are numbers.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 22:
        return None
    return ProcessInfo(
        pid=pid,
        ppid=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        cpu_ticks=int(fields[11]) + int(fields[12]),
        # A leader that ended before its threads looks like a zombie, but its process lives.
        is_zombie=fields[0] in {b"Z", b"X"} and int(fields[17]) <= 1,
    )


def read_marker(pid: int) -> tuple[str, str] | None:
    """(token, cluster id) in the environment of `pid`, or None."""
    data = b"\0" + _read(f"/proc/{pid}/environ", ENVIRON_BYTES_MAX)
    token = _value(data, MARKER)
    if token is None:
        return None
    return token, _value(data, CLUSTER_MARKER) or ""


def is_alive(identity: Identity, *, current_boot_id: str) -> bool:
    """Whether exactly this process still runs (a zombie does not)."""
    if identity.boot_id != current_boot_id:
        return False
    info = read_process(identity.pid)
    return info is not None and info.start_ticks == identity.start_ticks and not info.is_zombie


def snapshot() -> dict[int, ProcessInfo]:
    """All processes, zombies left out."""
    table = {}
    for pid in list_pids():
        info = read_process(pid)
        if info is not None and not info.is_zombie:
            table[pid] = info
    return table


def open_pidfd(pid: int, start_ticks: int) -> int | None:
    """A pidfd of that very process, or None when it is gone. The caller closes it."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.ESRCH, errno.EINVAL}:
            return None
        raise
    # From here on the pid cannot be reused under us; was it before?
    info = read_process(pid)
    if info is None or info.start_ticks != start_ticks:
        os.close(fd)
        return None
    return fd


def send_signal(pid: int, start_ticks: int, number: int) -> bool:
    """Signal exactly that process; False when it is gone or not ours to signal."""
    fd = open_pidfd(pid, start_ticks)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


def waits_on(pid: int) -> str:
    """Where in the kernel `pid` sleeps, for people; empty when unknown."""
    text = _read(f"/proc/{pid}/wchan", 128).decode(errors="replace")
    return "" if text == "0" else text


def proportional_bytes(pid: int) -> int | None:
    """Memory of `pid` with shared pages divided among their users; None when unreadable."""
    for line in _read(f"/proc/{pid}/smaps_rollup", 4096).splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None


def _value(data: bytes, name: bytes) -> str | None:
    start = data.find(b"\0" + name + b"=")
    if start < 0:
        return None
    begin = start + len(name) + 2
    end = data.find(b"\0", begin)
    return data[begin : end if end >= 0 else None].decode(errors="replace")


def _read(path: str, limit: int) -> bytes:
    """The file's bytes; nothing when the process is gone or hidden from us.

    Raises OSError where we could not look (no descriptor left …): that is no proof of anything.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _GONE:
            return b""
        raise
    try:
        data = os.read(fd, limit)
        while data and len(data) < limit:
            more = os.read(fd, limit - len(data))
            if not more:
                break
            data += more
        return data
    except OSError as error:
        if error.errno in _GONE:
            return b""
        raise
    finally:
        os.close(fd)
