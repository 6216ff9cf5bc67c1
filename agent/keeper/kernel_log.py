"""The kernel's own record of a kill for memory, for attempts without a cgroup of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from agent.keeper.processes import TICKS_PER_SECOND, Identity

_PATH: Final = "/dev/kmsg"
_KILLED: Final = re.compile(rb"(?:Killed process|Out of memory: Kill(?:ed)? process) (\d+) ")
#: Records looked at; the kernel's ring holds some thousands.
_RECORDS_MAX: Final = 20_000
_RECORD_BYTES_MAX: Final = 8_192


def was_killed_for_memory(identity: Identity) -> bool:
    """Whether the kernel's log says that it killed exactly this process for memory.

    False when the log is not ours to read: then nothing is known, and nothing is guessed.
    """
    try:
        fd = os.open(_PATH, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return any(find_kill(record, identity) for record in _records(fd))
    finally:
        os.close(fd)


def find_kill(record: bytes, identity: Identity) -> bool:
    """Whether one record (`priority,sequence,microseconds,flags;text`) tells of that kill."""
    head, _, text = record.partition(b";")
    match = _KILLED.search(text)
    if match is None or int(match[1]) != identity.pid:
        return False
    fields = head.split(b",")
    if len(fields) < 3 or not fields[2].isdigit():
        return False
    # Before the process began, the pid was another's. The log's clock stops in suspend and the
    # start time's may not, so one second of doubt is allowed.
    return int(fields[2]) / 1e6 + 1 >= identity.start_ticks / TICKS_PER_SECOND


def _records(fd: int) -> Iterator[bytes]:
    for _ in range(_RECORDS_MAX):
        try:
            yield os.read(fd, _RECORD_BYTES_MAX)
        except BrokenPipeError:
            continue  # overwritten while we read
        except OSError:
            return
