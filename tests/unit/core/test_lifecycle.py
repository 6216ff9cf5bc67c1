"""The transition matrix of 1.2, exhaustively, and what is generated from it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from scheduler.core.lifecycle import (
    ALWAYS,
    CAUSES,
    FAILED,
    KILLED,
    NEVER,
    NODE,
    PENDING,
    PHASES,
    RUNNING,
    SUCCEEDED,
    TASK,
    is_allowed,
    render_states,
)
from scheduler.core.records import Stamp
from scheduler.core.transition import end_attempt
from scheduler.core.turn import Turn
from scheduler.protocol.messages import FinishFacts
from tests.unit.core.harness import Core

#: Specification 1.3, by hand.
TABLE = {
    "exit_zero": (SUCCEEDED, NEVER), "accepted_exit": (SUCCEEDED, NEVER),
    "exit_nonzero": (FAILED, TASK), "signal": (FAILED, TASK), "oom": (FAILED, TASK),
    "timeout": (FAILED, TASK), "stalled": (FAILED, TASK), "output_check": (FAILED, TASK),
    "launch_error": (FAILED, TASK), "launch_failed": (FAILED, NODE),
    "status_lost": (FAILED, NODE), "node_disconnected": (FAILED, NODE),
    "node_lost": (FAILED, NODE), "node_rebooted": (FAILED, NODE),
    "lease_expired": (FAILED, NODE), "user_cancel": (KILLED, NEVER),
    "job_stopped": (KILLED, NEVER), "preempted": (KILLED, ALWAYS),
    "resource_overuse": (KILLED, TASK), "node_drain": (KILLED, ALWAYS),
    "dependency_failed": (KILLED, NEVER), "queue_purged": (KILLED, NEVER),
    "gang_restart": (KILLED, ALWAYS), "peer_failed": (KILLED, NEVER),
    "job_completed": (KILLED, NEVER), "pending_timeout": (KILLED, NEVER),
    "revoked": (KILLED, ALWAYS), "fenced": (KILLED, NEVER),
}  # fmt: skip


def expected(phase: str, to: str, cause: str) -> bool:
    if to == RUNNING:
        return phase == PENDING
    if TABLE[cause][0] != to:
        return False
    if phase == PENDING:
        return to == KILLED and cause not in ("resource_overuse", "fenced")
    return phase == RUNNING


def test_the_matrix_is_that_of_the_specification() -> None:
    cases = list(product(PHASES, PHASES[1:], sorted(TABLE)))
    wrong = [case for case in cases if is_allowed(*case) != expected(*case)]
    assert wrong == []


def test_every_cause_has_its_phase_and_its_budget() -> None:
    assert {name: (cause.phase, cause.budget) for name, cause in CAUSES.items()} == TABLE


def test_nothing_goes_back_to_pending() -> None:
    assert not any(is_allowed(phase, PENDING, cause) for phase in PHASES for cause in CAUSES)


@pytest.mark.parametrize("cause", sorted(TABLE))
@pytest.mark.parametrize("is_running", [False, True])
def test_an_end_from_each_live_phase_follows_the_matrix(cause: str, is_running: bool) -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    token = core.place()[f"{job_id}/main/0#1"]
    if is_running:
        core.report(core.started(token))
    turn = Turn(core.state, Stamp(index=99, log_ms=9_000, wall_ms=9_000), "system:test")
    finish = FinishFacts(cause=cause, ended_at_ms=5)
    attempt = end_attempt(
        turn, core.attempt(job_id), cause, evidence="observed", by="system:test", finish=finish
    )
    phase, _ = TABLE[cause]
    assert attempt.phase == phase
    passed_running = attempt.started is not None
    assert passed_running == (is_running or not expected(PENDING, phase, cause))
    if passed_running and not is_running:
        assert attempt.started is not None
        assert attempt.started.facts.pid is None
        assert attempt.started.facts.started_at_ms == finish.ended_at_ms


@pytest.mark.parametrize("cause", sorted(TABLE))
def test_no_cause_ends_a_final_attempt_again(cause: str) -> None:
    core = Core()
    job_id, token = core.given_running()
    core.report(core.finished(token))
    before = core.attempt(job_id)
    turn = Turn(core.state, Stamp(index=99, log_ms=9_000, wall_ms=9_000), "system:test")
    assert end_attempt(turn, before, cause, evidence="observed") == before
    assert core.state.counters["refused_transitions"] == 1


def test_the_states_page_is_generated() -> None:
    page = Path(__file__).parents[3] / "docs" / "states.md"
    assert page.read_text() == render_states(), "run: python -m scheduler.core.lifecycle"
