"""Orders to agents, derived from the state again at each wake (specification 2.5, 5.1).

Level-triggered: what a node should be told is asked of the state, what this session was told
already is left out, and the rest is sent. So nothing is lost with a leader, and an order that
stops being wanted and is wanted again (its `not_started` came) is sent again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from scheduler.controller.contacts import Contact
from scheduler.controller.context import Lead
from scheduler.core.effects import Order, orders_of
from scheduler.protocol.messages import Message

#: Orders sent to one node before other nodes have their turn.
ORDERS_PER_TURN_MAX: Final = 200


class EffectRunner:
    """Of one leadership, from its applied takeover on. Event loop."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        #: Nodes to look at, oldest first.
        self._touched: dict[str, None] = {}
        self._is_scheduled = False
        self._is_stopped = False

    def touch(self, node: str) -> None:
        """What `node` should be told may have changed."""
        self._touched[node] = None
        if not self._is_scheduled and not self._is_stopped:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> None:
        """Leadership is over: what was not sent is forgotten, the next leader derives it."""
        self._is_stopped = True
        self._touched.clear()

    def _turn(self) -> None:
        self._is_scheduled = False
        touched, self._touched = self._touched, {}
        for node in touched:
            contact = self._lead.contacts.get(node)
            if contact is not None and not self._send_orders(contact):
                self.touch(node)

    def _send_orders(self, contact: Contact) -> bool:
        """Send what is wanted and was not sent; False when another turn is needed for the rest."""
        link = contact.link
        lead = self._lead
        if link is None or not contact.is_live or contact.is_ending or not lead.is_open:
            return True  # The rejoin touches the node again.
        wanted = {order.key: order for order in orders_of(lead.machine.state, contact.name)}
        contact.sent_orders &= wanted.keys()
        sent = 0
        for key, order in wanted.items():
            if key in contact.sent_orders:
                continue
            if not link.is_writable:
                return True  # `on_writable` touches the node again.
            if sent >= ORDERS_PER_TURN_MAX:
                return False
            contact.sent_orders.add(key)
            contact.order_sequence += 1
            link.send(self._message(contact, order))
            lead.metrics.orders.labels(order.kind).inc()
            sent += 1
        return True

    def _message(self, contact: Contact, order: Order) -> Message:
        return order.message(
            order_sequence=contact.order_sequence,
            session=contact.session,
            seen=self._lead.seen(),
        )
