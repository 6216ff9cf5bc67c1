"""Processes of a local cluster: started apart from us, told from reused pids, ended for sure.

A process is (pid, start ticks): a pid alone may by now belong to somebody else, and is never
signalled. Linux only. Nothing here keeps state.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Seconds between two looks at processes that are to end or to say something.
POLL_S: Final = 0.05
#: Last bytes of a log file that are shown when its process ended unexpectedly.
LOG_TAIL_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for another on this boot."""

    pid: int
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks

    def signal(self, number: int) -> None:
        """Send a signal if it is still that process; gone is no error."""
        try:
            # The descriptor pins the process: between the check and the signal the pid cannot pass
            # to another.
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            if self.is_alive:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Identity of this boot of the machine: start ticks of another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def process_of(pid: object) -> Process | None:
    """The live process with this pid, None when there is none."""
    ticks = start_ticks(pid) if isinstance(pid, int) and pid > 0 else None
    return Process(pid, ticks) if isinstance(pid, int) and ticks is not None else None


def command_of(pid: int) -> list[str]:
    """Its command line; empty when it is gone."""
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in data.split(b"\0")[:-1]]


def spawn(module: str, args: Sequence[str], *, log: Path) -> Process:
    """Start `python -m module args` in a session of its own, its output appended to `log`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PERTINAX_")}
    # Daemons that compile every module at every start would start late.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd="/",
            start_new_session=True,
        )
    # It is meant to outlive us: Popen would warn of that when it is collected.
    child.returncode = 0
    ticks = start_ticks(child.pid)
    # Already gone means it failed at once: no process has these ticks, so it counts as dead.
    return Process(child.pid, -1 if ticks is None else ticks)


def reap() -> None:
    """Take the exit status of children that ended, so that none stays a zombie of ours."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def wait_gone(processes: Iterable[Process], *, timeout_s: float) -> list[Process]:
    """Wait until all have ended; returns those that have not within `timeout_s`."""
    left = list(processes)

    def is_over() -> bool:
        reap()
        left[:] = [one for one in left if one.is_alive]
        return not left

    wait_for(is_over, timeout_s=timeout_s)
    return left


def wait_for(condition: Callable[[], bool], *, timeout_s: float, every_s: float = POLL_S) -> bool:
    """Poll `condition`; False when it did not hold within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)  # /proc and other processes' files cannot be awaited
    return True


def end_all(processes: Iterable[Process], *, patience_s: float) -> list[Process]:
    """SIGTERM, then after `patience_s` SIGKILL; returns those that survive even that."""
    left = [one for one in processes if one.is_alive]
    for one in left:
        one.signal(signal.SIGTERM)
        one.signal(signal.SIGCONT)  # a stopped process would not get to its handler
    left = wait_gone(left, timeout_s=patience_s)
    for one in left:
        one.signal(signal.SIGKILL)
    return wait_gone(left, timeout_s=5.0)


def with_environment(entry: str) -> Iterator[Process]:
    """Live processes that have `NAME=value` in their environment; never ourselves or above."""
    wanted, spared = entry.encode(), set(_ancestors())
    for pid in _pids():
        try:
            if pid in spared or wanted not in Path(f"/proc/{pid}/environ").read_bytes().split(
                b"\0"
            ):
                continue
        except OSError:
            continue
        if found := process_of(pid):
            yield found


def with_command(module: str, word: str) -> Iterator[Process]:
    """Live processes `python -m module …` of which one argument is `word` or a path below it."""
    spared = set(_ancestors())
    for pid in _pids():
        command = command_of(pid)
        if (
            pid not in spared
            and ["-m", module] in ([command[at : at + 2] for at in range(len(command))])
            and any(one == word or one.startswith(word + "/") for one in command)
            and (found := process_of(pid))
        ):
            yield found


def log_tail(path: Path) -> str:
    """The last lines of a log file, for an error message."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-8:])


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return
