"""Children that ended: SIGCHLD wakes the loop, wait4 says who, how, and what it used."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

from agent.keeper.loop import READ, Loop

Handler = Callable[[int, resource.struct_rusage], None]


class Reaper:
    """Reaps every child of the process; strays that were re-parented to us, too.

    Main thread only (it owns SIGCHLD). At most one per process.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._handlers: dict[int, Handler] = {}
        #: Called after children were reaped, strays included.
        self.on_reaped: Callable[[], None] = lambda: None
        reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._reader = reader
        self._old_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # A handler, not SIG_IGN: ignored signals would stay ignored in the attempts.
        self._old_handler = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        loop.watch(reader, READ, self._on_wakeup)

    @property
    def known(self) -> dict[int, Handler]:
        """The children we started and have not reaped."""
        return self._handlers

    def expect(self, pid: int, handler: Handler) -> None:
        """Call `handler(wait status, rusage)` when the child `pid` ends."""
        self._handlers[pid] = handler

    def reap(self) -> None:
        """Handle all children that have ended by now."""
        count = 0
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            count += 1
            handler = self._handlers.pop(pid, None)
            if handler is not None:
                handler(status, usage)
        if count:
            self.on_reaped()

    def close(self) -> None:
        signal.set_wakeup_fd(self._old_fd)
        signal.signal(signal.SIGCHLD, self._old_handler)
        self._loop.unwatch(self._reader)
        os.close(self._reader)
        os.close(self._writer)

    def _on_wakeup(self, _events: int) -> None:
        try:
            os.read(self._reader, 4096)
        except BlockingIOError:
            return
        self.reap()
