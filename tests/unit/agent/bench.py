"""Drives an AgentState by hand: virtual time, a scripted keeper, actions collected."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from agent.core import AgentState
from agent.events import (
    Action,
    AskKeeper,
    Event,
    KeeperAnswered,
    KeeperAttached,
    KeeperSaid,
    Note,
    OutboxWritten,
    Received,
    SaveSeen,
    Send,
    Tick,
    Welcomed,
)
from agent.outbox import Outbox
from scheduler.protocol.ids import make_token
from scheduler.protocol.messages import (
    ControllerMessage,
    Kill,
    Message,
    Report,
    ReportsCommitted,
    Seen,
    Start,
    Verdict,
    Verdicts,
    Welcome,
    Work,
)

INCARNATION = "0123abcd0000"
LEASE_MS = 300_000
START = {"started_at_ms": 1, "pid": 7, "start_ticks": 5, "boot_id": "b", "worker": "1/main/0"}
FINISH: dict[str, Any] = {"cause": "exit_zero", "ended_at_ms": 2, "start": START, "exit_code": 0}

Kind = TypeVar("Kind", bound=Message)


def token(number: int) -> str:
    return make_token(INCARNATION, number, 0)


def seen(index: int = 10, term: int = 3, incarnation: str = INCARNATION) -> Seen:
    return Seen(incarnation=incarnation, term=term, index=index)


def running(number: int, **fields: Any) -> dict[str, Any]:
    return {"token": token(number), "state": "running", "start": START, **fields}


def exited(number: int, **fields: Any) -> dict[str, Any]:
    return {"token": token(number), "state": "exited", "finish": FINISH, **fields}


class Bench:
    """An agent's core and all that it wanted done; every expectation takes from `actions`."""

    def __init__(self, *, known: Seen = Seen(), outbox: Outbox | None = None) -> None:
        self.core = AgentState(outbox=outbox or Outbox(), seen=known, rng=random.Random(1))
        self.now_ms = 1_000_000
        self.session = 0
        self.orders = 0
        self.actions: list[Action] = []

    def handle(self, event: Event, *, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        self.actions += self.core.handle(event, now_ms=self.now_ms, wall_ms=99)

    def tick(self, after_ms: int = 0) -> None:
        self.handle(Tick(), after_ms=after_ms)

    # ---- the keeper ------------------------------------------------------------------------------

    def attach(self, *, store_id: str = "store", boot_id: str = "boot") -> None:
        self.handle(KeeperAttached(store_id=store_id, boot_id=boot_id, pid=9, limits="sampled"))

    def asked(self, do: str) -> list[dict[str, Any]]:
        """Take the requests of one kind."""
        taken = [a for a in self.actions if isinstance(a, AskKeeper) and a.request["do"] == do]
        self.actions = [a for a in self.actions if a not in taken]
        return [action.request for action in taken]

    def answer(self, request: dict[str, Any], *, ok: bool = True, **facts: Any) -> None:
        self.handle(KeeperAnswered(request, {"is": "answer", "ok": ok, **facts}))

    def answer_only(self, do: str, **facts: Any) -> dict[str, Any]:
        (request,) = self.asked(do)
        self.answer(request, **facts)
        return request

    def hear(self, kind: str, number: int, **facts: Any) -> None:
        self.handle(KeeperSaid({"is": kind, "token": token(number), **facts}))

    # ---- the controller --------------------------------------------------------------------------

    def welcome(self, *, term: int = 3, index: int = 10, **fields: Any) -> None:
        self.session += 1
        self.orders = 0
        welcome = Welcome(
            session=self.session,
            cluster_id="c",
            term=term,
            heartbeat_interval_ms=10_000,
            heartbeat_timeout_ms=30_000,
            ack_timeout_ms=2_000,
            lease_ms=LEASE_MS,
            **{"incarnation": INCARNATION, "seen": seen(index, term), **fields},
        )
        self.handle(Welcomed(welcome, self.now_ms, "127.0.0.1:1"))

    def receive(self, message: ControllerMessage) -> None:
        self.handle(Received(message))

    def verdicts(self, *verdicts: Verdict, index: int = 10, term: int = 3, **fields: Any) -> None:
        self.receive(
            Verdicts(
                session=self.session,
                verdicts=verdicts,
                is_last=True,
                seen=fields.pop("seen", seen(index, term)),
                lease_ms=LEASE_MS,
                hello_boottime_ms=self.now_ms,
                **fields,
            )
        )

    def join(self, *listed: dict[str, Any], **fields: Any) -> None:
        """A keeper, a session, the inventory, its answer; what they caused is checked off."""
        if not self.core.is_keeper_attached:
            self.attach()
            self.answer_only("list", attempts=list(listed))
        self.welcome(**fields)
        self.answer_only("void", voided=[])
        self.answer_only("list", attempts=list(listed))
        self.verdicts()
        self.write()
        self.actions.clear()

    def start(self, number: int, **fields: Any) -> Start:
        self.orders += 1
        order = Start(
            order_sequence=self.orders,
            token=token(number),
            work=Work(attempt=f"{number}/main/0#1", argv=("true",)),
            **{"session": self.session, "seen": seen(), **fields},
        )
        self.receive(order)
        return order

    def kill(self, number: int, **fields: Any) -> None:
        self.orders += 1
        self.receive(
            Kill(
                order_sequence=self.orders,
                token=token(number),
                by="user:ana",
                why="typo",
                cause="user_cancel",
                grace_ms=1_000,
                **{"session": self.session, "seen": seen(), **fields},
            )
        )

    def run(self, number: int) -> None:
        """An attempt from its order to its start, all reports written and sent."""
        self.start(number)
        self.answer_only("start", state="intent")
        self.hear("started", number, start=START)
        self.write()

    def sent(self, kind: type[Kind]) -> list[Kind]:
        """Take the messages of one kind."""
        taken = [a for a in self.actions if isinstance(a, Send) and isinstance(a.message, kind)]
        self.actions = [a for a in self.actions if a not in taken]
        return [action.message for action in taken if isinstance(action.message, kind)]

    def write(self) -> None:
        """The outbox's disk has answered."""
        while (writes := self.core.outbox.take_writes()) is not None:
            self.handle(OutboxWritten(writes.last_sequence))

    def commit(self, *reports: Report) -> None:
        self.receive(ReportsCommitted(sequences=tuple(r.sequence for r in reports), index=11))

    def expect_quiet(self) -> None:
        """Nothing else was wanted but notes and the remembering of what was seen."""
        rest = [a for a in self.actions if not isinstance(a, Note | SaveSeen)]
        assert rest == []
