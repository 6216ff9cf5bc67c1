"""Which nodes a leader hears, since when it does not, and what it concludes (specification 1.6).

Pure bookkeeping: every time is an argument, in ms of the leader's CLOCK_BOOTTIME (`*_at_ms`) or in
log time (`lease_until_ms`). A contact lives as long as the leadership; sessions come and go in it.
The two ways to lose a node are kept apart here: a close by the peer, after life, is a death; all
else is silence, which takes `heartbeat_timeout` to mean anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from scheduler.controller.wire import AgentLink
from scheduler.protocol.messages import Heartbeat

#: A close counts as the peer's only when it was heard within so many intervals before (1.6).
LIVELY_INTERVALS: Final = 1.5
DISCONNECTED: Final = "disconnected"
HEARTBEAT_LOST: Final = "heartbeat_lost"


@dataclass(slots=True, eq=False)
class Contact:
    """One node, as this leader knows it. Event loop."""

    name: str
    node_uuid: str
    #: Index of the join entry of the present session.
    session: int
    #: None between sessions.
    link: AgentLink | None
    #: When anything was last heard.
    heard_at_ms: int
    #: When the node last showed that an acknowledgement reached it: one that sees none for
    #: heartbeat_timeout counts as silent, too (one-way loss).
    acknowledged_at_ms: int
    #: The acknowledgement that it last spoke of.
    acknowledged: int = 0
    #: Log time until which leases given here may run.
    lease_until_ms: int = 0
    #: Set once the rejoin's verdicts were sent: from then on orders go out.
    is_live: bool = False
    #: NodeOffline is proposed for this session: nothing of it is acknowledged any more.
    is_ending: bool = False
    #: (kind, token) of what was sent in this session: an order is sent once per session.
    sent_orders: set[tuple[str, str]] = field(default_factory=set)
    order_sequence: int = 0
    #: Highest report sequence that was committed in this session.
    committed_sequence: int = 0
    #: Heartbeats in a row whose settled digest differed, and how many to let pass before asking.
    digest_misses: int = 0
    digest_patience: int = 2
    heartbeat: Heartbeat | None = None


class Contacts:
    """The contacts of one leadership, by node name."""

    def __init__(self, *, started_at_ms: int) -> None:
        #: When this leader began to listen: nobody could be heard before.
        self.started_at_ms = started_at_ms
        self._by_name: dict[str, Contact] = {}

    def __iter__(self) -> Iterator[Contact]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Contact | None:
        return self._by_name.get(name)

    def join(self, contact: Contact) -> Contact | None:
        """Take in a session's contact; returns the one that it replaces."""
        old = self._by_name.get(contact.name)
        if old is not None:
            # Leases given in the old session run on until they end or are renewed.
            contact.lease_until_ms = max(contact.lease_until_ms, old.lease_until_ms)
        self._by_name[contact.name] = contact
        return old

    def drop(self, contact: Contact) -> None:
        """Forget a contact that is Offline in the state; what replaced it stays."""
        if self._by_name.get(contact.name) is contact:
            del self._by_name[contact.name]

    def shift(self, late_ms: int) -> None:
        """This controller itself was late: no node is to blame for what it did not read then."""
        for contact in self._by_name.values():
            contact.heard_at_ms += late_ms
            contact.acknowledged_at_ms += late_ms
        self.started_at_ms += late_ms

    def silent(self, now_ms: int, *, timeout_ms: int) -> list[Contact]:
        """Contacts whose session is to be declared Offline `heartbeat_lost` now."""
        return [
            contact
            for contact in self._by_name.values()
            if not contact.is_ending
            and now_ms - min(contact.heard_at_ms, contact.acknowledged_at_ms) > timeout_ms
        ]

    def never_heard(self, online: Iterable[str], now_ms: int, *, grace_ms: int) -> list[str]:
        """Nodes that are Online in the state but did not come to this leader within `grace_ms`."""
        if now_ms - self.started_at_ms <= grace_ms:
            return []
        return [name for name in online if name not in self._by_name]


def is_death(contact: Contact, *, closed_at_ms: int, interval_ms: int) -> bool:
    """Whether a close by the peer at `closed_at_ms` came out of life, and not after silence."""
    return closed_at_ms - contact.heard_at_ms <= LIVELY_INTERVALS * interval_ms


def is_heard(contact: Contact, now_ms: int, *, timeout_ms: int) -> bool:
    """Whether the session of `contact` was heard within `timeout_ms`."""
    return not contact.is_ending and now_ms - contact.heard_at_ms <= timeout_ms
