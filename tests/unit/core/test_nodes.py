"""Joining, duplicates, cordons, removal, orders and start confirmation."""

from __future__ import annotations

import pytest

from scheduler.core import queries
from scheduler.core.commands import (
    Audit,
    ClusterFounded,
    ConfigChanged,
    LeaderTookOver,
    NodeChanged,
    StartUnconfirmed,
)
from scheduler.core.results import Done, Joined, Rejected
from scheduler.protocol.ids import make_token, next_incarnation
from scheduler.protocol.messages import Report
from tests.unit.core.harness import INCARNATION, Core


def test_a_node_is_used_only_after_its_inventory() -> None:
    core = Core()
    core.submit()
    assert isinstance(core.join(), Joined)
    assert core.place() == {}
    core.inventory()
    assert list(core.place()) == ["1/main/0#1"]


def test_after_a_takeover_only_rejoined_nodes_are_used_and_ordered() -> None:
    core = Core()
    core.node()
    core.submit()
    core.place()
    core.submit()
    core.take_over()
    assert core.orders() == []
    assert core.place() == {}
    assert core.reasons(2) == ["Recovering"]
    core.node(start=2)
    assert core.orders() == [("start", "1/main/0#1")]
    assert list(core.place()) == ["2/main/0#1"]


@pytest.mark.parametrize(
    ("hello", "is_taken"),
    [
        ({"start": 3}, True),
        ({"start": 2, "nonce": "n"}, True),
        ({"start": 2, "nonce": "m"}, False),
        ({"start": 1}, False),
        ({"start": 3, "uuid": "other"}, False),
    ],
)
def test_one_agent_per_name(hello: dict[str, object], is_taken: bool) -> None:
    core = Core()
    core.node(start=2)
    answer = core.join(**hello, is_heard=True)  # type: ignore[arg-type]
    assert isinstance(answer, Joined) == is_taken
    if not is_taken:
        assert answer.code == "duplicate_agent"
        assert isinstance(core.join(**hello, is_heard=False), Joined)  # type: ignore[arg-type]


def test_an_inventory_in_parts_counts_with_its_last() -> None:
    core = Core()
    first, one = core.given_running()
    second, two = core.given_running()
    core.join(start=2)
    core.inventory("a1", core.started(one), is_last=False)
    assert core.attempt(second).phase == "Running"
    core.inventory("a1", core.started(two))
    assert core.attempt(first).phase == core.attempt(second).phase == "Running"
    assert core.node_record().phase == "Online"


def test_a_second_inventory_of_a_session_spares_what_was_just_placed() -> None:
    core = Core()
    old, _ = core.given_running()
    core.pass_ms(60_000)
    new, _ = core.given_running()
    core.inventory("a1")
    assert core.end_of(old)[1] == "status_lost"
    assert core.attempt(new).phase == "Running"


def test_a_cordoned_node_gets_nothing_new_and_says_why() -> None:
    core = Core()
    core.node()
    core.apply(NodeChanged(node="a1", unschedulable=True, why="disk"), actor="user:root")
    job_id = core.submit()
    assert core.place() == {}
    assert core.reasons(job_id) == ["Drained"]
    view = queries.node_view(core.state, "a1")
    assert view is not None
    assert (view["unschedulable"], view["unschedulable_reason"]) == (True, "disk")
    core.node(start=2)
    assert core.node_record().is_unschedulable  # It survives a restart of the agent.
    core.apply(NodeChanged(node="a1", unschedulable=False))
    assert len(core.place()) == 1


def test_a_node_with_work_is_not_removed_without_a_word() -> None:
    core = Core()
    job_id, _ = core.given_running()
    assert core.apply(NodeChanged(node="a1", is_removed=True)).code == "node_online"
    core.offline()
    assert core.apply(NodeChanged(node="a1", is_removed=True)).code == "node_busy"
    core.apply(NodeChanged(node="a1", is_removed=True, is_dead=True), actor="user:root")
    assert core.end_of(job_id) == ("Failed", "node_lost", "operator")
    assert "a1" not in core.state.nodes
    assert core.apply(NodeChanged(node="a1", is_removed=True)).kind == "not_found"


def test_orders_are_level_triggered_and_die_with_the_start() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    token = core.place()[f"{job_id}/main/0#1"]
    assert core.orders() == core.orders() == [("start", f"{job_id}/main/0#1")]
    assert core.orders(sent={("start", token)}) == []
    assert core.applied is not None
    assert core.applied.touched_nodes == ("a1",)
    core.report(core.started(token))
    assert core.orders() == []


def test_an_unconfirmed_start_is_asked_for_and_revoked() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    token = core.place()[f"{job_id}/main/0#1"]
    core.pass_ms(29_999)
    assert core.orders() == [("start", f"{job_id}/main/0#1")]
    core.pass_ms(1)
    assert core.orders() == [("ask", f"{job_id}/main/0#1")]
    assert core.apply(StartUnconfirmed(token=token, node="a2")).kind == "not_found"
    assert core.apply(StartUnconfirmed(token=token, node="a1")) == Done()
    assert core.end_of(job_id) == ("Killed", "revoked", "never_started")
    assert core.attempt_view(job_id)["by"] == "system:start_timeout"
    assert core.apply(StartUnconfirmed(token=token, node="a1")).code == "already_started"


def test_the_start_clock_stands_while_the_node_is_unheard() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    core.place()
    core.pass_ms(20_000)
    core.offline()
    core.pass_ms(60_000)
    core.node(start=2)
    assert core.orders() == [("start", f"{job_id}/main/0#1")]
    core.pass_ms(29_999)
    assert core.orders() == [("start", f"{job_id}/main/0#1")]


def test_a_stale_not_started_of_what_ran_changes_nothing() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.report(Report(kind="not_started", token=token))
    assert core.attempt(job_id).phase == "Running"
    core.offline(reason="disconnected", lease_ms=9_000)
    core.node(start=2, boot="b1")
    assert core.state.counters["contradicting_reports"] == 1


# ---- orphans and restores ------------------------------------------------------------------------


def restored_core() -> tuple[Core, str]:
    """A cluster restored from before a placement: a node runs what the state sees Pending."""
    core = Core()
    core.submit()
    lost = make_token(INCARNATION, 77, 0)
    again = ClusterFounded(cluster_id="c", incarnation=next_incarnation(INCARNATION))
    assert core.apply(again) == Done()
    assert core.state.next_job == 100_002
    return core, lost


def test_a_reported_attempt_of_a_pending_worker_is_materialised() -> None:
    core, token = restored_core()
    answer = core.node("a1", core.started(token, worker="1/main/0"))
    assert [verdict.verdict for verdict in answer.verdicts] == ["materialised"]
    assert core.attempt(1).phase == "Running"
    assert core.attempt_view(1)["uid"] == token
    core.report(core.finished(token))
    assert core.job(1).phase == "Succeeded"


def test_what_belongs_to_nobody_is_an_orphan_and_never_killed() -> None:
    core, token = restored_core()
    stranger = core.started(token, worker="900/main/0")
    answer = core.node("a1", stranger)
    assert [verdict.verdict for verdict in answer.verdicts] == ["orphan"]
    [orphan] = queries.orphans_view(core.state)
    assert (orphan["token"], orphan["worker"]) == (token, "900/main/0")
    core.node("a1", start=2)
    assert queries.orphans_view(core.state) == []


def test_a_second_copy_is_held() -> None:
    core, token = restored_core()
    core.node("a1", core.started(token, worker="1/main/0"))
    other = make_token(INCARNATION, 78, 0)
    answer = core.node("a2", core.started(other, worker="1/main/0"))
    assert [verdict.verdict for verdict in answer.verdicts] == ["hold"]


# ---- settings, founding, takeovers ---------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"no_such": 1},
        {"heartbeat_interval": "10s"},
        {"heartbeat_interval": 0},
        {"heartbeat_interval": -1},
        {"on_disconnect": "maybe"},
        {"late_truth": 3},
        {"rejoin_grace": 5_000, "no_such": 1},
    ],
)
def test_a_bad_setting_changes_nothing(changes: dict[str, int | str]) -> None:
    core = Core()
    before = dict(core.state.settings)
    answer = core.apply(ConfigChanged(changes=changes))
    assert isinstance(answer, Rejected)
    assert answer.kind == "invalid"
    assert core.state.settings == before


def test_a_lowered_ttl_expires_what_is_older() -> None:
    core = Core()
    core.node()
    core.report(core.finished(make_token(INCARNATION, 900, 0)))
    core.pass_ms(5_000)
    core.apply(ConfigChanged(changes={"unknown_report_ttl": 4_000}))
    core.deadlines()
    assert core.state.registry_size == 0


def test_a_cluster_is_founded_once() -> None:
    core = Core()
    for cluster, incarnation in (("c", INCARNATION), ("d", next_incarnation(INCARNATION))):
        answer = core.apply(ClusterFounded(cluster_id=cluster, incarnation=incarnation))
        assert answer.code == "already_founded"
    assert core.state.next_job == 1


def test_a_takeover_of_an_old_term_is_refused() -> None:
    core = Core()
    core.take_over()
    assert core.apply(LeaderTookOver(term=1, leader="c9")).code == "old_term"
    assert core.state.leader == "c2"


def test_an_audit_is_kept_with_the_cluster() -> None:
    core = Core()
    core.apply(Audit(what="refused", details={"address": "x"}), actor="user:bob")
    last = (queries.history_view(core.state, "cluster") or [])[-1]
    assert (last["kind"], last["by"], last["why"]) == ("audit", "user:bob", "refused")


def test_events_of_one_object_are_bounded_and_count_the_gap() -> None:
    core = Core()
    for number in range(230):
        core.apply(Audit(what=str(number)))
    events = queries.history_view(core.state, "cluster") or []
    assert len(events) == 20 + 1 + 180
    gap = events[20]
    # Two more than the audits: the founding and the takeover.
    assert (gap["kind"], gap["details"]) == ("gap", {"dropped": 232 - 200})
    assert events[-1]["why"] == "229"
