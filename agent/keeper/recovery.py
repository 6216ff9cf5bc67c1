"""After a keeper died or the host rebooted: what the journal and /proc say together.

The lease file is obeyed first. Then, per attempt of the journal without a finish:

    other boot           its tree is gone for sure: status_lost, proven_dead
    started, alive       adopted: watched through a pidfd, its pipes opened again
    started, gone        status_lost, or the wait status if it was written down; strays are ended
    intent alone         found by its marker: adopted; else nobody knows whether the fork came:
                         status_lost, never "not started"
    damaged              what its marker finds is ended, then status_lost
"""

from __future__ import annotations

import os
import signal
from typing import Any

from agent.keeper.attempt import Attempt, Closed, Ending, Phase
from agent.keeper.cgroups import Group
from agent.keeper.clock import wall_ms
from agent.keeper.context import Context
from agent.keeper.environment import resolve_account
from agent.keeper.errors import LaunchFailure, Refused
from agent.keeper.finish import close_attempt
from agent.keeper.ledger import META, Contents, Record
from agent.keeper.loop import READ
from agent.keeper.order import Work, parse_work
from agent.keeper.outcome import ending_of_order
from agent.keeper.output import STREAMS, Capture
from agent.keeper.processes import Identity, ProcessInfo, is_alive, open_pidfd
from agent.keeper.runner import Runner


class Recovery:
    """Runs once, before the socket opens. Loop thread only."""

    def __init__(self, context: Context, runner: Runner) -> None:
        self._context = context
        self._runner = runner
        self._marked: dict[str, list[ProcessInfo]] = {}

    def run(self, contents: Contents) -> None:
        """Take over everything that the journal holds."""
        context = self._context
        meta = contents.records.pop(META, {}).get("meta", {})
        context.cluster_id = str(meta.get("cluster_id", ""))
        context.node = str(meta.get("node", ""))
        context.session_floor = int(meta.get("session_floor", 0))
        context.log_retention_ms = int(meta.get("log_retention_ms", context.log_retention_ms))
        context.leases.load()
        clusters = {context.cluster_id} | {
            str(kinds["intent"].get("cluster_id", ""))
            for kinds in contents.records.values()
            if "intent" in kinds
        }
        self._marked = context.trees.marked(clusters)
        for token, kinds in contents.records.items():
            self._take(token, kinds, is_damaged=token in contents.damaged)
        for token in contents.damaged - set(contents.records):
            self._take(token, {}, is_damaged=True)

    def _take(self, token: str, kinds: dict[str, Record], *, is_damaged: bool) -> None:
        context = self._context
        if "void" in kinds and "intent" not in kinds:
            context.voided[token] = int(kinds["void"]["at_ms"])
        elif "exited" in kinds and not is_damaged:
            self._take_exited(token, kinds)
        elif "intent" in kinds or "started" in kinds or is_damaged:
            self._take_open(token, kinds, is_damaged=is_damaged)
        else:
            context.ledger.drop(token)  # the rest of a record that was being removed

    def _take_exited(self, token: str, kinds: dict[str, Record]) -> None:
        record = kinds["exited"]
        forget = kinds.get("forget")
        self._context.closed[token] = Closed(
            worker=str(record["worker"]),
            session=int(record["session"]),
            forgotten_at_ms=None if forget is None else int(forget["at_ms"]),
        )
        if not record["finish"]["is_tree_gone"] and "intent" in kinds:
            attempt = self._attempt(token, kinds)
            attempt.phase = Phase.STUCK
            self._context.attempts[token] = attempt
            self._runner.endings.begin_again(attempt)
            self._runner.sweeper.look_at(attempt)

    def _take_open(self, token: str, kinds: dict[str, Record], *, is_damaged: bool) -> None:
        context = self._context
        attempt = self._attempt(token, kinds)
        context.attempts[token] = attempt
        context.leases.renew(token, int(kinds.get("intent", {}).get("lease_until_boottime_ms", 0)))
        booted = str(kinds.get("intent", {}).get("boot_id", context.boot_id))
        if booted != context.boot_id:
            attempt.ended_at_ms = wall_ms()
            attempt.identity = _identity(kinds.get("started"))
            close_attempt(
                context, attempt, is_tree_gone=True, detail="the host rebooted", proof="proven_dead"
            )
            return
        self._adopt(attempt, kinds, is_damaged=is_damaged)

    def _adopt(self, attempt: Attempt, kinds: dict[str, Record], *, is_damaged: bool) -> None:
        context, runner = self._context, self._runner
        attempt.is_adopted = True
        attempt.identity = _identity(kinds.get("started")) or self._marked_identity(attempt.token)
        members = runner.endings.members(attempt)
        self._resume_output(attempt, kinds, [member.pid for member in members])
        self._resume_state(attempt, kinds)
        identity = attempt.identity
        is_main_alive = identity is not None and is_alive(identity, current_boot_id=context.boot_id)
        if is_damaged:
            context.damaged.add(attempt.token)
        attempt.phase = Phase.RUNNING if is_main_alive else Phase.LINGERING
        if "started" not in kinds and attempt.identity is not None:
            self._record_start(attempt)
        if is_main_alive and identity is not None:
            self._watch_main(attempt, identity)
        else:
            attempt.ended_at_ms = attempt.ended_at_ms or wall_ms()
            runner.sweeper.look_at(attempt)
        runner.resume(attempt)
        runner.endings.go_on(attempt)
        if is_damaged:
            runner.endings.begin(attempt, cause="", detail="", grace_ms=attempt.work.grace_ms)
        elif attempt.order is not None:
            runner.endings.begin(
                attempt,
                cause=ending_of_order(str(attempt.order.get("cause"))),
                detail=f"{attempt.order['cause']} by {attempt.order['by']}: {attempt.order['why']}",
                grace_ms=int(attempt.order.get("grace_ms", attempt.work.grace_ms)),
            )

    def _resume_state(self, attempt: Attempt, kinds: dict[str, Record]) -> None:
        started, frozen, status = kinds.get("started"), kinds.get("frozen"), kinds.get("status")
        if started is not None:
            attempt.started_at_ms = int(started["start"]["started_at_ms"])
            attempt.started_boottime_ms = int(started["boottime_ms"])
            group = started.get("group")
            attempt.group = None if group is None else Group.from_facts(group)
        attempt.progressed_at = self._context.loop.now_ms()
        if frozen is not None:
            attempt.frozen_ms = int(frozen["total_ms"])
            attempt.frozen_since_ms = frozen["since_boottime_ms"]
        if status is not None:
            attempt.status = int(status["status"])
            attempt.status_evidence = "replayed"
            attempt.ended_at_ms = int(status["ended_at_ms"])
            attempt.usage.cpu_ms = status.get("cpu_ms")
            attempt.usage.peak_rss_bytes = status.get("peak_rss_bytes")
            attempt.was_signalled = bool(status.get("was_signalled"))
            attempt.was_oom = bool(status.get("was_oom"))
            self._resume_ending(attempt, status)
        attempt.order = kinds.get("order")

    def _resume_ending(self, attempt: Attempt, status: Record) -> None:
        """An end that was begun before the exit is its cause, whoever saw the exit."""
        if not status.get("ending"):
            return
        attempt.ending = Ending(
            cause=str(status["ending"]),
            detail=str(status["detail"]),
            soft_signal=signal.SIGTERM,
            grace_ms=attempt.work.grace_ms,
            kill_at_ms=self._context.loop.now_ms() + attempt.work.grace_ms,
            is_after_exit=False,
        )

    def _resume_output(self, attempt: Attempt, kinds: dict[str, Record], pids: list[int]) -> None:
        inodes = kinds.get("started", {}).get("pipes", {})
        for stream in STREAMS:
            capture = Capture(attempt.directory, stream, attempt.work.log_limit_bytes)
            capture.resume(pids, int(inodes.get(stream, 0)))
            attempt.captures[stream] = capture

    def _watch_main(self, attempt: Attempt, identity: Identity) -> None:
        """Hear of the end of a process that is not our child."""
        loop = self._context.loop
        fd = open_pidfd(identity.pid, identity.start_ticks)
        if fd is None:
            self._main_gone(attempt)
            return

        def on_end(_events: int) -> None:
            loop.unwatch(fd)
            os.close(fd)
            self._main_gone(attempt)

        loop.watch(fd, READ, on_end)

    def _main_gone(self, attempt: Attempt) -> None:
        if attempt.phase is Phase.RUNNING:
            attempt.phase = Phase.LINGERING
            attempt.ended_at_ms = wall_ms()
        attempt.disarm("timeout")
        attempt.disarm("stall")
        self._runner.sweeper.look_at(attempt)

    def _record_start(self, attempt: Attempt) -> None:
        """The fork came, but the journal did not get to know: now it does."""
        attempt.started_at_ms = wall_ms()
        attempt.started_boottime_ms = self._context.loop.now_ms()
        record: dict[str, Any] = {
            "start": attempt.start_facts(self._context.boot_id),
            "boottime_ms": attempt.started_boottime_ms,
            "pipes": {},
            "group": None,
        }
        self._context.ledger.write(attempt.token, "started", record)

    def _marked_identity(self, token: str) -> Identity | None:
        """The oldest session leader that carries the marker: the one that was launched."""
        leaders = [info for info in self._marked.get(token, ()) if info.session == info.pid]
        if not leaders:
            return None
        first = min(leaders, key=lambda info: info.start_ticks)
        return Identity(first.pid, first.start_ticks, self._context.boot_id)

    def _attempt(self, token: str, kinds: dict[str, Record]) -> Attempt:
        context = self._context
        intent = kinds.get("intent", {})
        attempt = Attempt(
            token=token,
            work=_work_of(intent, kinds),
            session=int(intent.get("session", 0)),
            cluster_id=str(intent.get("cluster_id", context.cluster_id)),
            node=str(intent.get("node", context.node)),
            directory=context.attempts_directory / token,
            workdir=context.work_directory / token,
            is_adopted=True,
        )
        attempt.identity = _identity(kinds.get("started"))
        try:
            attempt.account = resolve_account(attempt.work.user)
        except LaunchFailure:
            attempt.account = None  # the user went away: no checks can run as them
        return attempt


def _work_of(intent: Record, kinds: dict[str, Record]) -> Work:
    """The order's work; a stand-in that can only be ended when it is damaged."""
    try:
        return parse_work(intent.get("work"))
    except Refused:
        worker = str(kinds.get("started", {}).get("start", {}).get("worker", "")) or "0/damaged/0"
        return parse_work({"attempt": f"{worker}#0", "argv": ["damaged"]})


def _identity(started: Record | None) -> Identity | None:
    if started is None or started["start"]["pid"] is None:
        return None
    start = started["start"]
    return Identity(int(start["pid"]), int(start["start_ticks"]), str(start["boot_id"]))
