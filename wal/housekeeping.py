"""A thread per store for what must not delay a batch: the next segment's file and the idle mark."""

from __future__ import annotations

from threading import Event, Thread
from typing import Final

from wal.errors import WalError
from wal.writer import SegmentWriter

#: Pause between attempts to make files on a full disk, seconds.
_FULL_RETRY_S: Final = 1.0


class Housekeeper:
    """Wakes after batches. A failure stops the thread: the writer has noted it and refuses on."""

    def __init__(self, writer: SegmentWriter, *, mark_idle_ms: int, name: str) -> None:
        self._writer = writer
        self._mark_idle_s = mark_idle_ms / 1000
        self._woken = Event()
        self._stopped = Event()
        # Daemon: a process that dies on an error must not hang on this one.
        self._thread = Thread(target=self._run, name=f"wal-{name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Say that something was written or refused. Any thread; cheap when awake already."""
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """End the thread and wait for it: at most as long as making one segment."""
        self._stopped.set()
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.wait()
            self._woken.clear()
            try:
                is_short = self._writer.wants_spare and not self._writer.prepare_spare()
                # Under load every batch's records speak for the batch before; only the last one
                # before a pause needs the mark.
                self._stopped.wait(self._mark_idle_s)
                if not self._woken.is_set() and self._writer.wants_mark:
                    self._writer.write_mark()
                if is_short:
                    # Room comes back without a word.
                    self._stopped.wait(_FULL_RETRY_S)
                    self._woken.set()
            except WalError:
                return
