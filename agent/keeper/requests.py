"""What an agent may ask of the keeper: one method per message of `wire.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent.keeper.attempt import Attempt, Phase
from agent.keeper.clock import wall_ms
from agent.keeper.context import Context
from agent.keeper.errors import BAD_ORDER, DISK_LOW, DUPLICATE, NO_LEASE, VOIDED, Refused
from agent.keeper.finish import drop_unstarted
from agent.keeper.ledger import pack
from agent.keeper.order import parse_token, parse_work, signal_number
from agent.keeper.records import Records
from agent.keeper.runner import Runner
from agent.keeper.server import Connection, Server
from agent.keeper.stopping import Stopping
from agent.keeper.watch import Watch

#: Largest journal record of an order, in bytes: the store refuses what is much larger.
INTENT_BYTES_MAX = 1_000_000

Message = dict[str, Any]
Answer = Callable[[Message], None]


class Requests:
    """Loop thread only."""

    def __init__(
        self,
        context: Context,
        runner: Runner,
        watch: Watch,
        records: Records,
        stopping: Stopping,
    ) -> None:
        self._context = context
        self._runner = runner
        self._watch = watch
        self._records = records
        self._stopping = stopping
        self.server: Server | None = None
        self._handlers: dict[str, Callable[[Message, Answer], None]] = {
            "void": self._void,
            "list": self._list,
            "start": self._start,
            "status": self._status,
            "kill": self._kill,
            "lease": self._lease,
            "fence": self._fence,
            "forget": self._forget,
            "settings": self._settings,
            "delete_logs": self._delete_logs,
        }

    def handle(self, connection: Connection, message: Message) -> None:
        """Obey or refuse one message; each gets exactly one answer."""
        kind, number = message.get("do"), message.get("id")
        # The stop's answer comes at the very end and must not hold back the others.
        send = connection.send if kind == "stop" else connection.reserve()

        def answer(facts: Message) -> None:
            send({"is": "answer", "id": number, "ok": True} | facts)

        def refuse(code: str, text: str, facts: Message) -> None:
            answer({"ok": False, "code": code, "message": text} | facts)

        try:
            if kind == "attach":
                self._attach(connection, message, answer)
            elif kind == "stop":
                self._stopping.begin(
                    end_jobs=bool(message.get("end_jobs")),
                    why=str(message.get("why", "")),
                    answer=answer,
                )
            elif isinstance(kind, str) and kind in self._handlers:
                self._handlers[kind](message, answer)
            else:
                refuse(BAD_ORDER, f"unknown request: {kind!r:.40}", {})
        except Refused as refusal:
            refuse(refusal.code, str(refusal), dict(refusal.facts))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # A field that is missing or of another type; nothing was begun before it was read.
            refuse(BAD_ORDER, f"{kind}: {type(error).__name__}: {error}", {})

    def _attach(self, connection: Connection, message: Message, answer: Answer) -> None:
        context = self._context
        cluster_id, node = str(message["cluster_id"]), str(message["node"])
        assert self.server is not None
        self.server.attach(connection)
        changed = (context.cluster_id, context.node) != (cluster_id, node)
        context.cluster_id, context.node = cluster_id, node
        facts = {
            "store_id": context.store_id,
            "boot_id": context.boot_id,
            "pid": self._stopping.pid,
            "limits": context.cgroups.kind,
            "is_disk_low": self._watch.is_disk_low,
        }
        if changed:
            self._records.save_meta()
            context.ledger.after(lambda: answer(facts))
        else:
            answer(facts)

    def _void(self, message: Message, answer: Answer) -> None:
        context, floor = self._context, int(message["below_session"])
        voided = []
        for attempt in list(context.attempts.values()):
            if attempt.phase is Phase.QUEUED and attempt.session < floor:
                drop_unstarted(context, attempt, why="its session is over")
                voided.append(attempt.token)
        context.session_floor = max(context.session_floor, floor)
        self._records.save_meta()
        context.ledger.after(lambda: answer({"voided": voided}))

    def _list(self, message: Message, answer: Answer) -> None:
        with_forgotten = bool(message.get("with_forgotten", True))
        after, limit = str(message.get("after", "")), int(message.get("limit", 0))
        self._context.reaper.reap()

        def durable() -> None:
            attempts, is_more = self._records.listing(
                with_forgotten=with_forgotten, after=after, limit=limit
            )
            answer({"attempts": attempts, "is_more": is_more})

        # What is on its way to the disk would otherwise be listed as still running.
        self._context.ledger.after(durable)

    def _start(self, message: Message, answer: Answer) -> None:
        context = self._context
        token, session = parse_token(message["token"]), int(message["session"])
        work = parse_work(message["work"])
        until_ms = int(message["lease_until_boottime_ms"])
        self._check_start(token, session, until_ms)
        record = {
            "session": session,
            "cluster_id": context.cluster_id,
            "node": context.node,
            "boot_id": context.boot_id,
            "lease_until_boottime_ms": until_ms,
            "work": message["work"],
        }
        if len(pack(record)) > INTENT_BYTES_MAX:
            raise Refused(BAD_ORDER, f"the order exceeds {INTENT_BYTES_MAX} bytes")
        attempt = Attempt(
            token=token,
            work=work,
            session=session,
            cluster_id=context.cluster_id,
            node=context.node,
            directory=context.attempts_directory / token,
            workdir=context.work_directory / token,
        )
        context.attempts[token] = attempt
        context.leases.renew(token, until_ms)

        def durable() -> None:
            answer({"state": "intent"})
            self._runner.enqueue(attempt)

        context.ledger.write(token, "intent", record, durable)

    def _check_start(self, token: str, session: int, until_ms: int) -> None:
        context = self._context
        state = self._records.state_of(token)
        if state != "unknown":
            raise Refused(DUPLICATE, f"{token} is known", state=state)
        if token in context.voided or session < context.session_floor:
            raise Refused(VOIDED, f"{token} was voided")
        if context.is_stopping:
            raise Refused(VOIDED, "the keeper is stopping")
        if context.loop.now_ms() >= until_ms - context.leases.margin_ms:
            raise Refused(NO_LEASE, f"the lease of {token} is over")
        if self._watch.is_disk_low:
            raise Refused(DISK_LOW, "the disk is nearly full")

    def _status(self, message: Message, answer: Answer) -> None:
        context, token = self._context, parse_token(message["token"])
        entry = self._records.entry_of(token)
        if entry is not None:
            context.ledger.after(
                lambda: answer(self._records.entry_of(token) or {"state": "unknown"})
            )
            return
        if token not in context.voided:
            context.voided[token] = wall_ms()
            context.ledger.write(token, "void", {"at_ms": context.voided[token]})
        context.ledger.after(lambda: answer({"state": "unknown"}))

    def _kill(self, message: Message, answer: Answer) -> None:
        context, token = self._context, parse_token(message["token"])
        attempt = context.attempts.get(token)
        if attempt is None or attempt.phase is Phase.CLOSING:
            state = self._records.state_of(token)
            context.ledger.after(lambda: answer({"state": state}))
            return
        by, why = str(message.get("by", "")), str(message.get("why", ""))
        cause, grace_ms = str(message.get("cause", "")), int(message.get("grace_ms", 0))
        stop_signal = message.get("stop_signal")
        if stop_signal is not None:
            signal_number(str(stop_signal))
        if attempt.phase is Phase.QUEUED:
            drop_unstarted(context, attempt, why=f"{cause} by {by}: {why}")
            context.ledger.after(lambda: answer({"state": "unknown"}))
            return
        attempt.order = {
            "by": by,
            "why": why,
            "cause": cause,
            "grace_ms": grace_ms,
            "at_ms": wall_ms(),
            "is_after_exit": attempt.status is not None,
        }

        def durable() -> None:
            answer({"state": self._records.state_of(token)})
            self._runner.endings.begin(
                attempt,
                cause="killed",
                detail=f"{cause} by {by}: {why}",
                grace_ms=grace_ms,
                stop_signal=None if stop_signal is None else str(stop_signal),
            )

        context.ledger.write(token, "order", attempt.order, durable)

    def _fence(self, message: Message, answer: Answer) -> None:
        context, token = self._context, parse_token(message["token"])
        attempt = context.attempts.get(token)
        why = str(message.get("why", ""))
        if attempt is not None and attempt.phase is Phase.QUEUED:
            drop_unstarted(context, attempt, why=why)
        elif attempt is not None and attempt.phase is not Phase.CLOSING:
            attempt.cleanup = "fenced"
            order = {"by": "system:fence", "why": why, "cause": "fenced", "grace_ms": 0}
            context.ledger.write(token, "order", order | {"at_ms": wall_ms()})
            # No wait for the disk: a fenced tree must not go on, and a lost record costs only why.
            self._runner.endings.begin(attempt, cause="fenced", detail=why, grace_ms=0)
        context.ledger.after(lambda: answer({"state": self._records.state_of(token)}))

    def _lease(self, message: Message, answer: Answer) -> None:
        context = self._context
        leases: dict[str, int] = message["leases"]
        pairs = [(parse_token(token), int(until)) for token, until in leases.items()]
        for token, until_ms in pairs:
            attempt = context.attempts.get(token)
            if attempt is not None:
                context.leases.renew(token, until_ms)
        context.leases.save()
        for token, _ in pairs:
            attempt = context.attempts.get(token)
            if attempt is not None:
                self._runner.freezer.renewed(attempt)
        answer({})

    def _forget(self, message: Message, answer: Answer) -> None:
        for token in message["tokens"]:
            self._records.forget(parse_token(token))
        self._context.ledger.after(lambda: answer({}))

    def _settings(self, message: Message, answer: Answer) -> None:
        context = self._context
        context.log_retention_ms = int(message.get("log_retention_ms", context.log_retention_ms))
        margin_ms = int(message.get("lease_margin_ms", context.leases.margin_ms))
        if margin_ms < 0:
            raise Refused(BAD_ORDER, "lease_margin_ms is at least 0")
        context.leases.margin_ms = margin_ms
        context.leases.save()
        self._records.save_meta()
        for attempt in context.attempts.values():
            if "lease" in attempt.timers:
                self._runner.freezer.arm_lease(attempt)  # a larger margin acts sooner
        context.ledger.after(lambda: answer({}))

    def _delete_logs(self, message: Message, answer: Answer) -> None:
        for token in message["tokens"]:
            if token not in self._context.attempts:
                self._records.delete_output(parse_token(token))
        answer({})
