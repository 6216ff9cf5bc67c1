"""Acknowledging heartbeats, which extends leases, and the digest that finds lost reports.

A heartbeat is acknowledged only after a quorum round that began after its receipt: a leader that
was paused and deposed must not extend anything when it wakes up (specification 3.5). Rounds are
shared: whatever arrived during one is answered by the next.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from scheduler.controller.contacts import Contact
from scheduler.controller.context import Lead
from scheduler.protocol.digest import inventory_digest
from scheduler.protocol.messages import Heartbeat, HeartbeatAck

#: A digest that stays different although the inventory was sent is asked for less and less often.
DIGEST_PATIENCE_MAX: Final = 64
#: Settled digests that must differ in a row before the inventory is asked for (3.4).
DIGEST_PATIENCE: Final = 2


@dataclass(slots=True)
class _Waiting:
    heartbeat: Heartbeat
    received_log_ms: int


class Heartbeats:
    """Of one leadership. Event loop."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        #: The newest heartbeat of each contact that waits for its acknowledgement.
        self._waiting: dict[Contact, _Waiting] = {}
        self._news = asyncio.Event()

    def receive(self, contact: Contact, heartbeat: Heartbeat) -> None:
        """Take a heartbeat in; it is acknowledged by `run`."""
        lead = self._lead
        _note_digest(contact, heartbeat, lead)
        contact.heartbeat = heartbeat
        if heartbeat.acknowledged != contact.acknowledged:
            contact.acknowledged = heartbeat.acknowledged
            contact.acknowledged_at_ms = lead.clock.boottime_ms()
        self._waiting[contact] = _Waiting(heartbeat, lead.log_time.now_ms())
        self._news.set()

    def wake(self) -> None:
        """An ending entry was resolved: what waited for it may go on."""
        if self._waiting:
            self._news.set()

    async def run(self) -> None:
        """Acknowledge until cancelled. Raises ProposalError when leadership is lost."""
        while True:
            await self._news.wait()
            self._news.clear()
            round_ = self._take_ready()
            if not round_:
                continue
            await self._lead.log.read_barrier()
            for contact, waiting in round_.items():
                self._acknowledge(contact, waiting)

    def _take_ready(self) -> dict[Contact, _Waiting]:
        endings = self._lead.endings
        ready = {
            contact: waiting
            for contact, waiting in self._waiting.items()
            if not endings.holds_back(waiting.received_log_ms)
        }
        for contact in ready:
            del self._waiting[contact]
        return ready

    def _acknowledge(self, contact: Contact, waiting: _Waiting) -> None:
        lead = self._lead
        link = contact.link
        if lead.contacts.get(contact.name) is not contact or link is None:
            return
        if contact.is_ending or not contact.is_live:
            return
        lease_ms = lead.machine.setting_ms("transient_timeout")
        # Before the frame leaves: what the agent may hold must never exceed what is known here.
        contact.lease_until_ms = max(contact.lease_until_ms, waiting.received_log_ms + lease_ms)
        wants_inventory = contact.digest_misses >= contact.digest_patience
        if wants_inventory:
            contact.digest_misses = 0
            contact.digest_patience = min(DIGEST_PATIENCE_MAX, contact.digest_patience * 2)
            lead.metrics.inventories_wanted.inc()
        link.send(
            HeartbeatAck(
                sequence=waiting.heartbeat.sequence,
                sent_boottime_ms=waiting.heartbeat.sent_boottime_ms,
                seen=lead.seen(),
                lease_ms=lease_ms,
                not_renewed=lead.machine.not_renewed(contact.name),
                wants_inventory=wants_inventory,
            )
        )


def _note_digest(contact: Contact, heartbeat: Heartbeat, lead: Lead) -> None:
    """Count digests that differ while both sides are settled at the same sequences."""
    if not contact.is_live or heartbeat.order_sequence != contact.order_sequence:
        contact.digest_misses = 0
        return
    ours = inventory_digest(lead.machine.live_tokens(contact.name))
    if ours == heartbeat.digest:
        contact.digest_misses = 0
        contact.digest_patience = DIGEST_PATIENCE
        return
    before = contact.heartbeat
    is_settled = (
        before is not None
        and before.report_sequence == heartbeat.report_sequence
        and before.digest == heartbeat.digest
    )
    contact.digest_misses = contact.digest_misses + 1 if is_settled else 1
