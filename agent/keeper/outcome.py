"""What an end means: from what was observed to a cause of specification 1.3. Pure."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

#: Causes of ends that we began; the first one begun is the attempt's.
ENDINGS: Final = frozenset(
    {
        "killed",
        "fenced",
        "node_drain",  # the node leaves, and ends everything first
        "timeout",
        "stalled",
        "resource_overuse",
        "lease_expired",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How the main process ended, read from its wait status."""

    exit_code: int | None
    signal: str | None
    has_core: bool

    @classmethod
    def of_status(cls, status: int) -> Exit:
        """From what wait4 returned."""
        if os.WIFSIGNALED(status):
            name = signal_name(os.WTERMSIG(status))
            return cls(exit_code=None, signal=name, has_core=os.WCOREDUMP(status))
        return cls(exit_code=os.WEXITSTATUS(status), signal=None, has_core=False)


def signal_name(number: int) -> str:
    """SIGKILL for 9; SIG40 for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def cause_of_exit(
    status: int, *, ending: str | None, accepted: Collection[int], was_oom: bool
) -> str:
    """The cause, before success checks.

    `ending` is the end that we had begun and signalled before the exit, if any: then exit 0 is no
    success. `was_oom` means the kernel's own record, never a guess from SIGKILL.
    """
    if ending is not None:
        return ending
    end = Exit.of_status(status)
    if was_oom and end.exit_code != 0:
        return "oom"
    if end.signal is not None:
        return "signal"
    if end.exit_code == 0:
        return "exit_zero"
    return "accepted_exit" if end.exit_code in accepted else "exit_nonzero"


def ending_of_order(cause: str) -> str:
    """The end that an order of `cause` begins: the controllers' own causes are theirs to know."""
    return cause if cause in ("fenced", "node_drain") else "killed"
