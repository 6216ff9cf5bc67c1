"""What is recorded even on a full disk: entries that free work, or tell what became of it.

The log keeps a reserve for them (specification 2.2); all else is refused until there is room.
What is urgent must be bounded by what was accepted before: attempts that exist, nodes that run.
"""

from __future__ import annotations

from typing import Final

from scheduler.core.commands import (
    AttemptReports,
    DeadlinesPassed,
    Entry,
    KillRequested,
    LeaderTookOver,
    NodeInventory,
    NodeJoined,
    NodeOffline,
    StartUnconfirmed,
)

#: Without a new session after a change of leader no finish could be told, and what runs would be
#: declared lost by its deadline: so joins and inventories are among them.
_ALWAYS: Final = (
    DeadlinesPassed,
    KillRequested,
    LeaderTookOver,
    NodeInventory,
    NodeJoined,
    NodeOffline,
    StartUnconfirmed,
)
#: Reports that can come again and again while an attempt runs.
_IDLE_KINDS: Final = frozenset({"progress", "ready"})


def is_urgent(entry: Entry) -> bool:
    """Whether `entry` may use the reserve of a full disk."""
    if isinstance(entry, AttemptReports):
        return any(report.kind not in _IDLE_KINDS for report in entry.reports)
    return isinstance(entry, _ALWAYS)
