"""Finish robustness (specification 4), one situation a test, on the state machine alone."""

from __future__ import annotations

import pytest

from scheduler.core import queries
from scheduler.core.apply import apply
from scheduler.core.commands import decode_entry
from scheduler.core.results import Rejected
from scheduler.core.state import ClusterState
from scheduler.protocol.ids import make_token
from scheduler.protocol.messages import Report
from scheduler.protocol.spec import Retry
from tests.unit.core.harness import INCARNATION, Core

ONCE = Retry(node_limit=0)


def next_token(core: Core, *, entries: int) -> str:
    """The token that a placement `entries` from now will give."""
    return make_token(INCARNATION, len(core.log) + entries, 0)


# ---- A: reports for what is not materialised yet -----------------------------------------------


def test_an_early_finish_is_registered_acknowledged_and_taken_once() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    token = next_token(core, entries=2)
    assert core.report(core.finished(token)) == ["committed"]
    assert queries.registry_view(core.state)["size"] == 1
    assert core.job(job_id).phase == "Pending"
    core.place()
    assert core.end_of(job_id) == ("Succeeded", "exit_zero", "observed")
    assert core.attempt_view(job_id)["pid"] == 7
    assert queries.registry_view(core.state)["size"] == 0
    phases = [
        (e["from"], e["to"]) for e in queries.history_view(core.state, f"{job_id}/main/0#1") or []
    ]
    assert phases == [
        (None, "Pending"),
        (None, None),
        ("Pending", "Running"),
        ("Running", "Succeeded"),
    ]


def test_a_finish_before_its_start_still_starts_first() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    token = next_token(core, entries=3)
    core.report(core.finished(token))
    core.report(core.started(token, pid=9))
    core.place()
    attempt = core.attempt(job_id)
    assert attempt.started is not None
    assert attempt.started.facts.pid == 9
    assert attempt.phase == "Succeeded"


def test_the_registry_survives_a_restart() -> None:
    from scheduler.core.snapshot import restore_state, snapshot_chunks

    core = Core()
    core.node()
    job_id = core.submit()
    core.report(core.finished(next_token(core, entries=2)))
    core.state = restore_state(list(snapshot_chunks(core.state.view())))
    core.place()
    assert core.job(job_id).phase == "Succeeded"


def test_another_nodes_early_report_is_dropped_and_counted() -> None:
    core = Core()
    core.node("a1", cpu=9000)
    core.node("a2", cpu=1000)
    job_id = core.submit()
    token = next_token(core, entries=2)
    core.report(core.finished(token), node="a2")
    core.place()
    placed = core.attempt(job_id).placed
    assert placed is not None
    assert placed.node == "a1"
    assert core.attempt(job_id).phase == "Pending"
    assert core.state.counters["bogus_reports:a2"] == 1


def test_an_expired_finish_becomes_an_incident_and_is_disowned() -> None:
    core = Core()
    core.node()
    token = next_token(core, entries=90)
    core.report(core.finished(token), core.started(token))
    core.pass_ms(59_999)
    core.deadlines()
    assert queries.registry_view(core.state)["size"] == 2
    core.pass_ms(1)
    assert core.state.due.next_ms() == core.now_ms
    core.deadlines()
    assert queries.registry_view(core.state) == {
        "size": 0, "by_node": {}, "expired": 2, "refused": 0,
    }  # fmt: skip
    [incident] = queries.incidents_view(core.state)
    assert (incident["kind"], incident["object"], incident["node"]) == (
        "expired_finish",
        token,
        "a1",
    )
    answer = core.node("a1", core.finished(token), start=2)
    assert [verdict.verdict for verdict in answer.verdicts] == ["disowned"]


def test_the_registry_is_bounded_by_node_and_in_total() -> None:
    core = Core(unknown_report_max_per_node=2, unknown_report_max=3)
    core.node("a1")
    core.node("a2")
    tokens = [make_token(INCARNATION, 900 + i, 0) for i in range(4)]
    reports = [core.finished(token) for token in tokens]
    assert core.report(*reports[:3]) == ["committed", "committed", "registry_full"]
    assert core.report(reports[0]) == ["committed"]  # The same again takes no room.
    assert core.report(*reports[2:], node="a2") == ["committed", "registry_full"]
    assert queries.registry_view(core.state)["by_node"] == {"a1": 2, "a2": 1}


def test_a_report_of_another_nodes_attempt_changes_nothing() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.node("a2")
    assert core.report(core.finished(token), node="a2") == ["wrong_node"]
    assert core.job(job_id).phase == "Running"


def test_a_late_duplicate_changes_nothing_and_is_counted() -> None:
    core = Core()
    job_id, token = core.given_running()
    finish = core.finished(token)
    core.report(finish)
    digest = core.view(job_id)
    assert core.report(finish, core.finished(token, "exit_nonzero")) == ["committed", "committed"]
    assert core.view(job_id) == digest
    assert core.state.counters["late_reports"] == 2


# ---- A8: late truth ----------------------------------------------------------------------------


def test_a_late_success_is_adopted_by_the_unplaced_successor() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.offline(reason="disconnected", lease_ms=300_000)
    assert core.end_of(job_id) == ("Failed", "node_disconnected", "declared")
    core.pass_ms(5_000)
    core.node("a1", core.finished(token), start=2)
    assert core.end_of(job_id, 1) == ("Failed", "node_disconnected", "declared")
    assert core.end_of(job_id, 2) == ("Succeeded", "exit_zero", "replayed")
    assert core.job(job_id).phase == "Succeeded"
    view = core.attempt_view(job_id, 2)
    assert (view["adopts"], view["uid"], view["node"]) == (f"{job_id}/main/0#1", None, "a1")
    assert core.attempt_view(job_id, 1)["late_truth"]["adopted_by"] == f"{job_id}/main/0#2"


def test_a_late_failure_counts_to_the_tasks_retries() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.offline(reason="disconnected", lease_ms=300_000)
    core.node("a1", core.finished(token, "exit_nonzero"), start=2)
    assert core.end_of(job_id, 2) == ("Failed", "exit_nonzero", "replayed")
    assert core.job(job_id).phase == "Failed"


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"late_truth": "record"}, {}),
        ({}, {"was_signalled": True}),
        ({}, {"evidence": "seen_gone", "cause": "status_lost"}),
    ],
)
def test_late_truth_that_may_not_be_adopted_is_only_recorded(
    settings: dict[str, int | str], facts: dict[str, object]
) -> None:
    core = Core(**settings)
    job_id, token = core.given_running()
    core.offline(reason="disconnected", lease_ms=300_000)
    core.node("a1", core.finished(token, **facts), start=2)  # type: ignore[arg-type]
    assert core.attempt(job_id).late is not None
    assert core.attempt(job_id, 2).phase == "Pending"


def test_an_old_start_sent_again_after_the_late_end_fences_nothing() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.offline(reason="disconnected", lease_ms=300_000)
    core.node("a1", core.finished(token, was_signalled=True), start=2)
    core.report(core.started(token))
    core.pass_ms(5_000)
    assert core.reasons(job_id) != ["Fencing"]
    assert list(core.place()) == [f"{job_id}/main/0#2"]


def test_a_placed_successor_adopts_nothing() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.node("a2")
    core.offline(reason="disconnected", lease_ms=10_000)
    core.pass_ms(10_000)
    core.place()
    core.node("a1", core.finished(token), start=2)
    assert core.attempt(job_id).late is not None
    assert core.attempt(job_id, 2).ended is None
    assert core.attempt(job_id, 2).adopts == ""


# ---- B: silence, takeover, deadlines -----------------------------------------------------------


def test_a_silent_node_makes_its_attempts_unknown_and_a_claim_clears_it() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.pass_ms(30_000)
    core.offline(lease_ms=290_000)
    unknown = core.attempt_view(job_id)["unknown"]
    assert unknown == {
        "cause": "heartbeat_lost",
        "transient_since": "2026-01-01T00:00:31.000Z",
        "deadline": "2026-01-01T00:05:31.000Z",
    }
    assert core.view(job_id)["unknown"] == 1
    core.pass_ms(10_000)
    answer = core.node("a1", core.started(token), start=2)
    assert [verdict.verdict for verdict in answer.verdicts] == ["keep"]
    assert core.attempt_view(job_id)["unknown"] is None
    kinds = [e["kind"] for e in queries.history_view(core.state, str(job_id)) or []]
    assert kinds[-2:] == ["unknown", "claimed"]


def test_a_takeover_makes_everything_unknown_without_moving_since() -> None:
    core = Core()
    job_id, _ = core.given_running()
    core.node("a2")
    other, _ = core.given_running()
    core.offline(reason="heartbeat_lost", lease_ms=300_000)
    since = core.attempt_view(job_id)["unknown"]["transient_since"]
    core.pass_ms(20_000)
    core.take_over()
    assert core.attempt_view(job_id)["unknown"]["transient_since"] == since
    unknown = core.attempt_view(other)["unknown"]
    assert unknown["cause"] == "leader_changed"
    core.pass_ms(20_000)
    core.take_over()
    assert core.attempt_view(other)["unknown"]["transient_since"] == unknown["transient_since"]


def test_the_deadline_is_never_before_the_rejoin_window_nor_the_lease() -> None:
    core = Core(transient_timeout=20_000, rejoin_grace=60_000)
    core.pass_ms(60_000)
    job_id, _ = core.given_running()
    core.offline(lease_ms=25_000)
    assert core.state.due.next_ms() == core.now_ms + 25_000
    core.pass_ms(24_000)
    core.take_over()
    assert core.state.due.next_ms() == core.now_ms + 60_000
    core.pass_ms(59_999)
    core.deadlines()
    assert core.attempt(job_id).phase == "Running"
    core.pass_ms(1)
    core.deadlines()
    assert core.end_of(job_id) == ("Failed", "node_lost", "declared")


def test_many_takeovers_still_know_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core()
    job_id, _ = core.given_running()
    core.take_over()
    since = core.attempt_view(job_id)["unknown"]["transient_since"]
    for _ in range(150):
        core.pass_ms(100)
        core.take_over()
    assert len(core.state.takeovers) <= 64
    assert core.attempt_view(job_id)["unknown"]["transient_since"] == since


def test_what_is_dead_reports_its_finish_at_the_rejoin() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.offline(reason="heartbeat_lost")
    finish = core.finished(token, "exit_nonzero", exit_code=42, evidence="replayed")
    answer = core.node("a1", finish, start=2)
    assert [verdict.verdict for verdict in answer.verdicts] == ["acknowledged"]
    assert core.end_of(job_id) == ("Failed", "exit_nonzero", "replayed")
    assert core.view(job_id)["exit_code"] == 42


def test_what_the_node_lost_is_status_lost_and_what_never_began_keeps_its_place() -> None:
    core = Core()
    job_id, _ = core.given_running(retry=ONCE)
    waiting = core.submit()
    core.place()
    core.offline()
    core.node("a1", start=2)
    assert core.end_of(job_id) == ("Failed", "status_lost", "seen_gone")
    assert core.attempt(waiting).phase == "Pending"
    assert core.orders() == [("start", f"{waiting}/main/0#1")]


def test_another_boot_id_is_a_reboot_at_once() -> None:
    core = Core()
    job_id, _ = core.given_running(retry=ONCE)
    core.offline()
    core.node("a1", start=2, boot="b2")
    assert core.end_of(job_id) == ("Failed", "node_rebooted", "proven_dead")
    assert core.state.usage["a1"].cpu_millis == 0


def test_another_host_under_the_name_proves_nothing() -> None:
    core = Core()
    job_id, _ = core.given_running(retry=ONCE)
    core.offline(lease_ms=300_000)
    since = core.attempt_view(job_id)["unknown"]["transient_since"]
    core.pass_ms(1_000)
    core.node("a1", uuid="other", boot="b9")
    assert core.attempt_view(job_id)["unknown"]["transient_since"] == since
    core.pass_ms(299_000)
    core.deadlines()
    assert core.end_of(job_id) == ("Failed", "node_lost", "declared")


def test_a_lost_store_on_a_running_host_proves_nothing() -> None:
    core = Core()
    job_id, _ = core.given_running(retry=ONCE)
    core.offline(lease_ms=300_000)
    core.node("a1", start=2, store="s2")
    assert core.attempt_view(job_id)["unknown"] is not None
    core.node("a1", start=3, store="s2", boot="b2")
    assert core.end_of(job_id) == ("Failed", "node_rebooted", "proven_dead")


def test_an_unconfirmed_attempt_keeps_its_place_until_the_deadline() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    core.place()
    core.offline(lease_ms=300_000)
    core.pass_ms(200_000)
    core.deadlines()
    assert core.attempt(job_id).ended is None
    core.pass_ms(100_000)
    core.deadlines()
    assert core.end_of(job_id) == ("Killed", "revoked", "declared")
    assert core.attempt(job_id, 2).phase == "Pending"


def test_on_disconnect_decides_what_a_closed_connection_means() -> None:
    core = Core()
    gone, _ = core.given_running(retry=ONCE)
    kept, _ = core.given_running(on_disconnect="unknown")
    unconfirmed = core.submit()
    core.place()
    core.offline(reason="disconnected", lease_ms=290_000)
    assert core.end_of(gone) == ("Failed", "node_disconnected", "declared")
    assert core.job(gone).phase == "Failed"
    assert core.end_of(unconfirmed) == ("Killed", "revoked", "declared")
    assert core.attempt_view(kept)["unknown"]["cause"] == "disconnected"


def test_an_orderly_leave_is_a_drain() -> None:
    core = Core()
    job_id, _ = core.given_running()
    core.offline(reason="left", lease_ms=1_000)
    assert core.end_of(job_id) == ("Killed", "node_drain", "declared")
    assert core.attempt(job_id).ended.by == "system:leave"  # type: ignore[union-attr]
    assert core.attempt(job_id, 2).phase == "Pending"


def test_what_a_leaving_node_never_started_runs_elsewhere_at_once() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    core.place()
    core.offline(reason="left", lease_ms=300_000)
    core.node("a2")
    assert core.end_of(job_id) == ("Killed", "node_drain", "never_started")
    assert list(core.place()) == [f"{job_id}/main/0#2"]


def test_a_leaving_node_with_another_ledger_proves_nothing() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    core.place()
    core.node(store="other", start=2)
    core.offline(reason="left", lease_ms=300_000)
    core.node("a2")
    assert core.attempt(job_id).ended is None
    assert core.place() == {}


def test_an_offline_of_an_older_session_changes_nothing() -> None:
    core = Core()
    job_id, token = core.given_running()
    old = core.node_record().session
    core.node("a1", core.started(token), start=2)
    from scheduler.core.commands import NodeOffline

    answer = core.apply(NodeOffline(node="a1", session=old, reason="disconnected"))
    assert isinstance(answer, Rejected)
    assert core.job(job_id).phase == "Running"


def test_a_huge_disconnect_is_decided_at_once_and_written_in_pieces() -> None:
    core = Core()
    core.node(cpu=4_000_000)
    core.submit_many(600, cpu=1, retry=ONCE)
    tokens = core.place() | core.place()
    core.report(*(core.started(token) for token in tokens.values()))
    core.offline(reason="disconnected", lease_ms=1_000)
    assert core.state.jobs_by_phase["Failed"] == 500
    late = sorted(tokens.items(), key=lambda item: int(item[0].split("/")[0]))[-1][1]
    # It rejoins before the rest is written: what the disconnect decided still comes first.
    core.node("a1", core.finished(late), start=2, cpu=4_000_000)
    assert core.end_of(600) == ("Failed", "node_disconnected", "declared")
    assert core.state.jobs_by_phase["Failed"] == 600


def test_old_running_attempts_without_nodes_heal_by_themselves() -> None:
    core = Core()
    job_id, _ = core.given_running(retry=ONCE)
    replay = ClusterState()
    for index, data in enumerate(core.log, start=1):
        apply(replay, decode_entry(data), index)
    core.state = replay
    core.take_over()
    core.pass_ms(core.state.due.next_ms() - core.now_ms)  # type: ignore[operator]
    core.deadlines()
    assert core.end_of(job_id) == ("Failed", "node_lost", "declared")


# ---- fencing -----------------------------------------------------------------------------------


def test_no_successor_before_the_lease_is_over() -> None:
    core = Core()
    job_id, _ = core.given_running()
    core.node("a2")
    core.offline(reason="disconnected", lease_ms=26_000)
    core.pass_ms(25_999)
    assert core.reasons(job_id) == ["Fencing"]
    assert core.place() == {}
    core.pass_ms(1)
    assert list(core.place()) == [f"{job_id}/main/0#2"]
    assert core.state.usage["a1"].cpu_millis == 1000  # Until the tree is proven gone.


def test_a_leaving_node_ends_its_work_and_the_work_runs_again() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.report(core.finished(token, "node_drain", was_signalled=True, detail="down"))
    attempt = core.state.attempts[(job_id, "main", 0, 1)]
    assert attempt.ended is not None
    assert (attempt.ended.cause, attempt.ended.by, attempt.ended.why) == (
        "node_drain",
        "system:leave",
        "down",
    )
    assert list(core.place()) == [f"{job_id}/main/0#2"]


def test_proof_releases_the_fence_at_once() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.node("a2")
    core.offline(reason="disconnected", lease_ms=300_000)
    core.pass_ms(5_000)
    answer = core.node("a1", core.started(token), start=2)
    assert [(v.verdict, v.cause) for v in answer.verdicts] == [("kill", "fenced")]
    assert core.orders() == [("kill", f"{job_id}/main/0#1")]
    assert core.place() == {}
    core.report(core.finished(token, "killed", was_signalled=True))
    assert core.state.usage["a1"].cpu_millis == 0
    assert list(core.place()) == [f"{job_id}/main/0#2"]


@pytest.mark.parametrize("spec", [{"on_lease_end": "run"}, {"retry": Retry(node_limit=0, limit=1)}])
def test_with_run_only_proof_releases_and_so_does_a_word(spec: dict[str, object]) -> None:
    core = Core()
    job_id, _ = core.given_running(**spec, on_disconnect="unknown")
    core.offline(reason="left", lease_ms=1_000)
    core.pass_ms(10_000_000)
    core.node("a2")
    assert core.place() == {}
    assert core.reasons(job_id) == ["Fencing"]
    from scheduler.core.commands import NodeChanged

    core.apply(NodeChanged(node="a1", is_removed=True, is_dead=True), actor="user:root")
    assert list(core.place()) == [f"{job_id}/main/0#2"]


def test_a_start_after_its_end_is_killed_and_fences() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    token = core.place()[f"{job_id}/main/0#1"]
    core.report(Report(kind="not_started", token=token))
    assert core.end_of(job_id) == ("Killed", "revoked", "never_started")
    core.report(core.started(token))
    assert core.orders() == [("kill", f"{job_id}/main/0#1")]
    core.pass_ms(2_000)
    assert core.place() == {}
    core.report(core.finished(token, "killed", was_signalled=True))
    assert list(core.place()) == [f"{job_id}/main/0#2"]


def test_a_lowered_lease_counts_only_after_the_old_one() -> None:
    from scheduler.core.commands import ConfigChanged

    core = Core(transient_timeout=100_000)
    job_id, _ = core.given_running(retry=ONCE)
    core.apply(ConfigChanged(changes={"transient_timeout": 10_000}))
    core.take_over()
    core.pass_ms(99_999)
    core.deadlines()
    assert core.attempt(job_id).phase == "Running"
    core.pass_ms(1)
    core.deadlines()
    assert core.end_of(job_id)[1] == "node_lost"
