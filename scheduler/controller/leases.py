"""Arithmetic of leases, and which acknowledgements must wait (specification 3.5).

A node's attempts may run until `lease_until`, a log time: receipt of the last acknowledged
heartbeat + L. The agent counts its lease from *sending*, which was earlier, so the value kept here
is never too small. Fences and deadlines of the state are computed from it.
"""

from __future__ import annotations

from typing import Final

MARGIN_MS_MIN: Final = 1_000


def margin_ms(lease_ms: int) -> int:
    """How long before a lease's end the keeper acts: max(1 s, 10 % of L)."""
    return max(MARGIN_MS_MIN, lease_ms // 10)


class EndingProposals:
    """Proposed entries that may end attempts of connected nodes and are not resolved yet.

    Such an entry computes fences from its own log time. A heartbeat received after that stamp would
    extend the lease beyond the fence, so its acknowledgement waits until the entry is resolved and
    the ended tokens show up among those that are not renewed.
    """

    __slots__ = ("_next", "_open")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._next = 0

    def begin(self, log_time_ms: int) -> int:
        """Note an entry stamped `log_time_ms`; returns the number to `end` it with."""
        self._next += 1
        self._open[self._next] = log_time_ms
        return self._next

    def end(self, number: int) -> None:
        """The entry is resolved."""
        self._open.pop(number, None)

    def holds_back(self, received_log_time_ms: int) -> bool:
        """Whether a heartbeat received then must wait."""
        return any(stamp <= received_log_time_ms for stamp in self._open.values())

    def __bool__(self) -> bool:
        return bool(self._open)
