"""The keeper's side of the core: its events, answers and lists become the agent's truth. Pure.

Functions over AgentState, which says what a reconnect must bring back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agent import orders, rejoin
from agent.attempts import Attempt, Phase
from agent.errors import BadFacts
from agent.events import KeeperAttached, ReleaseKeeper
from agent.facts import clip, finish_from, start_from
from agent.membership import lease_margin_ms
from scheduler.protocol.messages import Report

if TYPE_CHECKING:
    from agent.core import AgentState

#: Attempts in one answer to `list`: 2,000 with all their facts stay below 2 MiB.
LIST_PAGE: Final = 2_000


@dataclass(slots=True)
class Listing:
    """A listing under way."""

    #: The table when it began: only what was known then can be found missing.
    known_before: frozenset[str]
    wants_all: bool
    tokens: set[str] = field(default_factory=set)
    is_wanted_again: bool = False


def attach(core: AgentState, event: KeeperAttached) -> None:
    """A keeper is there: whatever it knows is asked for first."""
    core.is_keeper_attached, core.is_listed = True, False
    core.note("keeper_attached", pid=event.pid, limits=event.limits)
    if core.store_id and core.store_id != event.store_id:
        # Another ledger: what the old one knew is lost, and the cluster must conclude from that.
        core.note("keeper_store_changed", is_warning=True, old=core.store_id)
        core.attempts.clear()
        if core.session is not None:
            core.reconnect("the keeper has another store")
    core.store_id, core.boot_id, core.limits = event.store_id, event.boot_id, event.limits
    core.is_disk_low = event.is_disk_low
    if core.session is not None and not core.session.is_joined:
        rejoin.begin(core, core.session)
    else:
        ask_list(core)


def lose_keeper(core: AgentState) -> None:
    """What was asked and not answered stays in `open_requests` and in the orders."""
    core.is_keeper_attached = core.is_listed = False
    core.settings = core.listing = None
    if core.leaving == "stopping":
        # It died before it had ended everything: the next one is told to.
        core.leaving = "wanted"


def take_answer(core: AgentState, request: dict[str, Any], answer: dict[str, Any]) -> None:
    """The keeper's answer to one request."""
    do, is_ok = request["do"], bool(answer.get("ok"))
    if do in ("start", "status", "kill", "fence"):
        orders.take_answer(core, request, answer)
    elif not is_ok:
        code, message = answer.get("code"), answer.get("message")
        core.note("keeper_refused", is_warning=True, do=do, code=code, message=message)
    elif do == "void":
        rejoin.take_voided(core, request, answer)
    elif do == "list":
        _take_list(core, answer)
    elif do == "forget":
        for token in request["tokens"]:
            attempt = core.attempts.get(token)
            if attempt is not None and attempt.is_acknowledged:
                del core.attempts[token]
    elif do == "stop":
        _take_stopped(core, answer)


def ask_list(core: AgentState) -> None:
    """Have the keeper list its attempts, page by page; what it says comes to `_take_list`.

    One listing at a time: asked for during another, it begins when that one has ended.
    """
    if not core.is_keeper_attached:
        return
    if core.listing is not None:
        core.listing.is_wanted_again = True
        return
    wants_all = core.session is not None and core.session.wants_all
    core.listing = Listing(frozenset(core.attempts), wants_all=wants_all)
    _ask_page(core, core.listing, after="")


def _ask_page(core: AgentState, listing: Listing, *, after: str) -> None:
    core.ask("list", with_forgotten=listing.wants_all, after=after, limit=LIST_PAGE)


def _take_list(core: AgentState, answer: dict[str, Any]) -> None:
    listing = core.listing
    if listing is None:
        return
    items = list(answer.get("attempts") or ())
    for item in items:
        try:
            attempt, before = core.attempts.take_listed(item)
        except BadFacts as error:
            core.note("keeper_facts_bad", is_warning=True, error=str(error))
            # It exists: left out of an inventory it would count as lost.
            token = str(item.get("token"))
            core.attempts.setdefault(token, Attempt(token, Phase.DAMAGED))
            listing.tokens.add(token)
            continue
        listing.tokens.add(attempt.token)
        _report_change(core, attempt, before)
        _take_signs(core, attempt, item, is_new=before is None)
    if answer.get("is_more") and items:
        _ask_page(core, listing, after=str(items[-1].get("token")))
        return
    core.listing = None
    _end_listing(core, listing)
    if listing.is_wanted_again:
        ask_list(core)
    elif core.session is not None and core.session.inventory == "list":
        rejoin.send_inventory(core, core.session)
    stop_keeper(core)


def _end_listing(core: AgentState, listing: Listing) -> None:
    """All pages are in: what the keeper does not have is not here."""
    unforgotten = []
    for token in listing.known_before:
        attempt = core.attempts.get(token)
        if attempt is None or attempt.phase is Phase.ORDERED:
            continue
        if token not in listing.tokens:
            del core.attempts[token]
        elif attempt.is_acknowledged and not listing.wants_all:
            unforgotten.append(token)
    if unforgotten:
        # The keeper that was told before is gone, and its successor does not know.
        core.ask("forget", tokens=unforgotten)
    if not core.is_listed:
        core.is_listed = True
        _ask_again(core)


def _take_signs(core: AgentState, attempt: Attempt, item: dict[str, Any], *, is_new: bool) -> None:
    """What events told while no agent listened: the newest progress line, and readiness."""
    if not is_new or not attempt.is_live:
        return
    if item.get("is_ready"):
        core.keep(Report(kind="ready", token=attempt.token))
    if item.get("progress"):
        attempt.progress, attempt.is_progress_new = clip(str(item["progress"])), True


def _report_change(core: AgentState, attempt: Attempt, before: Phase | None) -> None:
    """Report what the list says and no event has said."""
    if attempt.phase is Phase.EXITED:
        if before is not Phase.EXITED and not attempt.is_acknowledged:
            core.report_again(attempt)
    elif before in (Phase.ORDERED, Phase.INTENT) and attempt.phase is Phase.RUNNING:
        core.report_again(attempt)


def _ask_again(core: AgentState) -> None:
    """After the first list of a keeper: everything it may not have heard."""
    if core.session is not None and core.session.is_joined:
        tell_settings(core, core.session.lease_ms)
    leases = {
        attempt.token: attempt.lease_until_ms
        for attempt in core.attempts.live()
        if attempt.lease_until_ms > core.now_ms
    }
    if leases:
        core.ask("lease", leases=leases)
    for attempt in list(core.attempts.values()):
        if attempt.order is not None:
            orders.ask_start(core, attempt)
    for request in core.open_requests.values():
        core.ask(**request)


def tell_settings(core: AgentState, lease_ms: int) -> None:
    """Tell the keeper its retention and margin, when they changed."""
    if core.session is None:
        return
    settings = (core.session.log_retention_ms, lease_margin_ms(lease_ms))
    if settings != core.settings and core.is_keeper_attached:
        core.settings = settings
        core.ask("settings", log_retention_ms=settings[0], lease_margin_ms=settings[1])


def hear_keeper(core: AgentState, message: dict[str, Any]) -> None:
    """One event of the keeper, durable in its journal."""
    kind, token = message.get("is"), str(message.get("token", ""))
    try:
        if kind == "started":
            _take_started(core, token, message)
        elif kind == "finished":
            _take_finished(core, token, message.get("finish"))
        elif kind == "tree_gone":
            _take_tree_gone(core, token)
        elif kind == "not_started":
            core.report_not_started(token)
        elif kind == "disk":
            core.is_disk_low = bool(message.get("is_low"))
            core.note("disk", is_warning=core.is_disk_low, is_low=core.is_disk_low)
        elif (attempt := core.attempts.get(token)) is not None:
            _take_sign(core, attempt, str(kind), message)
    except BadFacts as error:
        # Nothing is invented: the attempt stays as it is, and `list` will say the same again.
        core.note("keeper_facts_bad", is_warning=True, token=token, error=str(error))


def _take_started(core: AgentState, token: str, message: dict[str, Any]) -> None:
    start = start_from(message.get("start"))
    attempt = core.attempts.get(token)
    if attempt is None:
        attempt = core.attempts[token] = Attempt(token, Phase.INTENT)
    if attempt.phase in (Phase.RUNNING, Phase.EXITED):
        return
    attempt.phase, attempt.start = Phase.RUNNING, start
    core.keep(Report(kind="started", token=token, start=start))


def _take_finished(core: AgentState, token: str, facts: object) -> None:
    finish = finish_from(facts)
    attempt = core.attempts.get(token)
    if attempt is None:
        attempt = core.attempts[token] = Attempt(token, Phase.RUNNING)
    if attempt.phase is Phase.EXITED:
        return
    if attempt.is_progress_new:
        # The last line would be lost with the next heartbeat, which carries live attempts only.
        core.keep(Report(kind="progress", token=token, text=attempt.progress))
    attempt.phase, attempt.finish = Phase.EXITED, finish
    attempt.order = None
    core.keep(Report(kind="finished", token=token, finish=finish))


def _take_tree_gone(core: AgentState, token: str) -> None:
    attempt = core.attempts.get(token)
    if attempt is not None and attempt.finish is not None:
        attempt.finish = msgspec.structs.replace(attempt.finish, is_tree_gone=True)
    if not core.outbox.has(token, "tree_gone"):
        core.keep(Report(kind="tree_gone", token=token))


def _take_sign(core: AgentState, attempt: Attempt, kind: str, message: dict[str, Any]) -> None:
    if kind in ("frozen", "thawed"):
        attempt.is_frozen = kind == "frozen"
        core.note(f"attempt_{kind}", token=attempt.token)
    elif kind == "progress":
        attempt.progress, attempt.is_progress_new = clip(str(message.get("text", ""))), True
    elif kind == "ready":
        core.keep(Report(kind="ready", token=attempt.token))


def stop_keeper(core: AgentState) -> None:
    """End every job, when a leave is wanted and the keeper can be told to."""
    if core.leaving == "wanted" and core.is_keeper_attached and core.is_listed:
        core.leaving = "stopping"
        core.note("leaving", why=core.leave_why, live=len(core.attempts.live()))
        core.ask("stop", end_jobs=True, why=core.leave_why)


def _take_stopped(core: AgentState, answer: dict[str, Any]) -> None:
    for token, facts in dict(answer.get("finishes") or {}).items():
        attempt = core.attempts.get(token)
        if attempt is None or not attempt.is_live:
            continue
        try:
            _take_finished(core, str(token), facts)
        except BadFacts as error:
            core.note("keeper_facts_bad", is_warning=True, token=token, error=str(error))
    core.leaving, core.stopped_at_ms = "stopped", core.now_ms
    core.emit(ReleaseKeeper())
