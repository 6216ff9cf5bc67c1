"""A seeded walk: keeper, leader, disk and agent fail in any order; no end is ever lost.

Models of the keeper and of the cluster, in virtual time, around the real core and outbox. Checked:
the keeper never forgets an end that the cluster has not committed, nothing starts for a session
that is over, and when all heals every job's end is committed and nothing is left over.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from agent.core import AgentState
from agent.events import (
    AskKeeper,
    CloseSession,
    KeeperAnswered,
    KeeperAttached,
    KeeperLost,
    KeeperSaid,
    OutboxWritten,
    Received,
    SaveSeen,
    Send,
    SessionClosed,
    Tick,
    Welcomed,
)
from agent.outbox import Outbox
from scheduler.protocol.messages import (
    Goodbye,
    Heartbeat,
    HeartbeatAck,
    Inventory,
    Message,
    Report,
    Reports,
    ReportsCommitted,
    Seen,
    Start,
    Verdict,
    Verdicts,
    WantInventory,
    Welcome,
    Work,
)

from .bench import FINISH, INCARNATION, LEASE_MS, START, token

JOBS = 60
STEPS = 1_500


class World:
    """Everything around one core."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000_000
        # The keeper: its ledger survives, its connection does not.
        self.ledger: dict[str, dict[str, Any]] = {}
        self.voided: set[str] = set()
        self.floor = 0
        self.forgotten: set[str] = set()
        self.is_attached = False
        self.requests: list[dict[str, Any]] = []
        self.keeper_says: list[Any] = []
        # The cluster: what is committed survives, its connection does not.
        self.placed: dict[str, str] = {}
        self.session = 0
        self.is_connected = False
        self.to_cluster: list[Message] = []
        self.to_agent: list[Any] = []
        self.index = 1
        self.items: list[Report] = []
        self.is_joined = self.is_asking = False
        self.orders = 0
        self.is_asking = False
        self.asks = False
        self.faults: tuple[Callable[[], None], ...] = ()
        # The disk.
        self.disk: dict[int, Report] = {}
        self.disk_last = 0
        self.seen = Seen()
        self.born()

    # ---- the agent -------------------------------------------------------------------------------

    def born(self) -> None:
        outbox = Outbox.restore(self.disk.values(), last_sequence=self.disk_last)
        self.core = AgentState(outbox=outbox, seen=self.seen, rng=self.rng)

    def handle(self, event: Any) -> None:
        for action in self.core.handle(event, now_ms=self.now_ms):
            if isinstance(action, AskKeeper) and self.is_attached:
                self.requests.append(action.request)
            elif isinstance(action, Send) and self.is_connected:
                self.to_cluster.append(action.message)
            elif isinstance(action, SaveSeen):
                self.seen = action.seen
            elif isinstance(action, CloseSession):
                self.cut_session(is_told=False)

    def write(self) -> None:
        writes = self.core.outbox.take_writes()
        if writes is not None:
            self.disk.update({report.sequence: report for report in writes.puts})
            for sequence in writes.drops:
                self.disk.pop(sequence, None)
            self.disk_last = writes.last_sequence
            self.handle(OutboxWritten(writes.last_sequence))

    def crash(self) -> None:
        self.cut_session(is_told=False)
        self.cut_keeper(is_told=False)
        self.born()

    # ---- the keeper ------------------------------------------------------------------------------

    def attach(self) -> None:
        if not self.is_attached:
            self.is_attached = True
            self.handle(KeeperAttached(store_id="s", boot_id="b", pid=1, limits="sampled"))

    def cut_keeper(self, *, is_told: bool = True) -> None:
        was_attached, self.is_attached = self.is_attached, False
        self.requests, self.keeper_says = [], []
        if is_told and was_attached:
            self.handle(KeeperLost("cut"))

    def keeper_works(self) -> None:
        if not self.requests:
            return
        request = self.requests.pop(0)
        answer = {"ok": True, **getattr(self, f"do_{request['do']}")(request)}
        self.keeper_says.append(KeeperAnswered(request, answer))

    def keeper_is_heard(self) -> None:
        if self.keeper_says:
            self.handle(self.keeper_says.pop(0))

    def tell(self, kind: str, name: str, **facts: Any) -> None:
        if self.is_attached:
            self.keeper_says.append(KeeperSaid({"is": kind, "token": name, **facts}))

    def do_void(self, request: dict[str, Any]) -> dict[str, Any]:
        self.floor = max(self.floor, request["below_session"])
        unstarted = [
            name
            for name, entry in self.ledger.items()
            if entry["state"] == "intent" and entry["session"] < self.floor
        ]
        for name in unstarted:
            del self.ledger[name]
        return {"voided": unstarted}

    def do_list(self, request: dict[str, Any]) -> dict[str, Any]:
        entries = sorted(
            (dict(entry) for name, entry in self.ledger.items() if name > request["after"]),
            key=lambda entry: str(entry["token"]),
        )
        if not request["with_forgotten"]:
            entries = [entry for entry in entries if entry["token"] not in self.forgotten]
        # Small pages: what happens between two of them must not be lost.
        return {"attempts": entries[:3], "is_more": len(entries) > 3}

    def do_start(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["token"]
        if name in self.ledger:
            return {"ok": False, "code": "duplicate"}
        if name in self.voided or request["session"] < self.floor:
            return {"ok": False, "code": "voided"}
        if self.now_ms >= request["lease_until_boottime_ms"]:
            return {"ok": False, "code": "no_lease"}
        session = request["session"]
        self.ledger[name] = {"token": name, "state": "intent", "session": session}
        return {"state": "intent"}

    def do_status(self, request: dict[str, Any]) -> dict[str, Any]:
        entry = self.ledger.get(request["token"])
        if entry is None:
            self.voided.add(request["token"])
            return {"state": "unknown"}
        return dict(entry)

    def do_forget(self, request: dict[str, Any]) -> dict[str, Any]:
        for name in request["tokens"]:
            assert self.placed[name] == "ended", "forgotten before it was committed"
            self.forgotten.add(name)
        return {}

    def do_lease(self, _request: dict[str, Any]) -> dict[str, Any]:
        return {}

    def do_settings(self, _request: dict[str, Any]) -> dict[str, Any]:
        return {}

    def job_moves(self) -> None:
        """One job starts, or one ends."""
        entries = [e for e in self.ledger.values() if e["state"] != "exited"]
        if not entries:
            return
        entry = self.rng.choice(entries)
        if entry["state"] == "intent":
            is_over = self.is_joined and entry["session"] < self.session
            assert not is_over, "an order outlived its session"
            entry |= {"state": "running", "start": START}
            self.tell("started", entry["token"], start=START)
        else:
            entry |= {"state": "exited", "finish": FINISH}
            self.tell("finished", entry["token"], finish=FINISH)

    # ---- the cluster -----------------------------------------------------------------------------

    def shown(self) -> Seen:
        return Seen(incarnation=INCARNATION, term=1, index=self.index)

    def connect(self) -> None:
        if self.is_connected or not self.core.store_id:
            return
        self.is_connected, self.is_joined, self.items = True, False, []
        self.session += 1
        self.orders = 0
        welcome = Welcome(
            session=self.session,
            cluster_id="c",
            incarnation=INCARNATION,
            term=1,
            heartbeat_interval_ms=10_000,
            heartbeat_timeout_ms=30_000,
            ack_timeout_ms=2_000,
            lease_ms=LEASE_MS,
            seen=self.shown(),
        )
        self.handle(Welcomed(welcome, self.now_ms, "x:1"))

    def cut_session(self, *, is_told: bool = True) -> None:
        was_connected, self.is_connected = self.is_connected, False
        self.is_joined = self.is_asking = False
        self.to_cluster, self.to_agent = [], []
        if is_told and was_connected:
            self.handle(SessionClosed("cut"))

    def place(self) -> None:
        """Order a new job, or one whose order was provably never carried out."""
        waiting = [name for name, state in self.placed.items() if state == "waiting"]
        if len(self.placed) < JOBS:
            waiting.append(token(len(self.placed)))
        if self.is_joined and not self.is_asking and waiting:
            name = self.rng.choice(waiting)
            self.placed[name] = "ordered"
            self.orders += 1
            self.to_agent.append(
                Start(
                    order_sequence=self.orders,
                    session=self.session,
                    seen=self.shown(),
                    token=name,
                    work=Work(attempt="1/main/0#1", argv=("true",)),
                )
            )

    def ask_again(self) -> None:
        """The digests differ: the whole inventory is wanted, with no order on its way."""
        orders = (Start, WantInventory)
        if self.is_joined and not any(isinstance(m, orders) for m in self.to_agent):
            self.is_asking = True
            self.to_agent.append(WantInventory(session=self.session))

    def agent_is_heard(self) -> None:
        if not self.to_cluster:
            return
        message = self.to_cluster.pop(0)
        self.index += 1
        if isinstance(message, Inventory):
            self.items.extend(message.items)
            if message.is_last:
                self.rejoin()
        elif isinstance(message, Reports):
            for report in message.reports:
                self.apply(report)
            sequences = tuple(report.sequence for report in message.reports)
            self.to_agent.append(ReportsCommitted(sequences=sequences, index=self.index))
        elif isinstance(message, Heartbeat):
            self.to_agent.append(
                HeartbeatAck(
                    sequence=message.sequence,
                    sent_boottime_ms=message.sent_boottime_ms,
                    seen=self.shown(),
                    lease_ms=LEASE_MS,
                )
            )
        elif isinstance(message, Goodbye):
            self.cut_session()

    def rejoin(self) -> None:
        items, self.items = self.items, []
        verdicts = []
        for item in items:
            self.apply(item)
            word = {"finished": "acknowledged", "not_started": "forget"}.get(item.kind, "keep")
            verdicts.append(Verdict(token=item.token, verdict=word))
        named = {item.token for item in items}
        for name, state in self.placed.items():
            if name not in named and state in ("ordered", "running"):
                assert state == "ordered", f"{name} runs and is not in the inventory"
                assert name not in self.ledger, f"{name} is left out though the keeper has it"
                self.placed[name] = "waiting"
        self.is_joined, self.is_asking = True, False
        self.to_agent.append(
            Verdicts(
                session=self.session,
                verdicts=tuple(verdicts),
                is_last=True,
                seen=self.shown(),
                lease_ms=LEASE_MS,
                hello_boottime_ms=self.now_ms,
            )
        )

    def apply(self, report: Report) -> None:
        state = self.placed[report.token]
        if report.kind == "finished":
            self.placed[report.token] = "ended"
        elif report.kind == "started" and state in ("ordered", "waiting"):
            self.placed[report.token] = "running"
        elif report.kind == "not_started" and state == "ordered":
            self.placed[report.token] = "ended" if report.sequence else "waiting"

    def cluster_is_heard(self) -> None:
        if self.to_agent:
            self.handle(Received(self.to_agent.pop(0)))

    # ---- time ------------------------------------------------------------------------------------

    def tick(self, after_ms: int = 1_000) -> None:
        self.now_ms += after_ms
        self.handle(Tick())

    def ask_rarely(self) -> None:
        if self.asks and self.rng.random() < 0.1:
            self.ask_again()

    def works(self) -> None:
        """One step in which nothing fails."""
        self.rng.choice(
            (
                self.tick,
                self.write,
                self.keeper_works,
                self.keeper_is_heard,
                self.keeper_is_heard,
                self.agent_is_heard,
                self.cluster_is_heard,
                self.job_moves,
                self.place,
                self.attach,
                self.connect,
                self.ask_rarely,
            )
        )()

    def fails(self) -> None:
        self.rng.choice(self.faults)()


@pytest.mark.parametrize("seed", range(24))
def test_every_end_reaches_the_cluster_whatever_fails(seed: int) -> None:
    world = World(seed)
    # Each fault alone, and without the asking that heals, too: one would hide what another does.
    world.asks = seed >= 12
    faults = (world.cut_keeper, world.cut_session, world.crash)
    world.faults = faults if seed % 4 == 0 else faults[seed % 4 - 1 : seed % 4]
    for _ in range(STEPS):
        world.works()
        if world.rng.random() < 0.04:
            world.fails()
    for _ in range(6_000):
        world.works()
    assert len(world.placed) == JOBS
    assert set(world.placed.values()) == {"ended"}
    assert len(world.core.outbox) == 0
    assert world.core.attempts == {}
    assert set(world.ledger) == world.forgotten
    assert world.disk == {}
