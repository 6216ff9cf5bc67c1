"""What the agent knows of the attempts on its node. Pure.

The keeper's ledger is the truth; this table is the agent's copy of it, filled from the keeper's
events and replaced by its `list` after every reconnect. It adds what only the agent knows: orders
and kills the keeper has not answered yet, leases granted, ends the cluster has acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from agent.errors import BadFacts
from agent.facts import finish_from, start_from
from scheduler.protocol.digest import inventory_digest
from scheduler.protocol.messages import FinishFacts, Report, Start, StartFacts


class Phase(Enum):
    """How far an attempt is, as its keeper last said."""

    ORDERED = "ordered"  # the keeper has not answered the order yet
    INTENT = "intent"  # durable, about to be started
    RUNNING = "running"
    DAMAGED = "damaged"  # its record cannot be read; the keeper ends its tree and reports
    EXITED = "exited"


@dataclass(slots=True)
class Attempt:
    """One attempt; loop thread only."""

    token: str
    phase: Phase
    session: int = 0
    start: StartFacts | None = None
    finish: FinishFacts | None = None
    is_frozen: bool = False
    lease_until_ms: int = 0
    #: The order, until the keeper answered it.
    order: Start | None = None
    #: The finish is committed: nothing of this attempt is owed to the cluster any more.
    is_acknowledged: bool = False
    #: Latest progress line, and whether a heartbeat has carried it.
    progress: str = ""
    is_progress_new: bool = False

    @property
    def is_live(self) -> bool:
        return self.phase is not Phase.EXITED

    def report(self) -> Report | None:
        """What there is to say of it now; None while its order is not carried out."""
        if self.phase is Phase.EXITED:
            return Report(kind="finished", token=self.token, finish=self.finish)
        if self.phase in (Phase.RUNNING, Phase.DAMAGED):
            # A damaged record may have lost its start; the attempt lives all the same.
            start = self.start or StartFacts(started_at_ms=0, pid=None)
            return Report(kind="started", token=self.token, start=start)
        return None


class AttemptTable(dict[str, Attempt]):
    """Attempts by token."""

    def live(self) -> list[Attempt]:
        return [attempt for attempt in self.values() if attempt.is_live]

    def digest(self) -> str:
        return inventory_digest(token for token, attempt in self.items() if attempt.is_live)

    def lease_end_ms(self) -> int | None:
        """When the first lease of a live attempt ends; None without one."""
        ends = [attempt.lease_until_ms for attempt in self.values() if attempt.is_live]
        return min((end for end in ends if end), default=None)

    def take_listed(self, item: dict[str, Any]) -> tuple[Attempt, Phase | None]:
        """Bring one entry of the keeper's `list` in; return it and the phase it had before.

        Raises BadFacts, with nothing changed.
        """
        try:
            token = str(item["token"])
            phase = Phase(item["state"])
        except (KeyError, ValueError) as error:
            raise BadFacts(f"an attempt in the keeper's list: {error!r}") from None
        start = start_from(item["start"]) if item.get("start") is not None else None
        finish = finish_from(item["finish"]) if item.get("finish") is not None else None
        if phase is Phase.EXITED and finish is None:
            raise BadFacts(f"{token} has exited without a finish")
        attempt = self.get(token)
        before = attempt.phase if attempt is not None else None
        if attempt is None:
            attempt = self[token] = Attempt(token, phase)
        attempt.phase = phase
        attempt.session = int(item.get("session") or 0)
        attempt.start = start or attempt.start
        attempt.finish = finish
        attempt.is_frozen = bool(item.get("frozen"))
        attempt.is_acknowledged = attempt.is_acknowledged or bool(item.get("is_forgotten"))
        attempt.order = None
        return attempt, before
