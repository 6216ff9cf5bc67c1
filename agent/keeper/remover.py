"""Removing what attempts leave on disk, beside the loop: a directory can take long to go."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Final

#: Removals waiting at most; at the limit the loop waits for one, which bounds memory.
WAITING_MAX: Final = 10_000
#: Name of the progress file in the attempt's own directory.
PROGRESS_NAME: Final = ".pertinax-progress"


class Remover:
    """One thread; the methods may be called from the loop's."""

    def __init__(self, attempts: Path, work: Path) -> None:
        self._attempts = attempts
        self._work = work
        self._waiting: Queue[tuple[str, bool] | None] = Queue(WAITING_MAX)
        self._thread = Thread(target=self._run, name="remover", daemon=True)
        self._thread.start()

    def prune(self, token: str) -> None:
        """Remove the attempt's own directory if it left nothing there."""
        self._waiting.put((token, False))

    def remove(self, token: str) -> None:
        """Remove the attempt's output and its own directory, whatever they hold."""
        self._waiting.put((token, True))

    def close(self) -> None:
        """Finish what was asked for."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self._waiting.get()) is not None:
            token, is_all = order
            work = self._work / token
            if is_all:
                for path in (self._attempts / token, work):
                    if os.path.lexists(path):
                        shutil.rmtree(path, ignore_errors=True)
                continue
            # What is not empty is its user's, until the record goes.
            with contextlib.suppress(OSError):
                (work / PROGRESS_NAME).unlink(missing_ok=True)
                work.rmdir()
