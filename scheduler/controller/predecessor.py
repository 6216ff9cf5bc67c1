"""Waiting for a process that was killed a moment ago to let go of what it held.

A process of several threads is a zombie, and so looks gone, as soon as its first thread is: until
the last one ended, a sync in the kernel say, its sockets and locks are still held. Whoever starts
its successor at once (a service manager, `up --only`) must not be refused for that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

#: Seconds after which what is held is held by somebody alive, in whose way we do not stand.
PREDECESSOR_S: Final = 3.0
#: Seconds between two looks: the end of another process's threads cannot be awaited.
_LOOK_S: Final = 0.02


def wait_for_predecessor(
    addresses: Iterable[tuple[str, int]], lock: Path, *, timeout_s: float = PREDECESSOR_S
) -> bool:
    """Return True once all `addresses` and the file `lock` are free; False after `timeout_s`.

    Blocking; before the loop runs. Takes nothing itself: what is still held then is refused by
    whoever takes it, with the place and the remedy.
    """
    wanted = list(addresses)
    deadline = time.monotonic() + timeout_s
    while not (_is_unlocked(lock) and all(_is_free(*address) for address in wanted)):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _is_unlocked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True  # Not there, or not ours to read: the one who takes it will say.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True
