"""What the duties of one leadership share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from replication.interface import ReplicatedLog
from scheduler.controller.clock import Clock, LogTime
from scheduler.controller.config import ControllerConfig
from scheduler.controller.contacts import Contacts
from scheduler.controller.leases import EndingProposals
from scheduler.controller.metrics import Metrics
from scheduler.controller.state_machine import ClusterMachine
from scheduler.core.commands import Entry, encode_entry
from scheduler.protocol.messages import Seen


@dataclass(slots=True)
class Lead:
    """One leadership of this controller, from its takeover entry to its loss. Event loop."""

    config: ControllerConfig
    log: ReplicatedLog
    machine: ClusterMachine
    clock: Clock
    log_time: LogTime
    metrics: Metrics
    contacts: Contacts
    term: int
    endings: EndingProposals = field(default_factory=EndingProposals)
    #: The takeover entry of this leadership is applied: orders and admissions may begin.
    is_open: bool = False
    #: Ends the duties, and with them the process, when a callback of theirs met a bug.
    fault: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def guard(self, callback: Callable[..., None], *arguments: object) -> None:
        """Run a callback of the loop whose failure must not pass unseen.

        The loop itself would log it and go on, with a duty left undone that nobody takes up again.
        """
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 -- the outermost frame; `fault` ends the process
            if not self.fault.done():
                self.fault.set_exception(error)

    def encode(self, entry: Entry, *, actor: str = "") -> bytes:
        """`entry`, stamped with log time, wall clock and who is behind it."""
        return encode_entry(
            replace_stamp(
                entry,
                log_time_ms=self.log_time.now_ms(),
                wall_ms=self.clock.wall_ms(),
                actor=actor or f"controller:{self.config.name}",
            )
        )

    def seen(self) -> Seen:
        """The newest committed point, as agents are shown it."""
        return Seen(
            incarnation=self.machine.incarnation,
            term=self.term,
            index=self.machine.applied_index,
        )


def replace_stamp(entry: Entry, *, log_time_ms: int, wall_ms: int, actor: str) -> Entry:
    """A copy of `entry` with its three leading fields set."""
    return msgspec.structs.replace(entry, log_time_ms=log_time_ms, wall_ms=wall_ms, actor=actor)
