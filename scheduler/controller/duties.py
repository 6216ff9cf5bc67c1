"""What a controller does while it leads: place, order, expire, watch the nodes.

Begun once the takeover entry is applied, and dropped as a whole with the leadership: all of it is
derived from the state, so the next leader finds every duty again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from replication.errors import NotLeader, Overloaded
from replication.interface import Applied
from scheduler.controller import logs
from scheduler.controller.contacts import (
    DISCONNECTED,
    HEARTBEAT_LOST,
    Contact,
    is_death,
    is_heard,
)
from scheduler.controller.context import Lead
from scheduler.controller.effect_runner import EffectRunner
from scheduler.controller.heartbeats import Heartbeats
from scheduler.controller.reports import ReportIntake
from scheduler.controller.state_machine import ONLINE, ClusterMachine
from scheduler.controller.urgency import is_urgent
from scheduler.controller.wire import Close
from scheduler.core.apply import Applied as StateChange
from scheduler.core.commands import DeadlinesPassed, Entry, NodeOffline, Placed
from scheduler.core.results import Done, PlacedAnswer, Rejected
from scheduler.protocol.messages import Hello, OrderRefused

#: Placements of one entry: no apply touches more than about 500 records (2.4).
PLACEMENTS_MAX: Final = 250
#: Wait after a pass whose placements were all refused in apply, or a proposal that was: the state
#: changes by itself, and then the next wake comes at once.
BACK_OFF_S: Final = 0.5
#: After a pass that found nothing and was not quick, rest so many times its own CPU time: passes
#: over many groups and nodes must leave most of the loop to others.
PASS_REST: Final = 4
PASS_QUICK_S: Final = 0.005
#: Period of the sweep for silent nodes: a small part of any sensible heartbeat_timeout.
SWEEP_S: Final = 0.1
#: Nodes declared Offline per sweep: the entries are one per node.
SWEEP_NODES_MAX: Final = 100
#: The loop's timer being later than this is lag that no node is to blame for.
LAG_MS_MIN: Final = 100

#: unknown_report_ttl must exceed so many times the lag from commit to apply; looked at so often.
APPLY_LAGS_MIN: Final = 10
LAG_CHECK_MS: Final = 10_000

DoneCallback = Callable[[Applied | Exception], None]


class Suspended(Exception):
    """This host stood still for longer than an election takes: take over again."""


class Duties:
    """Of one leadership. Event loop."""

    def __init__(self, lead: Lead) -> None:
        self.lead = lead
        self.orders = EffectRunner(lead)
        self.heartbeats = Heartbeats(lead)
        self.reports = ReportIntake(lead, on_committed=lambda _contact: None)
        #: Join entries in flight, by node.
        self._joining: Counter[str] = Counter()
        self._settling: dict[str, asyncio.TimerHandle] = {}
        self._place_wake = asyncio.Event()
        self._due_wake = asyncio.Event()
        self._armed_ms: int | None = None
        self._is_due_look_scheduled = False
        self._lag_checked_at_ms = lead.clock.boottime_ms()
        #: When the loop last turned, as far as `_sweep` saw.
        self._turned_at_ms = lead.clock.boottime_ms()

    @property
    def machine(self) -> ClusterMachine:
        return self.lead.machine

    def now_ms(self) -> int:
        """CLOCK_BOOTTIME, ms."""
        return self.lead.clock.boottime_ms()

    # ---- the loops -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Do it all until cancelled. Raises ProposalError when leadership is lost, Suspended."""
        lead = self.lead
        lead.machine.on_applied(self._on_applied)
        self._place_wake.set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._place(), name="place")
                group.create_task(self._expire(), name="expire")
                group.create_task(self._sweep(), name="sweep")
                group.create_task(self.heartbeats.run(), name="heartbeats")
                group.create_task(_wait(lead.fault), name="fault")
        finally:
            lead.is_open = False
            self.orders.stop()
            lead.machine.forget_applied(self._on_applied)
            for timer in self._settling.values():
                timer.cancel()
            self._settling.clear()

    def _on_applied(self, applied: StateChange) -> None:
        """An entry was applied: wake what it may concern. Must be quick: called for each entry."""
        for node in applied.touched_nodes:
            self.orders.touch(node)
        if applied.is_placement_due:
            self._place_wake.set()
        if not self._is_due_look_scheduled:
            # Once per loop turn, however many entries it applied.
            self._is_due_look_scheduled = True
            asyncio.get_running_loop().call_soon(self.lead.guard, self._look_at_due)

    def _look_at_due(self) -> None:
        self._is_due_look_scheduled = False
        due_ms = self.machine.next_due_ms()
        if due_ms is not None and (self._armed_ms is None or due_ms < self._armed_ms):
            self._due_wake.set()

    async def _place(self) -> None:
        while True:
            await self._wait_placeable()
            self._place_wake.clear()
            started_s = time.thread_time()
            with self.lead.metrics.plan_s.time():
                plan = self.machine.plan(PLACEMENTS_MAX, now_ms=self.lead.log_time.now_ms())
            if not plan:
                took_s = time.thread_time() - started_s
                if took_s > PASS_QUICK_S:
                    await asyncio.sleep(took_s * PASS_REST)
                continue
            answer = await self._propose(Placed(placements=plan))
            if isinstance(answer, PlacedAnswer) and answer.tokens:
                self.lead.metrics.placements.add("placed", amount=len(answer.tokens))
                self.lead.metrics.placements.add("skipped", amount=len(answer.skipped))
                self._place_wake.set()  # There may be more than one plan holds.
            else:
                logs.warning("plan_refused", placements=len(plan), answer=answer)
                await asyncio.sleep(BACK_OFF_S)

    async def _wait_placeable(self) -> None:
        """Until something may be placeable: by a change of the state, or by time alone."""
        if self._place_wake.is_set():
            return
        ready_ms = self.machine.next_ready_ms()
        wait_ms = None if ready_ms is None else ready_ms - self.lead.log_time.now_ms()
        try:
            await asyncio.wait_for(self._place_wake.wait(), _wait_s(wait_ms))
        except TimeoutError:
            pass

    async def _expire(self) -> None:
        while True:
            self._due_wake.clear()
            due_ms = self._armed_ms = self.machine.next_due_ms()
            wait_ms = None if due_ms is None else due_ms - self.lead.log_time.now_ms()
            if wait_ms is None or wait_ms > 0 or not self._is_awake():
                timeout_s = _wait_s(wait_ms)
                try:
                    await asyncio.wait_for(self._due_wake.wait(), timeout_s)
                except TimeoutError:
                    pass
                continue
            answer = await self._propose_ending(DeadlinesPassed())
            if self.machine.next_due_ms() == due_ms and not (
                isinstance(answer, Done) and answer.remaining
            ):
                # It should have moved; never spin on a deadline that apply does not see.
                logs.warning("deadline_did_not_pass", due_ms=due_ms, answer=answer)
                await asyncio.sleep(BACK_OFF_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_ms = self.now_ms()
            late_ms = now_ms - self._turned_at_ms - SWEEP_S * 1000
            self.lead.metrics.loop_lag_s.set(max(0.0, late_ms / 1000))
            if not self._is_awake():
                raise Suspended(f"the event loop stood still for {late_ms:.0f} ms")
            self._turned_at_ms = now_ms
            self._check_apply_lag(now_ms)
            if late_ms > LAG_MS_MIN:
                self.lead.contacts.shift(int(late_ms))
            self._declare_silent(now_ms)

    def _check_apply_lag(self, now_ms: int) -> None:
        """Say loudly when reports could expire before their attempt can be applied (4, A4)."""
        if now_ms < self._lag_checked_at_ms + LAG_CHECK_MS:
            return
        self._lag_checked_at_ms = now_ms
        lag_ms = self.lead.log.status().apply_lag_ms
        ttl_ms = self.machine.setting_ms("unknown_report_ttl")
        if lag_ms * APPLY_LAGS_MIN > ttl_ms:
            logs.warning("unknown_report_ttl_too_short", ttl_ms=ttl_ms, apply_lag_ms=lag_ms)

    def _is_awake(self) -> bool:
        """False when the loop stood still for longer than an election: a suspended host.

        Whoever concludes something from elapsed time asks first: after a suspension there may be
        another leader, and what agents sent meanwhile lies unread.
        """
        still_ms = self.now_ms() - self._turned_at_ms - SWEEP_S * 1000
        return still_ms <= self.lead.config.election_timeout_max_ms

    def _declare_silent(self, now_ms: int) -> None:
        machine, contacts = self.machine, self.lead.contacts
        timeout_ms = machine.setting_ms("heartbeat_timeout")
        for contact in contacts.silent(now_ms, timeout_ms=timeout_ms)[:SWEEP_NODES_MAX]:
            if not self._joining[contact.name]:
                self.declare_offline(contact, HEARTBEAT_LOST)
        grace_ms = max(machine.setting_ms("rejoin_grace"), timeout_ms)
        if now_ms - contacts.started_at_ms <= grace_ms:
            return
        unheard = contacts.never_heard(machine.online_nodes(), now_ms, grace_ms=grace_ms)
        for name in unheard[:SWEEP_NODES_MAX]:
            node = machine.node(name)
            if not self._joining[name] and node is not None:
                # As if it had a contact that ended: proposed once, and again if that fails.
                ghost = Contact(
                    name=name,
                    node_uuid=node.uuid,
                    session=node.session,
                    link=None,
                    heard_at_ms=contacts.started_at_ms,
                    acknowledged_at_ms=contacts.started_at_ms,
                    lease_until_ms=node.lease_until_ms,
                )
                contacts.join(ghost)
                self.declare_offline(ghost, HEARTBEAT_LOST)

    # ---- contacts ------------------------------------------------------------------------------

    def hear(self, contact: Contact) -> None:
        """Any inbound frame counts as life (B1)."""
        contact.heard_at_ms = self.now_ms()

    def is_heard(self, name: str) -> bool:
        """Whether the node's present session was heard within heartbeat_timeout."""
        contact = self.lead.contacts.get(name)
        timeout_ms = self.machine.setting_ms("heartbeat_timeout")
        return contact is not None and is_heard(contact, self.now_ms(), timeout_ms=timeout_ms)

    def note_hello(self, hello: Hello) -> None:
        """A hello came: if it is of the agent whose connection just closed, that was no death."""
        contact = self.lead.contacts.get(hello.name)
        if contact is not None and contact.node_uuid == hello.node_uuid:
            timer = self._settling.pop(hello.name, None)
            if timer is not None:
                timer.cancel()

    def begin_join(self, name: str) -> None:
        """A join entry of this node is in flight: nothing is concluded from its silence."""
        self._joining[name] += 1

    def end_join(self, name: str) -> None:
        """That entry is resolved."""
        self._joining[name] -= 1
        if not self._joining[name]:
            del self._joining[name]

    def join(self, contact: Contact) -> Contact:
        """Take a new session in; the connection of the one it replaces is closed."""
        old = self.lead.contacts.join(contact)
        timer = self._settling.pop(contact.name, None)
        if timer is not None:
            timer.cancel()
        if old is not None:
            link, old.link = old.link, None
            self.reports.forget(old)
            if link is not None:
                link.close()
        return contact

    def on_link_lost(self, contact: Contact, how: Close) -> None:
        """The contact's connection ended. What it means is decided after `disconnect_settle`."""
        node = self.machine.node(contact.name)
        is_online = node is not None and node.phase == ONLINE
        if contact.is_ending or how is not Close.BY_PEER or not is_online:
            return  # Silence: the sweep decides.
        interval_ms = self.machine.setting_ms("heartbeat_interval")
        if not is_death(contact, closed_at_ms=self.now_ms(), interval_ms=interval_ms):
            logs.info("late_close_is_silence", node=contact.name)
            return
        settle_s = self.machine.setting_ms("disconnect_settle") / 1000
        loop = asyncio.get_running_loop()
        self._settling[contact.name] = loop.call_later(
            settle_s, self.lead.guard, self._settled, contact
        )

    def _settled(self, contact: Contact) -> None:
        self._settling.pop(contact.name, None)
        current = self.lead.contacts.get(contact.name) is contact
        if not (current and contact.link is None) or self._joining[contact.name]:
            return
        if self._is_awake():
            self.declare_offline(contact, DISCONNECTED)

    def declare_offline(self, contact: Contact, reason: str) -> None:
        """Propose that contact with the node has ended. From now on nothing of it is acknowledged,
        so that the lease written here is the last one."""
        if contact.is_ending or self.lead.contacts.get(contact.name) is not contact:
            return
        contact.is_ending = True
        self.lead.metrics.offline.add(reason)
        logs.warning("node_offline", node=contact.name, reason=reason, session=contact.session)
        entry = NodeOffline(
            node=contact.name,
            session=contact.session,
            reason=reason,
            lease_until_ms=contact.lease_until_ms,
        )

        def done(outcome: Applied | Exception) -> None:
            link, contact.link = contact.link, None
            if link is not None:
                link.close()
            if isinstance(outcome, Applied):
                self.lead.contacts.drop(contact)
            else:
                contact.is_ending = False  # The sweep tries again, while this controller leads.

        self.propose_nowait(entry, done)

    def on_order_refused(self, contact: Contact, refused: OrderRefused) -> None:
        """An agent did not obey: it knows a newer leader, or the order was of an old session."""
        logs.warning(
            "order_refused",
            node=contact.name,
            token=refused.token,
            code=refused.code,
            message=refused.message,
        )

    # ---- proposals -----------------------------------------------------------------------------

    def propose_nowait(self, entry: Entry, done: DoneCallback, *, actor: str = "") -> None:
        """Propose with this leadership's stamps; `done` is called on the loop."""
        if not self.lead.is_open:
            # What is left of an old leadership appends nothing, also when this controller leads
            # again by now: its stamps and sessions are of another time.
            asyncio.get_running_loop().call_soon(done, NotLeader(None))
            return
        command = self.lead.encode(entry, actor=actor)
        self.lead.log.propose_nowait(command, done, is_urgent=is_urgent(entry))

    async def _propose_ending(self, entry: Entry) -> object:
        """As `_propose`, for an entry that may end attempts: leases are not extended meanwhile."""
        number = self.lead.endings.begin(self.lead.log_time.now_ms())
        try:
            return await self._propose(entry)
        finally:
            self.lead.endings.end(number)
            self.heartbeats.wake()

    async def _propose(self, entry: Entry) -> object:
        """What apply answered. Raises ProposalError, but waits out an overload."""
        while True:
            try:
                command = self.lead.encode(entry)
                applied = await self.lead.log.propose(command, is_urgent=is_urgent(entry))
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_s)
                continue
            if isinstance(applied.result, Rejected):
                code = applied.result.code
                logs.warning("proposal_rejected", entry=type(entry).__name__, code=code)
            return applied.result


async def _wait(future: asyncio.Future[None]) -> None:
    await future


def _wait_s(wait_ms: int | None) -> float | None:
    """Seconds until a deadline; one that has passed already is looked at with the next sweep."""
    if wait_ms is None:
        return None
    return wait_ms / 1000 if wait_ms > 0 else SWEEP_S
