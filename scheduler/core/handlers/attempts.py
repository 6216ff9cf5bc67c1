"""Attempts: placing, and what nodes report of them."""

from __future__ import annotations

from msgspec.structs import replace

from scheduler.core import fencing, placement, registry
from scheduler.core.commands import AttemptReports, Placed, Placement, StartUnconfirmed
from scheduler.core.lifecycle import (
    ADOPTABLE,
    DECLARED_LOST,
    EVIDENCE,
    NODE_REPORTED,
    PENDING,
    PROVEN,
    RUNNING,
)
from scheduler.core.records import Attempt, AttemptKey, LateTruth, PlacedFacts
from scheduler.core.results import Done, PlacedAnswer, Rejected, ReportAnswer
from scheduler.core.transition import (
    end_attempt,
    release_tree,
    start_attempt,
)
from scheduler.core.turn import Turn, placed_event
from scheduler.protocol.ids import BadId, Target, make_token
from scheduler.protocol.messages import FinishFacts, Report

#: Answers to a report.
COMMITTED = "committed"
REGISTRY_FULL = "registry_full"
WRONG_NODE = "wrong_node"


def key_of(text: str) -> AttemptKey | None:
    """The attempt a text such as `42/main/0#1` names; None when it names none."""
    try:
        target = Target.parse(text)
    except BadId:
        return None
    if target.task is None or target.index is None or target.number is None:
        return None
    return (target.job, target.task, target.index, target.number)


def apply_placed(turn: Turn, entry: Placed) -> PlacedAnswer:
    """Check each placement again; the token of one is this entry's index and its position."""
    state = turn.state
    tokens: dict[str, str] = {}
    skipped: list[tuple[str, str]] = []
    for ordinal, choice in enumerate(entry.placements):
        key = key_of(choice.attempt)
        attempt = None if key is None else state.attempts.get(key)
        why = placement.refusal(state, attempt, choice)
        if why:
            skipped.append((choice.attempt, why))
            state.count("placements_skipped")
            continue
        assert attempt is not None
        token = make_token(state.incarnation, turn.at.index, ordinal)
        place(turn, attempt, choice, token)
        tokens[choice.attempt] = token
    return PlacedAnswer(tokens, tuple(skipped))


def place(turn: Turn, attempt: Attempt, choice: Placement, token: str) -> None:
    """Give the attempt its node and token, then whatever the node already reported of it."""
    state = turn.state
    node = state.nodes[choice.node]
    attempt = replace(
        attempt,
        placed=PlacedFacts(
            token=token,
            node=node.name,
            node_uuid=node.uuid,
            store_id=node.store_id,
            boot_id=node.boot_id,
            at=turn.at,
            resources=state.task_spec(attempt).resources,
            gpu_indices=choice.gpu_indices,
        ),
    )
    state.put_attempt(attempt)
    turn.emit(placed_event(attempt))
    if token in state.registry_nodes:
        for report in registry.take(turn, token, node.name):
            taken = state.attempt_of_token(token)
            assert taken is not None
            apply_report(turn, taken, report)


# ---- reports -----------------------------------------------------------------------------------


def apply_attempt_reports(turn: Turn, entry: AttemptReports) -> tuple[ReportAnswer, ...]:
    """Reports of one node, in order. Nothing was judged before this."""
    return tuple(
        ReportAnswer(
            report.sequence,
            report.token,
            take_report(turn, entry.node, entry.node_uuid, report),
        )
        for report in entry.reports
    )


def take_report(turn: Turn, node: str, node_uuid: str, report: Report) -> str:
    """Apply one report, register it, or refuse it; the answer is one of the constants above."""
    state = turn.state
    attempt = state.attempt_of_token(report.token)
    if attempt is not None:
        placed = attempt.placed
        assert placed is not None
        if placed.node != node or placed.node_uuid != node_uuid:
            count_bogus(turn, node)
            return WRONG_NODE
        apply_report(turn, attempt, report)
        return COMMITTED
    stone = state.tombstones.get(report.token)
    if stone is not None:
        if stone.node != node:
            count_bogus(turn, node)
            return WRONG_NODE
        state.count("late_reports")
        if report.kind in ("finished", "tree_gone") and not stone.is_tree_gone:
            state.put_tombstone(replace(stone, is_tree_gone=True))
        return COMMITTED
    return COMMITTED if registry.register(turn, node, report) else REGISTRY_FULL


def count_bogus(turn: Turn, node: str) -> None:
    """A report of another node's attempt: it changes nothing and is counted by node."""
    turn.state.count("bogus_reports")
    turn.state.count(f"bogus_reports:{node}")


def apply_report(turn: Turn, attempt: Attempt, report: Report) -> None:
    """One report of the attempt's own node."""
    match report.kind:
        case "started" if report.start is not None:
            _apply_started(turn, attempt, report)
        case "finished" if report.finish is not None:
            apply_finish(turn, attempt, report.finish)
        case "not_started":
            _apply_not_started(turn, attempt)
        case "progress":
            if attempt.phase == RUNNING:
                turn.state.put_attempt(replace(attempt, progress=report.text))
        case "ready":
            _apply_ready(turn, attempt)
        case "tree_gone":
            if attempt.ended is not None:
                release_tree(turn, attempt)
        case _:
            turn.state.count("malformed_reports")


def _apply_started(turn: Turn, attempt: Attempt, report: Report) -> None:
    assert report.start is not None
    if attempt.phase == PENDING:
        start_attempt(turn, attempt, report.start)
        return
    ended = attempt.ended
    if ended is None:
        return
    turn.state.count("late_reports")
    # Started although it had been ended: its node is ordered to kill it, and no successor is
    # placed before it is gone. One whose finish was seen, in time or late, is only an old report
    # again: nothing would ever release it.
    is_end_seen = ended.finish is not None or attempt.late is not None
    if not is_end_seen and ended.is_tree_gone and not attempt.is_unwanted:
        _mark_unwanted(turn, attempt)


def _mark_unwanted(turn: Turn, attempt: Attempt) -> None:
    state = turn.state
    state.put_attempt(replace(attempt, is_unwanted=True))
    worker = state.workers[attempt.worker]
    if attempt.number not in worker.fences:
        fences = tuple(sorted((*worker.fences, attempt.number)))
        state.put_worker(replace(worker, fences=fences, version=turn.at.index))
    turn.record(str(attempt), "unwanted", details={"reported": "started"})


def _apply_ready(turn: Turn, attempt: Attempt) -> None:
    if attempt.phase != RUNNING or attempt.is_ready:
        return
    state = turn.state
    state.put_attempt(replace(attempt, is_ready=True))
    turn.record(str(attempt), "ready")


def _apply_not_started(turn: Turn, attempt: Attempt) -> None:
    """The token is void on its node for good: nothing of it ran, or ever will.

    Of one that ran it is an old report sent again, and changes nothing.
    """
    started = attempt.started
    if started is not None and started.facts.pid is not None:
        turn.state.count("contradicting_reports")
    elif attempt.ended is not None:
        release_tree(turn, attempt)
    elif attempt.kill is not None:
        end_attempt(turn, attempt, attempt.kill.cause, evidence="never_started")
    else:
        revoke_unstarted(turn, attempt)


def revoke_unstarted(turn: Turn, attempt: Attempt) -> None:
    """Assigned, and its node says that it never began: another node gets it."""
    is_late = turn.at.log_ms >= fencing.start_due_ms(turn.state, attempt)
    end_attempt(
        turn,
        attempt,
        "revoked",
        evidence="never_started",
        by="system:start_timeout" if is_late else "system:node",
        why="its start was not confirmed within start_timeout"
        if is_late
        else "its node did not start it",
    )


def apply_start_unconfirmed(turn: Turn, entry: StartUnconfirmed) -> Done | Rejected:
    """The node said `not_started` when it was asked after start_timeout."""
    attempt = turn.state.attempt_of_token(entry.token)
    if attempt is None or attempt.placed is None or attempt.placed.node != entry.node:
        return Rejected("not_found", "no such attempt on that node", kind="not_found")
    if attempt.phase != PENDING:
        return Rejected("already_started", f"{attempt} is {attempt.phase}")
    if attempt.kill is not None:
        end_attempt(turn, attempt, attempt.kill.cause, evidence="never_started")
    else:
        revoke_unstarted(turn, attempt)
    return Done()


# ---- finishes ----------------------------------------------------------------------------------


def apply_finish(turn: Turn, attempt: Attempt, finish: FinishFacts) -> None:
    """The end as its node saw it: decides an open attempt, and is evidence for a final one."""
    if attempt.ended is None:
        _end_by_finish(turn, attempt, finish)
        return
    turn.state.count("late_reports")
    if finish.is_tree_gone:
        attempt = release_tree(turn, attempt)
    assert attempt.ended is not None
    if attempt.ended.finish is None and attempt.late is None:
        _note_late_truth(turn, attempt, finish)


def _end_by_finish(turn: Turn, attempt: Attempt, finish: FinishFacts) -> None:
    if finish.evidence == "never_started" and attempt.phase == PENDING:
        _apply_not_started(turn, attempt)
        return
    cause, by, why = _judged(turn, attempt, finish)
    is_disbelieved = cause == "status_lost" and finish.cause != "status_lost"
    evidence = "seen_gone" if is_disbelieved else finish.evidence
    end_attempt(
        turn,
        attempt,
        cause,
        evidence=evidence if evidence in EVIDENCE else "seen_gone",
        by=by,
        why=why,
        finish=finish,
        is_tree_gone=finish.is_tree_gone,
    )


def _judged(turn: Turn, attempt: Attempt, finish: FinishFacts) -> tuple[str, str, str]:
    """(cause, by, why) of a reported end: what cannot be believed is `status_lost`."""
    cause, why = finish.cause, finish.detail
    if cause not in NODE_REPORTED:
        turn.state.count("malformed_reports")
        return "status_lost", "", f"its node reported {cause!r}"
    if cause in ("exit_zero", "accepted_exit") and not _is_proven_success(turn, attempt, finish):
        # Nothing is called Succeeded that was not seen to succeed (promise 4).
        turn.state.count("unproven_successes")
        return "status_lost", "", f"{cause} was reported without proof"
    if cause == "killed":
        # An order ended it that the state does not know: one of a time before a restore. It was
        # not the work that failed.
        if attempt.kill is not None:
            return attempt.kill.cause, attempt.kill.by, attempt.kill.why
        return "fenced", "system:node", why or "ended by an order that is not known here"
    if cause == "node_drain":
        return cause, "system:leave", why or "its node left the cluster"
    if cause in ("fenced", "resource_overuse"):
        return cause, "system:keeper", why or cause
    return cause, "", why


def _is_proven_success(turn: Turn, attempt: Attempt, finish: FinishFacts) -> bool:
    if finish.evidence not in PROVEN:
        return False
    if finish.cause == "exit_zero":
        return finish.exit_code == 0
    meanings = turn.state.task_spec(attempt).exit_codes
    return finish.exit_code is not None and meanings.get(finish.exit_code) == "success"


def _note_late_truth(turn: Turn, attempt: Attempt, finish: FinishFacts) -> None:
    """What an attempt declared lost really came to (specification 4, A8)."""
    state = turn.state
    successor = _adopter(turn, attempt, finish)
    adopted_by = "" if successor is None else str(successor)
    attempt = replace(attempt, late=LateTruth(at=turn.at, finish=finish, adopted_by=adopted_by))
    state.put_attempt(attempt)
    details: dict[str, int | str] = {"cause": finish.cause}
    if finish.exit_code is not None:
        details["exit_code"] = finish.exit_code
    if adopted_by:
        details["adopted_by"] = adopted_by
    turn.record(str(attempt), "late_truth", details=details)
    state.count("late_truths")
    if successor is not None:
        state.count("late_truths_adopted")
        adopt(turn, successor, attempt, finish)


def _adopter(turn: Turn, attempt: Attempt, finish: FinishFacts) -> Attempt | None:
    """The successor that may take the outcome, if there is one."""
    state = turn.state
    ended = attempt.ended
    assert ended is not None
    if state.setting_text("late_truth") != "adopt":
        return None
    if ended.cause not in DECLARED_LOST or ended.evidence != "declared":
        return None
    if finish.was_signalled or finish.cause not in ADOPTABLE or not finish.is_tree_gone:
        return None
    if finish.evidence not in PROVEN:
        return None
    if finish.cause in ("exit_zero", "accepted_exit") and not _is_proven_success(
        turn, attempt, finish
    ):
        return None
    worker = state.workers[attempt.worker]
    if attempt.replaced_by is None or attempt.replaced_by != worker.attempt:
        return None
    successor = state.attempts[(*attempt.worker, worker.attempt)]
    if successor.phase != PENDING or successor.placed is not None or successor.kill is not None:
        return None
    return successor


def adopt(turn: Turn, successor: Attempt, lost: Attempt, finish: FinishFacts) -> None:
    """Pending -> Running -> final at one index: the successor takes the lost one's outcome."""
    start = finish.start
    if start is None and lost.started is not None:
        start = lost.started.facts
    end_attempt(
        turn,
        replace(successor, adopts=str(lost)),
        finish.cause,
        evidence="replayed",
        finish=replace(finish, start=start, evidence="replayed"),
        why=finish.detail,
    )
