"""Success checks after an accepted exit, and ready checks while it runs.

Both are helpers: processes started as the attempt's user in its directory, bounded in time, whose
trees belong to the attempt.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.keeper.attempt import Attempt, Phase
from agent.keeper.context import Context
from agent.keeper.errors import LaunchFailure
from agent.keeper.launching import check_command, start_helper
from agent.keeper.outcome import Exit

#: How much of what a check printed goes into the detail.
OUTPUT_BYTES_MAX: Final = 400
_FILE_CHECKS: Final = Path(__file__).with_name("file_checks.py")


class Checks:
    """Loop thread only."""

    def __init__(self, context: Context, on_done: Callable[[Attempt], None]) -> None:
        self._context = context
        self._on_done = on_done

    def begin(self, attempt: Attempt) -> None:
        """Run the success checks one after the other; `on_done` follows, whatever they found."""
        work = attempt.work
        steps: list[tuple[str, tuple[bytes, ...]]] = []
        if work.has_file_checks:
            steps.append(("files", _file_check_command(attempt)))
        if work.check is not None:
            steps.append(("check", check_command(work.check)))
        self._next(attempt, steps)

    def ask_ready(self, attempt: Attempt) -> None:
        """Run the ready check once, unless it runs already."""
        check = attempt.work.ready_check
        if check is None or attempt.helper_pids:
            return

        def on_end(failed: str | None) -> None:
            if failed is None and not attempt.is_ready and attempt.phase is Phase.RUNNING:
                attempt.is_ready = True
                self._context.tell({"is": "ready", "token": attempt.token})

        Helper(self._context, attempt, "ready check", check_command(check), on_end).start()

    def _next(self, attempt: Attempt, steps: list[tuple[str, tuple[bytes, ...]]]) -> None:
        is_ending = attempt.ending is not None and attempt.ending.cause != ""
        if not steps or attempt.failed_check is not None or is_ending:
            attempt.are_checks_done = not is_ending
            self._on_done(attempt)
            return
        name, argv = steps.pop(0)

        def on_end(failed: str | None) -> None:
            attempt.failed_check = failed
            self._next(attempt, steps)

        Helper(self._context, attempt, name, argv, on_end).start()


class Helper:
    """One run of one check; calls `on_end` once, with None when it passed."""

    def __init__(
        self,
        context: Context,
        attempt: Attempt,
        name: str,
        argv: tuple[bytes, ...],
        on_end: Callable[[str | None], None],
    ) -> None:
        self._context = context
        self._attempt = attempt
        self._name = name
        self._argv = argv
        self._on_end = on_end
        self._pid = 0
        self._reader = -1
        self._is_late = False
        self._timer_name = f"helper {name}"
        #: Time frozen while it runs is not its own.
        self._frozen_before_ms = attempt.frozen_ms
        self._deadline_ms = context.loop.now_ms() + attempt.work.check_timeout_ms

    def start(self) -> None:
        self._reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        try:
            pid = start_helper(self._context, self._attempt, self._argv, output=writer)
        except LaunchFailure as failure:
            os.close(self._reader)
            # In a turn of its own: the caller must not be re-entered.
            text = f"{self._name}: {failure.detail}"
            self._context.loop.call_soon(lambda: self._on_end(text))
            return
        finally:
            os.close(writer)
        self._pid = pid
        self._attempt.helper_pids.add(pid)
        self._context.reaper.expect(pid, lambda status, _usage: self._ended(status))
        self._arm()

    def _arm(self) -> None:
        attempt = self._attempt
        at_ms = self._deadline_ms + attempt.frozen_ms - self._frozen_before_ms
        attempt.arm(self._timer_name, self._context.loop.call_at(at_ms, self._on_deadline))

    def _on_deadline(self) -> None:
        attempt = self._attempt
        now_ms = self._context.loop.now_ms()
        if attempt.is_frozen:
            self._deadline_ms += 1_000
            self._arm()
            return
        if now_ms < self._deadline_ms + attempt.frozen_ms - self._frozen_before_ms:
            self._arm()
            return
        self._is_late = True
        # Not reaped yet, so the pid still is its own group; what left the group is a stray.
        os.killpg(self._pid, signal.SIGKILL)

    def _ended(self, status: int) -> None:
        self._attempt.disarm(self._timer_name)
        self._attempt.helper_pids.discard(self._pid)
        try:
            printed = os.read(self._reader, OUTPUT_BYTES_MAX)
        except BlockingIOError:
            printed = b""
        os.close(self._reader)
        self._on_end(self._verdict(status, printed))

    def _verdict(self, status: int, printed: bytes) -> str | None:
        if self._is_late:
            return f"{self._name}: no answer within {self._attempt.work.check_timeout_ms} ms"
        end = Exit.of_status(status)
        if end.exit_code == 0:
            return None
        line = printed.decode(errors="replace").strip().partition("\n")[0]
        if self._name == "files" and end.exit_code == 1 and line:
            return line
        how = f"exit {end.exit_code}" if end.signal is None else end.signal
        return f"{self._name}: {how}" + (f": {line}" if line else "")


def _file_check_command(attempt: Attempt) -> tuple[bytes, ...]:
    work = attempt.work
    spec = json.dumps({"nonempty": work.output_nonempty, "matches": work.output_matches})
    return (
        os.fsencode(sys.executable),
        b"-I",
        b"-S",
        os.fsencode(_FILE_CHECKS),
        spec.encode(),
    )
