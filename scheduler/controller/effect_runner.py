"""Orders to agents, derived from the state again at each wake (specification 2.5, 5.1).

Level-triggered: what a node should be told is asked of the state, what this session was told
already is left out, and the rest is sent. So nothing is lost with a leader: the next one derives
the same orders. A new inventory in the same session makes every order due again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from scheduler.controller.contacts import Contact
from scheduler.controller.context import Lead
from scheduler.core.effects import (
    Order,
    SendAskStatus,
    SendKill,
    SendStart,
    next_ask_ms,
    pending_effects,
)
from scheduler.protocol.messages import AskStatus, Kill, Message, Start

#: Orders sent to one node before other nodes have their turn.
ORDERS_PER_TURN_MAX: Final = 200
#: Orders remembered as sent, beyond those that can still be wanted, before the rest is dropped.
SENT_SLACK: Final = 256


class EffectRunner:
    """Of one leadership, from its applied takeover on. Event loop."""

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        #: Nodes to look at, oldest first.
        self._touched: dict[str, None] = {}
        self._is_scheduled = False
        self._is_stopped = False
        #: Per node, when its next unconfirmed start is to be asked for.
        self._asking: dict[str, asyncio.TimerHandle] = {}

    def touch(self, node: str) -> None:
        """What `node` should be told may have changed."""
        if self._is_stopped:
            return
        self._touched[node] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._lead.guard, self._turn)

    def stop(self) -> None:
        """Leadership is over: what was not sent is forgotten, the next leader derives it."""
        self._is_stopped = True
        self._touched.clear()
        for timer in self._asking.values():
            timer.cancel()
        self._asking.clear()

    def _turn(self) -> None:
        self._is_scheduled = False
        touched, self._touched = self._touched, {}
        for node in touched:
            contact = self._lead.contacts.get(node)
            if contact is not None and not self._send_orders(contact):
                self.touch(node)

    def _send_orders(self, contact: Contact) -> bool:
        """Send what is wanted and was not sent; False when another turn is needed for the rest."""
        link, lead = contact.link, self._lead
        if link is None or not contact.is_live or contact.is_ending or not lead.is_open:
            return True  # The rejoin touches the node again.
        state, sent = lead.machine.state, contact.sent_orders
        orders = pending_effects(state, contact.name, now_ms=lead.log_time.now_ms(), sent=sent)
        for order in orders[:ORDERS_PER_TURN_MAX]:
            if not link.is_writable:
                return True  # `on_writable` touches the node again.
            sent.add((order.kind, order.token))
            contact.order_sequence += 1
            link.send(self._message(contact, order))
            lead.metrics.orders.add(order.kind)
        self._forget_old(contact)
        self._arm(contact.name)
        return len(orders) <= ORDERS_PER_TURN_MAX

    def _forget_old(self, contact: Contact) -> None:
        state = self._lead.machine.state
        todo = state.todo.get(contact.name, {})
        if len(contact.sent_orders) <= 2 * len(todo) + SENT_SLACK:
            return
        contact.sent_orders = {
            (kind, token) for kind, token in contact.sent_orders if state.tokens.get(token) in todo
        }

    def _arm(self, node: str) -> None:
        """Come back when an unconfirmed start is overdue."""
        if node in self._asking:
            return
        due_ms = next_ask_ms(self._lead.machine.state, node)
        if due_ms is None:
            return
        wait_ms = due_ms - self._lead.log_time.now_ms()
        if wait_ms > 0:  # Else it was asked for just now.
            loop = asyncio.get_running_loop()
            self._asking[node] = loop.call_later(wait_ms / 1000, self._ask, node)

    def _ask(self, node: str) -> None:
        self._asking.pop(node, None)
        self.touch(node)

    def _message(self, contact: Contact, order: Order) -> Message:
        sequence, session, seen = contact.order_sequence, contact.session, self._lead.seen()
        match order:
            case SendStart(token=token, work=work):
                return Start(
                    order_sequence=sequence, session=session, seen=seen, token=token, work=work
                )
            case SendKill():
                return Kill(
                    order_sequence=sequence,
                    session=session,
                    seen=seen,
                    token=order.token,
                    by=order.by,
                    why=order.why,
                    cause=order.cause,
                    grace_ms=order.grace_ms,
                    stop_signal=order.stop_signal,
                )
            case SendAskStatus(token=token):
                return AskStatus(order_sequence=sequence, session=session, seen=seen, token=token)
