"""The rejoin of one session: inventory in, verdicts out (specification 3.5, 4 B4).

Begins with the applied join and may be done again in the same session, when the digests of both
sides differ. With its verdicts the session is live: orders go out, heartbeats are acknowledged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from replication.interface import Applied
from scheduler.controller import logs
from scheduler.controller.contacts import Contact
from scheduler.controller.duties import Duties
from scheduler.controller.wire import AgentLink
from scheduler.core.commands import NodeInventory
from scheduler.core.results import Rejected, Rejoined
from scheduler.protocol.messages import ITEMS_MAX, Hello, Inventory, Report, Verdict, Verdicts

#: Items of one inventory: what a node can have run within its log retention, by far.
INVENTORY_ITEMS_MAX: Final = 20_000

#: Refuses the session with a code and a message.
Refuse = Callable[[str, str], None]


class Rejoin:
    """Of one session, on one connection. Event loop."""

    def __init__(
        self,
        link: AgentLink,
        contact: Contact,
        duties: Duties,
        *,
        hello: Hello,
        received_log_ms: int,
        refuse: Refuse,
        redirect: Callable[[], None],
    ) -> None:
        self._link = link
        self._contact = contact
        self._duties = duties
        self._hello = hello
        #: Log time of the hello's receipt: the verdicts' lease counts from its sending, before.
        self._received_log_ms = received_log_ms
        self._refuse = refuse
        self._redirect = redirect
        self._items: list[Report] = []
        self._is_proposed = False

    def take(self, part: Inventory) -> None:
        """Collect the parts; with the last one the whole inventory goes into the log."""
        if part.session != self._contact.session or self._is_proposed:
            self._refuse("bad_order", "this inventory was not asked for")
            return
        self._items.extend(part.items)
        if len(part.items) > ITEMS_MAX or len(self._items) > INVENTORY_ITEMS_MAX:
            self._refuse("inventory_too_large", f"above {INVENTORY_ITEMS_MAX} items")
            return
        if part.is_last:
            # Reports that came before it are judged before it.
            self._duties.reports.flush(self._contact)
            items, self._items = tuple(self._items), []
            self._propose(items)

    def _propose(self, items: tuple[Report, ...]) -> None:
        """One entry per ITEMS_MAX items, all in flight at once; the last one decides the rest."""
        contact, duties = self._contact, self._duties
        lease_ms = duties.machine.setting_ms("transient_timeout")
        contact.lease_until_ms = max(contact.lease_until_ms, self._received_log_ms + lease_ms)
        self._is_proposed = True
        parts = [items[at : at + ITEMS_MAX] for at in range(0, len(items), ITEMS_MAX)] or [()]
        verdicts: list[Verdict] = []

        def done(outcome: Applied | Exception, *, is_last: bool) -> None:
            if isinstance(outcome, Applied) and isinstance(outcome.result, Rejoined):
                verdicts.extend(outcome.result.verdicts)
                if not is_last:
                    return
            if self._is_proposed:
                self._is_proposed = False
                self._finish(outcome, tuple(verdicts))

        for number, part in enumerate(parts, 1):
            is_last = number == len(parts)
            entry = NodeInventory(
                node=contact.name,
                node_uuid=contact.node_uuid,
                session=contact.session,
                items=part,
                lease_until_ms=contact.lease_until_ms,
                is_last=is_last,
            )
            duties.propose_nowait(
                entry, functools.partial(done, is_last=is_last), actor=f"agent:{contact.name}"
            )

    def _finish(self, outcome: Applied | Exception, verdicts: tuple[Verdict, ...]) -> None:
        contact, duties = self._contact, self._duties
        if isinstance(outcome, Exception) or not duties.lead.is_open:
            self._redirect()
            return
        if isinstance(outcome.result, Rejected):
            self._refuse(outcome.result.code, outcome.result.message)
            return
        if contact.is_ending or duties.lead.contacts.get(contact.name) is not contact:
            self._link.close()
            return
        self._send_verdicts(verdicts)
        contact.is_live = True
        # What the inventory lacks never began: every order that is still wanted goes out again.
        contact.sent_orders.clear()
        duties.orders.touch(contact.name)
        logs.info("node_joined", node=contact.name, session=contact.session, index=outcome.index)

    def _send_verdicts(self, verdicts: tuple[Verdict, ...]) -> None:
        # The entry was committed after the hello came: that is the quorum round that a
        # heartbeat's acknowledgement has to wait for.
        machine = self._duties.machine
        parts = [verdicts[at : at + ITEMS_MAX] for at in range(0, len(verdicts), ITEMS_MAX)] or [()]
        not_renewed = machine.not_renewed(self._contact.name)
        for number, part in enumerate(parts, 1):
            self._link.send(
                Verdicts(
                    session=self._contact.session,
                    verdicts=part,
                    is_last=number == len(parts),
                    seen=self._duties.lead.seen(),
                    lease_ms=machine.setting_ms("transient_timeout"),
                    hello_boottime_ms=self._hello.sent_boottime_ms,
                    not_renewed=not_renewed,
                )
            )
