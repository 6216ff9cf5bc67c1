"""Join and rejoin (specification 3.5): void, list, Inventory, Verdicts. Pure.

The inventory is what the keeper lists after it voided every unstarted order of earlier sessions, in
the structures of live reports. An attempt whose order is being carried out at that moment is never
left out, for its absence would say that it never started: the list is asked for again instead.
Functions over AgentState.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent import ledger
from agent.attempts import Attempt, Phase
from agent.events import Send
from agent.membership import RELIST_MS, Session
from scheduler.protocol.messages import ITEMS_MAX, Inventory, Report, Verdict, Verdicts

if TYPE_CHECKING:
    from agent.core import AgentState

#: Cause of an attempt that is ended because a newer one has its place.
_FENCED = "fenced"


def begin(core: AgentState, session: Session) -> None:
    """Start the inventory of a new session; without a keeper it starts when one is attached."""
    if session.is_stale:
        return
    session.is_joined = False
    if core.leaving == "stopped":
        # The keeper left after every end was durable here: the table is the whole truth.
        send_inventory(core, session)
        return
    session.inventory = "void"
    core.ask("void", below_session=session.number)


def begin_again(core: AgentState, session: Session) -> None:
    """The controllers miss something: the whole inventory once more, within the session."""
    if session.is_stale or session.inventory is not None:
        return
    if core.leaving == "stopped":
        send_inventory(core, session)
        return
    session.inventory = "list"
    ledger.ask_list(core)


def take_voided(core: AgentState, request: dict[str, Any], answer: dict[str, Any]) -> None:
    """The keeper voided what had not started; then it is asked for the rest."""
    for token in answer.get("voided", ()):
        attempt = core.attempts.get(token)
        if attempt is None or attempt.phase in (Phase.ORDERED, Phase.INTENT):
            core.attempts.pop(token, None)
            core.voided.add(token)
    session = core.session
    if session is None or session.inventory != "void":
        return
    if request["below_session"] == session.number:
        session.inventory = "list"
        ledger.ask_list(core)


def send_inventory(core: AgentState, session: Session) -> None:
    """Send all that the table holds, in parts; or plan another list while an order is under way."""
    if any(attempt.phase in (Phase.ORDERED, Phase.INTENT) for attempt in core.attempts.values()):
        session.inventory, session.relist_at_ms = "relist", core.now_ms + RELIST_MS
        return
    items = [Report(kind="not_started", token=token) for token in sorted(core.voided)]
    for attempt in core.attempts.values():
        report = attempt.report()
        if report is not None and (session.wants_all or not attempt.is_acknowledged):
            items.append(report)
    parts = [tuple(items[at : at + ITEMS_MAX]) for at in range(0, len(items), ITEMS_MAX)] or [()]
    for number, part in enumerate(parts, start=1):
        is_last = number == len(parts)
        core.emit(Send(Inventory(session=session.number, items=part, is_last=is_last)))
    session.inventory, session.inventory_sent_ms = "sent", core.now_ms
    session.verdicts.clear()
    session.not_renewed.clear()
    core.note("inventory_sent", session=session.number, items=len(items))


def take_verdicts(core: AgentState, session: Session, message: Verdicts) -> None:
    """One part of the rejoin's answer; with the last one the node is in."""
    if session.inventory != "sent":
        return
    session.verdicts.extend(message.verdicts)
    session.not_renewed.update(message.not_renewed)
    if not message.is_last:
        return
    verdicts, session.verdicts = session.verdicts, []
    excluded, session.not_renewed = session.not_renewed, set()
    core.show(message.seen)
    session.inventory = None
    session.is_joined = True
    session.wants_all = False
    session.last_ack_ms = core.now_ms
    session.lease_ms = message.lease_ms
    core.voided.clear()
    # What the cluster wants ended is not renewed: a frozen one must get KILL before any thaw.
    excluded.update(verdict.token for verdict in verdicts if verdict.verdict == "kill")
    for verdict in verdicts:
        _obey(core, verdict)
    sent_ms = min(message.hello_boottime_ms, session.hello_boottime_ms)
    core.renew_leases(sent_ms, message.lease_ms, excluded)
    core.note("joined", session=session.number, verdicts=len(verdicts))


def _obey(core: AgentState, verdict: Verdict) -> None:
    attempt = core.attempts.get(verdict.token)
    match verdict.verdict:
        case "acknowledged":
            if attempt is None or not attempt.is_live:
                core.outbox.drop_token(verdict.token)
                core.forget([verdict.token])
        case "disowned":
            if attempt is None or not attempt.is_live:
                core.note("report_disowned", is_warning=True, token=verdict.token)
                core.outbox.drop_token(verdict.token)
                core.forget([verdict.token])
        case "forget":
            core.outbox.drop_token(verdict.token, ("not_started",))
        case "kill":
            if attempt is not None and attempt.is_live:
                _end(core, attempt, verdict)
        case "registry_full":
            # Its finish stays owed: the outbox sends it until it is taken.
            if attempt is not None and not attempt.is_live:
                core.report_again(attempt)
        case "hold" | "orphan" | "materialised":
            core.note(f"attempt_{verdict.verdict}", token=verdict.token, reason=verdict.reason)
        case "keep":
            pass
        case other:
            core.note("verdict_unknown", is_warning=True, token=verdict.token, verdict=other)


def _end(core: AgentState, attempt: Attempt, verdict: Verdict) -> None:
    core.note("attempt_unwanted", token=attempt.token, cause=verdict.cause, reason=verdict.reason)
    if attempt.is_frozen or verdict.cause == _FENCED:
        core.ask_surely("fence", token=attempt.token, why=verdict.reason)
    else:
        core.ask_surely(
            "kill",
            token=attempt.token,
            by="system:rejoin",
            why=verdict.reason,
            cause=verdict.cause,
            grace_ms=verdict.grace_ms,
            stop_signal="TERM",
        )
