"""The keeper process: `python -m agent.keeper --dir DIR --socket PATH`.

Wires the parts together and nothing more. It leaves its parent's session, becomes the subreaper of
what it starts, and goes on when the agent dies. Exit codes: 0 after `stop` or SIGTERM, 73 when
another keeper holds DIR; 70 for a bug and 74 for a journal that failed: start another, which
recovers from the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn

from agent.keeper.cgroups import Cgroups
from agent.keeper.context import Context
from agent.keeper.endings import STUCK_MS
from agent.keeper.errors import AlreadyRunning
from agent.keeper.leases import Leases
from agent.keeper.ledger import Ledger, read_contents
from agent.keeper.loop import Loop
from agent.keeper.processes import boot_id
from agent.keeper.reaper import Reaper
from agent.keeper.records import Records
from agent.keeper.recovery import Recovery
from agent.keeper.remover import Remover
from agent.keeper.requests import Requests
from agent.keeper.runner import Runner
from agent.keeper.server import Server
from agent.keeper.stopping import Stopping
from agent.keeper.trees import Trees
from agent.keeper.watch import Watch
from wal import Identity, KeyedStore, Locked

EXIT_LOCKED: Final = 73
EXIT_BUG: Final = 70
#: Free space below which no new work is taken, in bytes.
DISK_LOW_BYTES: Final = 64 * 1024 * 1024
_PR_SET_CHILD_SUBREAPER: Final = 36
#: The store is the node's, whatever cluster it joins.
_IDENTITY: Final = Identity("node", "keeper")


class Keeper:
    """One keeper over one directory. Main thread of its process only."""

    def __init__(self, directory: Path, socket_path: Path, options: argparse.Namespace) -> None:
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        for name in ("attempts", "work"):
            (directory / name).mkdir(mode=0o711, exist_ok=True)
        self._lock = take_lock(directory)
        store = KeyedStore.open(directory / "ledger", identity=_IDENTITY)
        contents = read_contents(store.items(), store.damaged)
        for note in contents.notes:
            sys.stderr.write(f"ledger_damaged {note}\n")
        self._loop = Loop()
        boot = boot_id()
        cgroups = Cgroups("sampled", {})
        if options.limits == "auto":
            cgroups = Cgroups.open(_group_name(directory))
        self._context = context = Context(
            directory=directory,
            boot_id=boot,
            store_id=store.store_id,
            loop=self._loop,
            ledger=Ledger(store, self._loop),
            leases=Leases(directory / "leases", boot_id=boot),
            reaper=Reaper(self._loop),
            trees=Trees(self._loop.now_ms),
            cgroups=cgroups,
            remover=Remover(directory / "attempts", directory / "work"),
            inherited=dict(os.environb),
            files_max=_raise_file_limit(),
        )
        runner = Runner(context)
        runner.endings.stuck_ms = options.stuck_ms
        self._records = Records(context)
        watch = Watch(context, runner, disk_low_bytes=options.disk_low_bytes)
        # Leases are obeyed before anybody is listened to.
        Recovery(context, runner).run(contents)
        requests = Requests(context, runner, watch, self._records, Stopping(context, runner))
        self._server = Server(self._loop, socket_path, requests.handle)
        requests.server = self._server
        context.emit = self._server.emit
        watch.start()
        self._records.start()

    def run(self) -> None:
        """Until `stop`, or SIGTERM, which ends the keeper and leaves the attempts alone."""
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._loop.stop())
        self._loop.run()
        while not self._context.ledger.is_idle:
            self._loop.turn()
        self._server.close()
        self._context.ledger.close()
        self._context.remover.close()
        self._context.cgroups.close()
        self._context.reaper.close()
        os.close(self._lock)


def take_lock(directory: Path) -> int:
    """Hold the directory until the process ends. Raises AlreadyRunning."""
    fd = os.open(directory / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise AlreadyRunning(f"another keeper runs in {directory}") from None
    os.ftruncate(fd, 0)
    os.write(fd, b"%d\n" % os.getpid())
    return fd


def detach() -> None:
    """Outlive the agent: own session, no terminal signals, orphans become our children."""
    with contextlib.suppress(PermissionError):
        os.setsid()  # refused to a group leader, which started us like this on purpose
    for number in (signal.SIGHUP, signal.SIGINT):
        # Handlers and not SIG_IGN, which attempts would inherit.
        signal.signal(number, lambda _number, _frame: None)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    os.umask(0o022)
    os.chdir("/")


def main(arguments: list[str] | None = None) -> int:
    """Run a keeper; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m agent.keeper", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="the keeper's directory")
    parser.add_argument("--socket", type=Path, required=True, help="unix socket for the agent")
    parser.add_argument("--limits", choices=("auto", "sampled"), default="auto")
    parser.add_argument("--disk-low-bytes", type=int, default=DISK_LOW_BYTES)
    parser.add_argument("--stuck-ms", type=int, default=STUCK_MS, help="KILL in vain so long")
    options = parser.parse_args(arguments)
    directory, socket_path = options.dir.absolute(), options.socket.absolute()
    detach()
    try:
        keeper = Keeper(directory, socket_path, options)
    except (AlreadyRunning, Locked) as error:
        sys.stderr.write(f"keeper_locked {error}\n")
        return EXIT_LOCKED
    try:
        keeper.run()
    except BaseException:  # noqa: BLE001  the outermost frame: a bug ends the process
        _crash()
    return 0


def _crash() -> NoReturn:
    """Leave at once, whatever other threads do: the agent starts a successor, which adopts."""
    try:
        traceback.print_exc()
    finally:
        os._exit(EXIT_BUG)


def _raise_file_limit() -> tuple[int, int]:
    """Allow ourselves as many descriptors as we may; returns the limits for attempts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def _group_name(directory: Path) -> str:
    """Name of this keeper's cgroups: the same after a restart, another for another directory."""
    return "pertinax-" + hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
