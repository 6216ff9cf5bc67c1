"""The agent's decisions, pure: events in, actions out, time as an argument.

Owns: what is known of attempts (`attempts`), what is owed to the cluster (`outbox`), and the
session with the leader (`session`). The rules lie beside it, as functions over AgentState:
`ledger.py` (the keeper), `orders.py` (the leader's messages), `rejoin.py` (the inventory).

Three things may be missing at any moment and come back in any order: the keeper, the leader, the
disk's answer. Each reconnect therefore starts from the other side's whole truth and never from what
was in flight:

    keeper attached  -> list -> what it knows replaces the table; open orders, kills, leases again
    welcomed         -> void (orders of earlier sessions die) -> list -> Inventory -> Verdicts
    verdicts         -> lease, kills, forgets; from here on reports flow and orders are taken

A report goes Keep -> durable -> Reports -> ReportsCommitted -> keeper `forget`; each arrow may be
cut by a crash and is then walked again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

from agent import ledger, orders, rejoin
from agent.attempts import Attempt, AttemptTable, Phase
from agent.events import (
    Action,
    AskKeeper,
    CloseSession,
    Event,
    Exit,
    KeeperAnswered,
    KeeperAttached,
    KeeperLost,
    KeeperSaid,
    LeaderLearned,
    LeaveRequested,
    Note,
    OutboxWritten,
    QueryLeader,
    Received,
    RestartRequested,
    SaveSeen,
    Send,
    SessionClosed,
    Tick,
    UsageSampled,
    Welcomed,
)
from agent.membership import Session
from agent.outbox import Outbox
from scheduler.protocol.messages import (
    ITEMS_MAX,
    Goodbye,
    Heartbeat,
    Progress,
    Report,
    Reports,
    Seen,
)

#: Exit codes (docs/protocol.md): an orderly end; leaving with ends the cluster has not committed.
EXIT_DONE: Final = 0
EXIT_UNCOMMITTED: Final = 6
#: With every end committed, a leave waits so long for a leader to say goodbye to.
GOODBYE_MS: Final = 5_000


class AgentState:
    """All state of one agent but its sockets and files. Loop thread only."""

    def __init__(self, *, outbox: Outbox, seen: Seen, rng: random.Random) -> None:
        self.attempts = AttemptTable()
        self.outbox = outbox
        #: Newest committed point shown by any controller; persisted through SaveSeen.
        self.seen = seen
        self.session: Session | None = None
        self.usage = UsageSampled()
        #: Of the keeper last attached; a hello tells them.
        self.store_id = self.boot_id = ""
        self.limits = "sampled"
        self.is_keeper_attached = False
        #: The keeper's list was taken in since it was attached.
        self.is_listed = False
        self.listing: ledger.Listing | None = None
        #: What is sent anyway with each session: orders voided and not yet told to the cluster.
        self.voided: set[str] = set()
        #: "" | wanted | stopping | stopped: how far a leave is.
        self.leaving = ""
        self.leave_why = ""
        #: When the keeper had ended everything.
        self.stopped_at_ms = 0
        self.is_disk_low = False
        #: Leases run until here, by the newest acknowledgement; orders start under it.
        self.lease_until_ms = 0
        #: What the attached keeper was told: log_retention_ms, lease_margin_ms.
        self.settings: tuple[int, int] | None = None
        #: Requests that must be answered, by what they do and to which token; asked again when a
        #: keeper was lost over them. At most one of each kind per attempt.
        self.open_requests: dict[tuple[str, str], dict[str, Any]] = {}
        self._rng = rng
        self._is_exiting = False
        self.now_ms = self.wall_ms = 0
        self._actions: list[Action] = []

    def handle(self, event: Event, *, now_ms: int, wall_ms: int = 0) -> list[Action]:
        """Take `event` in and return what to do, in order.

        `now_ms` is CLOCK_BOOTTIME; `wall_ms` (Unix) only labels what people read.
        """
        self.now_ms = max(self.now_ms, now_ms)
        self.wall_ms = wall_ms
        self._actions = []
        self._dispatch(event)
        self._send_reports()
        self._finish_leave()
        actions, self._actions = self._actions, []
        return actions

    def _dispatch(self, event: Event) -> None:
        match event:
            case Received():
                if self.session is not None:
                    orders.receive(self, self.session, event.message)
            case KeeperSaid():
                ledger.hear_keeper(self, event.message)
            case KeeperAnswered():
                ledger.take_answer(self, event.request, event.answer)
            case OutboxWritten():
                self.outbox.mark_written(event.sequence)
            case Tick():
                self._tick()
            case UsageSampled():
                self.usage = event
            case Welcomed():
                self._begin_session(event)
            case SessionClosed():
                self._end_session(event.reason)
            case KeeperAttached():
                ledger.attach(self, event)
            case KeeperLost():
                ledger.lose_keeper(self)
                self.note("keeper_lost", is_warning=self.leaving != "stopped", reason=event.reason)
            case LeaderLearned():
                self._compare_leader(event)
            case LeaveRequested():
                if not self.leaving:
                    self.leaving, self.leave_why = "wanted", event.why
                    ledger.stop_keeper(self)
            case RestartRequested():
                self.emit(Send(Goodbye(mode="restart")))
                self.emit(CloseSession("restart"))
                self._exit(EXIT_DONE, "restart")

    # ---- for the modules beside this one ---------------------------------------------------------

    def emit(self, action: Action) -> None:
        self._actions.append(action)

    def note(self, event: str, *, is_warning: bool = False, **fields: Any) -> None:
        self.emit(Note(event, fields, is_warning))

    def ask(self, do: str, **fields: Any) -> None:
        """Ask the keeper, if it is there: for what is asked anew at each attach anyway."""
        if self.is_keeper_attached:
            self.emit(AskKeeper({"do": do, **fields}))

    def ask_surely(self, do: str, *, token: str, **fields: Any) -> None:
        """As `ask`, and again after a keeper was lost, until it is answered."""
        request = {"do": do, "token": token, **fields}
        self.open_requests[do, token] = request
        self.ask(**request)

    def keep(self, report: Report) -> None:
        """Give `report` to the outbox: it is sent once durable, until it is committed."""
        self.outbox.add(report)

    def report_again(self, attempt: Attempt) -> None:
        """Tell once more how `attempt` stands, unless that already waits to be told."""
        report = attempt.report()
        if report is not None and not self.outbox.has(report.token, report.kind):
            self.keep(report)

    def report_not_started(self, token: str) -> None:
        """Nothing of this token runs or ever will by orders so far; the keeper has it durably."""
        self.attempts.pop(token, None)
        if not self.outbox.has(token, "not_started"):
            self.keep(Report(kind="not_started", token=token))

    def show(self, seen: Seen) -> None:
        """A controller that is not stale showed a committed point."""
        if seen > self.seen:
            self.seen = seen
            self.emit(SaveSeen(seen))

    def renew_leases(self, sent_ms: int, lease_ms: int, excluded: set[str]) -> None:
        """An acknowledgement of what was sent at `sent_ms`: leases of all live but `excluded`."""
        until = sent_ms + lease_ms
        self.lease_until_ms = max(self.lease_until_ms, until)
        ledger.tell_settings(self, lease_ms)
        leases = {}
        for attempt in self.attempts.live():
            if attempt.token not in excluded and until > attempt.lease_until_ms:
                attempt.lease_until_ms = until
                leases[attempt.token] = until
        if leases:
            self.ask("lease", leases=leases)

    def forget(self, tokens: Iterable[str]) -> None:
        """The cluster has the finish of these: the keeper may drop their records in time."""
        gone = [token for token in tokens if not self._is_owed(token)]
        for token in gone:
            attempt = self.attempts.get(token)
            if attempt is not None:
                attempt.is_acknowledged = True
        if gone:
            self.ask("forget", tokens=gone)

    def _is_owed(self, token: str) -> bool:
        attempt = self.attempts.get(token)
        if attempt is None:
            return False
        # Until its tree is gone the cluster waits for one more report.
        return attempt.is_live or bool(attempt.finish and not attempt.finish.is_tree_gone)

    # ---- the session -----------------------------------------------------------------------------

    def _begin_session(self, event: Welcomed) -> None:
        welcome = event.welcome
        session = Session.open(
            welcome,
            leader=event.leader,
            hello_boottime_ms=event.hello_boottime_ms,
            guard=self.seen,
            now_ms=self.now_ms,
        )
        self.session = session
        self.note("session_open", session=session.number, leader=event.leader, term=session.term)
        if session.is_stale:
            self.note("controller_stale", is_warning=True, shown=welcome.seen, known=self.seen)
        else:
            self.show(welcome.seen)
        for attempt in [a for a in self.attempts.values() if a.phase is Phase.ORDERED]:
            # Orders die with the session that brought them; the keeper voids what came to it.
            del self.attempts[attempt.token]
        self.outbox.restart_sending()
        rejoin.begin(self, session)

    def _end_session(self, reason: str) -> None:
        if self.session is not None:
            self.note("session_closed", session=self.session.number, reason=reason)
        self.session = None

    def _compare_leader(self, event: LeaderLearned) -> None:
        session = self.session
        if session is not None and event.address and event.term > session.term:
            self.reconnect(f"term {event.term} has another leader", address=event.address)

    def reconnect(self, reason: str, *, address: str = "") -> None:
        """Leave this leader in order, and dial again."""
        self.emit(Send(Goodbye(mode="reconnect")))
        self.leave_session(reason, address=address)

    def leave_session(self, reason: str, *, address: str = "") -> None:
        """End the session on this side; `address` is dialled next."""
        self.emit(CloseSession(reason, address))
        self._end_session(reason)

    def _tick(self) -> None:
        session = self.session
        if session is None:
            return
        if self.now_ms >= session.next_heartbeat_ms:
            self._send_heartbeat(session)
        if session.inventory == "relist" and self.now_ms >= session.relist_at_ms:
            session.inventory = "list"
            ledger.ask_list(self)
        if session.is_unacknowledged(self.now_ms):
            self.reconnect(f"no acknowledgement for {session.heartbeat_timeout_ms} ms")
        elif session.is_query_due(self.now_ms, self.outbox.oldest_in_flight_ms()):
            self.emit(QueryLeader())

    def _send_heartbeat(self, session: Session) -> None:
        progress: list[Progress] = []
        for attempt in self.attempts.live():
            if attempt.is_progress_new and len(progress) < ITEMS_MAX:
                attempt.is_progress_new = False
                progress.append(Progress(token=attempt.token, text=attempt.progress))
        heartbeat = Heartbeat(
            sequence=session.begin_heartbeat(self.now_ms, self._rng),
            sent_boottime_ms=self.now_ms,
            report_sequence=self.outbox.last_sequence,
            order_sequence=session.orders.handled,
            digest=self.attempts.digest(),
            cpu_used_millis=self.usage.cpu_used_millis,
            memory_used_bytes=self.usage.memory_used_bytes,
            load_millis=self.usage.load_millis,
            disk_free_bytes=self.usage.disk_free_bytes,
            is_disk_low=self.is_disk_low or self.usage.is_disk_low,
            frozen=tuple(sorted(a.token for a in self.attempts.live() if a.is_frozen)),
            progress=tuple(progress),
            acknowledged=session.acknowledged,
        )
        self.emit(Send(heartbeat))

    def _send_reports(self) -> None:
        if self.session is None or not self.session.is_joined:
            return
        while batch := self.outbox.take_batch(self.now_ms, self._rng):
            self.emit(Send(Reports(reports=batch)))

    # ---- leaving ---------------------------------------------------------------------------------

    def _finish_leave(self) -> None:
        if self.leaving != "stopped" or self.outbox:
            return
        if self.session is not None and self.session.is_joined:
            self.emit(Send(Goodbye(mode="leave")))
            self.emit(CloseSession("leave"))
            self._exit(EXIT_DONE, "left")
        elif self.now_ms - self.stopped_at_ms > GOODBYE_MS:
            self._exit(EXIT_DONE, "left; no leader was there to be told")

    def _exit(self, code: int, reason: str) -> None:
        if not self._is_exiting:
            self._is_exiting = True
            self.emit(Exit(code, reason))
