"""Messages of the controller and the keeper's answers to what they ordered. Pure.

Functions over AgentState: `core.py` holds the state, this file the rules for orders:

- an order of a stale controller, or of an earlier session, is refused and reported (OrderRefused);
- an order that cannot be carried out ends in a durable report: `not_started` when the token is void
  at the keeper from then on, `finished launch_error` when no node could ever start it;
- an order for something known is answered with its report again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent import rejoin
from agent.attempts import Attempt, Phase
from agent.errors import BadFacts
from agent.events import CloseStream, OpenStream, Send
from agent.facts import clip, facts_of
from agent.membership import Session
from scheduler.protocol.errors import ProtocolError
from scheduler.protocol.ids import parse_token
from scheduler.protocol.messages import (
    AskStatus,
    CloseBulk,
    ControllerMessage,
    DeleteLogs,
    FinishFacts,
    HeartbeatAck,
    Kill,
    NotLeader,
    OpenBulk,
    OrderRefused,
    Refused,
    Report,
    ReportsCommitted,
    Start,
    StartFacts,
    Verdicts,
    WantInventory,
)

if TYPE_CHECKING:
    from agent.core import AgentState

Order = Start | Kill | AskStatus | DeleteLogs

#: Answers to `start` after which the token is voided and reported as not started.
_NOT_STARTED_CODES = frozenset({"no_lease", "voided", "disk_low"})


def receive(core: AgentState, session: Session, message: ControllerMessage) -> None:
    """One message of the session's controller."""
    match message:
        case Start() | Kill() | AskStatus() | DeleteLogs():
            _receive_order(core, session, message)
        case HeartbeatAck():
            _receive_ack(core, session, message)
        case ReportsCommitted():
            _receive_committed(core, session, message)
        case Verdicts():
            if message.session == session.number and not session.is_stale:
                rejoin.take_verdicts(core, session, message)
        case WantInventory():
            if message.session == session.number:
                rejoin.begin_again(core, session)
        case OpenBulk():
            core.emit(OpenStream(message))
        case CloseBulk():
            core.emit(CloseStream(message.request))
        case NotLeader():
            # It leads no longer and closes the session: nothing is to be said goodbye to.
            core.leave_session("the leader was deposed", address=message.address)
        case Refused():
            core.note("session_refused", is_warning=True, code=message.code, why=message.message)
        case _:
            # Welcome and its refusals belong to the dialling; here they are out of place.
            core.note("message_unexpected", is_warning=True, kind=type(message).__name__)


def take_answer(core: AgentState, request: dict[str, Any], answer: dict[str, Any]) -> None:
    """The keeper's answer to a start, status or kill."""
    token = request["token"]
    attempt = core.attempts.get(token)
    is_ok, code = bool(answer.get("ok")), str(answer.get("code", ""))
    core.open_requests.pop((request["do"], token), None)
    if request["do"] == "start":
        if attempt is not None and attempt.order is not None:
            _take_start_answer(core, attempt, answer, is_ok=is_ok, code=code)
        return
    if not is_ok:
        core.note("keeper_refused", is_warning=True, do=request["do"], token=token, code=code)
        return
    state = answer.get("state")
    if request["do"] == "fence":
        return
    if state == "unknown" and request["do"] == "kill":
        # Killed before it came here: void it durably, so that a start still on its way is refused.
        core.ask_surely("status", token=token)
    elif state == "unknown":
        core.report_not_started(token)
    elif request["do"] == "status":
        _take_status(core, token, answer)
    elif state == "exited" and attempt is not None and not attempt.is_live:
        core.report_again(attempt)


def ask_start(core: AgentState, attempt: Attempt) -> None:
    """Hand the attempt's order to the keeper, under the node's present lease."""
    order = attempt.order
    assert order is not None
    attempt.lease_until_ms = core.lease_until_ms
    core.ask(
        "start",
        token=order.token,
        session=order.session,
        work=facts_of(order.work),
        lease_until_boottime_ms=core.lease_until_ms,
    )


def _receive_order(core: AgentState, session: Session, order: Order) -> None:
    refusal = _refusal_of(core, session, order)
    if refusal:
        token = order.tokens[0] if isinstance(order, DeleteLogs) else order.token
        core.note("order_refused", is_warning=True, token=token, code=refusal)
        refused = OrderRefused(order_sequence=order.order_sequence, token=token, code=refusal)
        core.emit(Send(refused))
        session.orders.receive(order.order_sequence)
        session.orders.finish(order.order_sequence)
        return
    core.show(order.seen)
    session.orders.receive(order.order_sequence)
    match order:
        case Start():
            _receive_start(core, session, order)
        case Kill():
            _receive_kill(core, order)
        case AskStatus():
            core.ask_surely("status", token=order.token)
        case DeleteLogs():
            core.ask("delete_logs", tokens=list(order.tokens))
    if not isinstance(order, Start):
        session.orders.finish(order.order_sequence)


def _refusal_of(core: AgentState, session: Session, order: Order) -> str:
    """Why `order` is not obeyed; empty when it is."""
    if session.is_stale or session.knows_less(order.seen, core.seen):
        return "stale_controller"
    if order.session != session.number:
        return "old_session"
    tokens = order.tokens if isinstance(order, DeleteLogs) else (order.token,)
    try:
        for token in tokens:
            parse_token(token)
    except ProtocolError:
        return "bad_order"
    return "" if tokens else "bad_order"


def _receive_start(core: AgentState, session: Session, order: Start) -> None:
    attempt = core.attempts.get(order.token)
    if core.leaving:
        _refuse_leaving(core, order)
    elif attempt is None:
        attempt = Attempt(order.token, Phase.ORDERED, session=session.number, order=order)
        core.attempts[order.token] = attempt
        ask_start(core, attempt)
        return
    elif attempt.order is None:
        core.report_again(attempt)
    session.orders.finish(order.order_sequence)


def _refuse_leaving(core: AgentState, order: Start) -> None:
    refused = OrderRefused(order_sequence=order.order_sequence, token=order.token, code="leaving")
    core.emit(Send(refused))
    if core.attempts.get(order.token) is None and core.leaving != "stopped":
        # Jobs may take long to end, and this one need not wait for them: the keeper voids it, and
        # `not_started` lets it be placed elsewhere. Without a keeper the goodbye says as much.
        core.ask_surely("status", token=order.token)


def _receive_kill(core: AgentState, order: Kill) -> None:
    attempt = core.attempts.get(order.token)
    if attempt is not None and not attempt.is_live:
        core.report_again(attempt)
        return
    core.ask_surely(
        "kill",
        token=order.token,
        by=order.by,
        why=order.why,
        cause=order.cause,
        grace_ms=order.grace_ms,
        stop_signal=order.stop_signal,
    )


def _receive_ack(core: AgentState, session: Session, ack: HeartbeatAck) -> None:
    if session.is_stale or ack.sequence > session.heartbeat_sequence:
        return
    session.acknowledge(ack.sequence, core.now_ms)
    session.lease_ms = ack.lease_ms
    core.show(ack.seen)
    # The echo may not lie in the future: a lease counts from a sending of ours.
    sent_ms = min(ack.sent_boottime_ms, core.now_ms)
    core.renew_leases(sent_ms, ack.lease_ms, set(ack.not_renewed))
    if ack.wants_inventory:
        rejoin.begin_again(core, session)


def _receive_committed(core: AgentState, session: Session, message: ReportsCommitted) -> None:
    if session.is_stale:
        return
    committed = core.outbox.commit(message.sequences)
    core.forget(r.token for r in committed if r.kind in ("finished", "tree_gone"))
    core.outbox.refuse(message.refused, retry_at_ms=core.now_ms + message.retry_after_ms)
    for token in message.disowned:
        core.outbox.drop_token(token)
    core.forget(message.disowned)


def _take_start_answer(
    core: AgentState, attempt: Attempt, answer: dict[str, Any], *, is_ok: bool, code: str
) -> None:
    order, attempt.order = attempt.order, None
    assert order is not None
    if is_ok:
        if attempt.phase is Phase.ORDERED:
            attempt.phase = Phase.INTENT
    elif code == "duplicate":
        if attempt.phase is Phase.ORDERED:
            attempt.phase = Phase.INTENT
        core.ask_surely("status", token=order.token)
    elif code in _NOT_STARTED_CODES:
        core.note("start_refused", is_warning=True, token=order.token, code=code)
        # `status` of what the keeper does not know voids it durably, and is answered `unknown`.
        core.attempts.pop(order.token, None)
        core.ask_surely("status", token=order.token)
    else:
        _fail_launch(core, order, f"{code}: {answer.get('message', '')}")
    if core.session is not None:
        core.session.orders.finish(order.order_sequence)


def _fail_launch(core: AgentState, order: Start, detail: str) -> None:
    """No keeper could ever start this: say so as a finish, so that the attempt comes to its end."""
    core.note("order_bad", is_warning=True, token=order.token, detail=detail)
    core.emit(
        Send(
            OrderRefused(
                order_sequence=order.order_sequence,
                token=order.token,
                code="bad_order",
                message=clip(detail),
            )
        )
    )
    core.attempts.pop(order.token, None)
    at_ms = core.wall_ms
    worker = order.work.attempt.partition("#")[0]
    finish = FinishFacts(
        cause="launch_error",
        ended_at_ms=at_ms,
        start=StartFacts(started_at_ms=at_ms, pid=None, worker=worker),
        evidence="never_started",
        detail=clip(detail),
    )
    core.keep(Report(kind="finished", token=order.token, finish=finish))


def _take_status(core: AgentState, token: str, answer: dict[str, Any]) -> None:
    known = core.attempts.get(token)
    if known is not None and not known.is_live:
        core.report_again(known)
        return
    try:
        attempt, _ = core.attempts.take_listed({**answer, "token": token})
    except BadFacts as error:
        core.note("keeper_facts_bad", is_warning=True, token=token, error=str(error))
        return
    core.report_again(attempt)
