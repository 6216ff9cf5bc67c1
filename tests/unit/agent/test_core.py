"""The agent's core: sessions, orders, reports, leases."""

from __future__ import annotations

import pytest

from agent.core import EXIT_DONE
from agent.events import (
    CloseSession,
    Exit,
    KeeperLost,
    LeaderLearned,
    LeaveRequested,
    OutboxWritten,
    QueryLeader,
    ReleaseKeeper,
    RestartRequested,
    SaveSeen,
    SessionClosed,
)
from agent.outbox import Outbox
from scheduler.protocol.digest import inventory_digest
from scheduler.protocol.messages import (
    AskStatus,
    Goodbye,
    Heartbeat,
    HeartbeatAck,
    Inventory,
    NotLeader,
    OrderRefused,
    Report,
    Reports,
    ReportsCommitted,
    Verdict,
    WantInventory,
)

from .bench import FINISH, LEASE_MS, START, Bench, exited, running, seen, token


@pytest.fixture
def bench() -> Bench:
    return Bench()


def reported(bench: Bench) -> list[Report]:
    return [report for message in bench.sent(Reports) for report in message.reports]


# ---- rejoin --------------------------------------------------------------------------------------


def test_welcome_voids_before_it_lists_and_lists_before_it_tells(bench: Bench) -> None:
    bench.attach()
    bench.answer_only("list", attempts=[running(1)])
    bench.welcome()
    assert bench.asked("list") == []
    assert bench.sent(Inventory) == []
    assert bench.answer_only("void", voided=[token(2)])["below_session"] == 1
    assert bench.sent(Inventory) == []
    bench.answer_only("list", attempts=[running(1), exited(3)])
    (inventory,) = bench.sent(Inventory)
    assert [(item.kind, item.token) for item in inventory.items] == [
        ("not_started", token(2)),
        ("started", token(1)),
        ("finished", token(3)),
    ]
    assert inventory.is_last
    assert {item.sequence for item in inventory.items} == {0}


def test_no_report_is_sent_before_the_verdicts_came(bench: Bench) -> None:
    bench.attach()
    bench.answer_only("list", attempts=[exited(1)])
    bench.welcome()
    bench.write()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=[exited(1)])
    assert reported(bench) == []
    bench.verdicts(Verdict(token=token(1), verdict="keep"))
    assert [r.kind for r in reported(bench)] == ["finished"]


def test_an_empty_inventory_is_sent_all_the_same(bench: Bench) -> None:
    bench.attach()
    bench.answer_only("list", attempts=[])
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=[])
    (inventory,) = bench.sent(Inventory)
    assert inventory == Inventory(session=1, items=(), is_last=True)


def test_a_large_inventory_goes_in_parts(bench: Bench) -> None:
    bench.attach()
    items = [running(number) for number in range(1_201)]
    bench.answer_only("list", attempts=items)
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=items)
    parts = bench.sent(Inventory)
    assert [len(part.items) for part in parts] == [500, 500, 201]
    assert [part.is_last for part in parts] == [False, False, True]


def test_acknowledged_verdict_drops_the_report_and_tells_the_keeper(bench: Bench) -> None:
    bench.attach()
    bench.answer_only("list", attempts=[exited(1)])
    bench.write()
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=[exited(1)])
    bench.verdicts(Verdict(token=token(1), verdict="acknowledged"))
    assert reported(bench) == []
    assert bench.answer_only("forget")["tokens"] == [token(1)]
    assert len(bench.core.outbox) == 0
    assert bench.core.attempts == {}


def test_kill_verdict_ends_a_running_tree_softly_and_does_not_renew_it(bench: Bench) -> None:
    bench.attach()
    listed = [running(1), running(2)]
    bench.answer_only("list", attempts=listed)
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=listed)
    bench.verdicts(
        Verdict(
            token=token(1), verdict="kill", cause="user_cancel", reason="cancelled", grace_ms=5
        ),
        Verdict(token=token(2), verdict="keep"),
    )
    (kill,) = bench.asked("kill")
    assert (kill["token"], kill["cause"], kill["grace_ms"]) == (token(1), "user_cancel", 5)
    (lease,) = bench.asked("lease")
    assert lease["leases"] == {token(2): bench.now_ms + LEASE_MS}


@pytest.mark.parametrize(
    ("is_frozen", "cause"), [(True, "user_cancel"), (False, "fenced"), (True, "fenced")]
)
def test_a_frozen_or_superseded_tree_is_fenced(
    bench: Bench, *, is_frozen: bool, cause: str
) -> None:
    bench.attach()
    listed = [running(1, frozen=is_frozen)]
    bench.answer_only("list", attempts=listed)
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=listed)
    bench.verdicts(Verdict(token=token(1), verdict="kill", cause=cause, reason="superseded"))
    (fence,) = bench.asked("fence")
    assert fence["token"] == token(1)
    assert bench.asked("kill") == bench.asked("lease") == []


@pytest.mark.parametrize("verdict", ["keep", "hold", "orphan", "materialised", "registry_full"])
def test_what_may_live_is_renewed_and_not_touched(bench: Bench, verdict: str) -> None:
    bench.attach()
    bench.answer_only("list", attempts=[running(1)])
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=[running(1)])
    bench.asked("settings")
    bench.verdicts(Verdict(token=token(1), verdict=verdict))
    (lease,) = bench.asked("lease")
    assert token(1) in lease["leases"]
    bench.asked("settings")
    bench.sent(Inventory)
    bench.expect_quiet()


def test_disowned_finish_is_dropped(bench: Bench) -> None:
    bench.join(exited(1))
    bench.receive(
        ReportsCommitted(sequences=(), index=12, disowned=(token(1),)),
    )
    assert bench.answer_only("forget")["tokens"] == [token(1)]
    assert len(bench.core.outbox) == 0


def test_new_incarnation_hears_every_retained_finish_again() -> None:
    bench = Bench(known=seen())
    kept = [exited(1, is_forgotten=True), exited(2)]
    bench.attach()
    bench.answer_only("list", attempts=kept)
    higher = "0123abcd0001"
    bench.welcome(incarnation=higher, seen=seen(1, 1, higher))
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=kept)
    (inventory,) = bench.sent(Inventory)
    assert {item.token for item in inventory.items} == {token(1), token(2)}


def test_same_incarnation_hears_of_acknowledged_finishes_no_more() -> None:
    bench = Bench(known=seen())
    kept = [exited(1, is_forgotten=True), exited(2)]
    bench.attach()
    bench.answer_only("list", attempts=kept)
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=kept)
    (inventory,) = bench.sent(Inventory)
    assert [item.token for item in inventory.items] == [token(2)]


def test_a_listing_asked_for_before_the_void_does_not_count(bench: Bench) -> None:
    bench.attach()
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=[running(1)])
    assert bench.sent(Inventory) == []
    bench.answer_only("list", attempts=[running(1)])
    assert len(bench.sent(Inventory)) == 1


def test_a_long_ledger_is_listed_page_by_page(bench: Bench) -> None:
    bench.attach()
    first = bench.answer_only("list", attempts=[running(1)], is_more=True)
    assert (first["after"], first["with_forgotten"]) == ("", False)
    second = bench.answer_only("list", attempts=[running(2)], is_more=False)
    assert second["after"] == token(1)
    assert set(bench.core.attempts) == {token(1), token(2)}


def test_readiness_that_nobody_heard_of_is_reported(bench: Bench) -> None:
    bench.join(running(1, is_ready=True, progress="1 2 half"))
    assert bench.core.outbox.has(token(1), "ready")
    bench.tick(after_ms=10_000)
    (heartbeat,) = bench.sent(Heartbeat)
    assert [p.text for p in heartbeat.progress] == ["1 2 half"]


def test_an_order_under_way_is_never_left_out_of_an_inventory(bench: Bench) -> None:
    bench.join()
    bench.start(1)
    bench.answer_only("start", state="intent")
    bench.receive(WantInventory(session=1))
    intent = {"token": token(1), "state": "intent", "session": 1}
    bench.answer_only("list", attempts=[intent])
    assert bench.sent(Inventory) == []
    bench.hear("started", 1, start=START)
    bench.tick(after_ms=1_000)
    bench.answer_only("list", attempts=[running(1)])
    (inventory,) = bench.sent(Inventory)
    assert [item.kind for item in inventory.items] == ["started"]


def test_a_listed_record_that_cannot_be_read_counts_as_alive(bench: Bench) -> None:
    bench.attach()
    bad = {"token": token(1), "state": "exited", "finish": {"cause": 7}}
    bench.answer_only("list", attempts=[bad])
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=[bad])
    (inventory,) = bench.sent(Inventory)
    assert [(item.kind, item.token) for item in inventory.items] == [("started", token(1))]


# ---- orders --------------------------------------------------------------------------------------


def test_an_order_runs_and_is_reported_only_once_durable(bench: Bench) -> None:
    bench.join()
    bench.start(1)
    request = bench.answer_only("start", state="intent")
    assert request["lease_until_boottime_ms"] == bench.now_ms + LEASE_MS
    assert request["work"]["argv"] == ("true",)
    bench.hear("started", 1, start=START)
    assert reported(bench) == []
    bench.write()
    (started,) = reported(bench)
    assert (started.kind, started.sequence, started.start.pid) == ("started", 1, 7)
    bench.hear("finished", 1, finish=FINISH)
    bench.write()
    (finished,) = reported(bench)
    bench.commit(started, finished)
    assert bench.answer_only("forget")["tokens"] == [token(1)]
    assert bench.core.attempts == {}
    bench.expect_quiet()


def test_an_order_of_an_older_session_is_refused(bench: Bench) -> None:
    bench.join()
    bench.start(1, session=0)
    (refused,) = bench.sent(OrderRefused)
    assert refused == OrderRefused(order_sequence=1, token=token(1), code="old_session")
    assert bench.asked("start") == []


@pytest.mark.parametrize("stale", [seen(9, 3), seen(99, 2), seen(99, 9, "0123abc00000")])
def test_an_order_of_a_controller_that_knows_less_is_refused(stale: object) -> None:
    bench = Bench(known=seen(10, 3))
    bench.join()
    bench.kill(1, seen=stale)
    bench.start(2, seen=stale)
    assert [r.code for r in bench.sent(OrderRefused)] == ["stale_controller"] * 2
    assert bench.asked("kill") == bench.asked("start") == []


def test_a_leader_may_send_its_orders_with_an_older_index_of_its_own(bench: Bench) -> None:
    bench.join()
    bench.start(1, seen=seen(50))
    bench.start(2, seen=seen(40))
    assert [r["token"] for r in bench.asked("start")] == [token(1), token(2)]
    assert bench.sent(OrderRefused) == []


def test_a_higher_incarnation_is_obeyed_though_its_index_is_lower() -> None:
    bench = Bench(known=seen(1_000, 9))
    higher = "0123abcd0001"
    bench.attach()
    bench.answer_only("list", attempts=[running(1)])
    bench.welcome(incarnation=higher, seen=seen(5, 1, higher), term=1)
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=[running(1)])
    bench.verdicts(Verdict(token=token(1), verdict="kill", cause="x"), seen=seen(5, 1, higher))
    assert len(bench.asked("kill")) == 1


def test_nothing_of_a_stale_controller_is_acted_on() -> None:
    bench = Bench(known=seen(1_000, 9))
    bench.attach()
    bench.answer_only("list", attempts=[running(1), exited(2)])
    bench.write()
    bench.welcome(term=9, index=999)
    bench.verdicts(
        Verdict(token=token(1), verdict="kill"), Verdict(token=token(2), verdict="acknowledged")
    )
    bench.receive(ReportsCommitted(sequences=(1,), index=1))
    bench.expect_quiet()
    assert len(bench.core.outbox) == 1
    bench.tick(after_ms=31_000)
    assert bench.sent(Goodbye) == [Goodbye(mode="reconnect")]


def test_seen_is_remembered(bench: Bench) -> None:
    bench.join()
    bench.start(1, seen=seen(77))
    assert SaveSeen(seen(77)) in bench.actions


@pytest.mark.parametrize("code", ["no_lease", "voided", "disk_low"])
def test_a_start_that_the_keeper_cannot_make_is_voided_then_reported(
    bench: Bench, code: str
) -> None:
    bench.join()
    bench.start(1)
    bench.answer_only("start", ok=False, code=code)
    bench.write()
    assert reported(bench) == []
    bench.answer_only("status", state="unknown")
    bench.write()
    assert [(r.kind, r.token) for r in reported(bench)] == [("not_started", token(1))]
    assert bench.core.attempts == {}


def test_a_bad_order_ends_as_launch_error(bench: Bench) -> None:
    bench.join()
    bench.start(1)
    bench.answer_only("start", ok=False, code="bad_order", message="no such signal")
    bench.write()
    (refused,) = bench.sent(OrderRefused)
    assert refused.code == "bad_order"
    (report,) = reported(bench)
    assert report.finish is not None
    assert (report.finish.cause, report.finish.evidence) == ("launch_error", "never_started")
    assert report.finish.start.worker == "1/main/0"


def test_a_repeated_order_is_answered_with_its_report_again(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    (started,) = reported(bench)
    bench.commit(started)
    bench.start(1)
    assert bench.asked("start") == []
    bench.write()
    assert [(r.kind, r.sequence) for r in reported(bench)] == [("started", 2)]


def test_a_token_that_is_none_is_refused(bench: Bench) -> None:
    bench.join()
    bench.orders += 1
    bench.receive(AskStatus(order_sequence=1, session=1, seen=seen(), token="../../etc/passwd"))
    (refused,) = bench.sent(OrderRefused)
    assert refused.code == "bad_order"
    assert bench.asked("status") == []


def test_ask_status_of_an_unknown_order_voids_it(bench: Bench) -> None:
    bench.join()
    bench.receive(AskStatus(order_sequence=1, session=1, seen=seen(), token=token(4)))
    bench.answer_only("status", state="unknown")
    bench.write()
    assert [(r.kind, r.token) for r in reported(bench)] == [("not_started", token(4))]


def test_ask_status_of_a_running_attempt_reports_its_start(bench: Bench) -> None:
    bench.join()
    bench.receive(AskStatus(order_sequence=1, session=1, seen=seen(), token=token(4)))
    bench.answer_only("status", state="running", start=START)
    bench.write()
    assert [r.kind for r in reported(bench)] == ["started"]


def test_a_kill_that_arrives_before_its_order_voids_it(bench: Bench) -> None:
    bench.join()
    bench.kill(1)
    bench.answer_only("kill", state="unknown")
    bench.answer_only("status", state="unknown")
    bench.write()
    assert [r.kind for r in reported(bench)] == ["not_started"]


def test_a_kill_of_what_has_exited_reports_the_exit_again(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    bench.hear("finished", 1, finish=FINISH)
    bench.write()
    bench.commit(*reported(bench)[:1])
    bench.kill(1)
    assert bench.asked("kill") == []


def test_heartbeats_say_which_orders_are_handled(bench: Bench) -> None:
    bench.join()
    bench.start(1)
    bench.start(2)
    first, second = bench.asked("start")
    bench.answer(second, state="intent")
    bench.tick(after_ms=10_000)
    (heartbeat,) = bench.sent(Heartbeat)
    assert heartbeat.order_sequence == 0
    bench.answer(first, state="intent")
    bench.tick(after_ms=10_000)
    (heartbeat,) = bench.sent(Heartbeat)
    assert heartbeat.order_sequence == 2
    assert heartbeat.digest == inventory_digest([token(1), token(2)])


# ---- reports -------------------------------------------------------------------------------------


def test_a_finish_with_a_living_tree_is_forgotten_only_after_the_tree(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    bench.hear("finished", 1, finish={**FINISH, "is_tree_gone": False})
    bench.write()
    bench.commit(*reported(bench))
    assert bench.asked("forget") == []
    bench.hear("tree_gone", 1)
    bench.write()
    bench.commit(*reported(bench))
    assert bench.answer_only("forget")["tokens"] == [token(1)]


def test_last_progress_goes_out_before_the_finish(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    reported(bench)
    bench.hear("progress", 1, text="1 2 half")
    bench.hear("progress", 1, text="2 2 done")
    bench.hear("finished", 1, finish=FINISH)
    bench.write()
    assert [(r.kind, r.text) for r in reported(bench)] == [
        ("progress", "2 2 done"),
        ("finished", ""),
    ]


def test_progress_rides_on_heartbeats_once(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    bench.hear("progress", 1, text="1 2 half")
    bench.tick(after_ms=10_000)
    bench.tick(after_ms=10_000)
    first, second = bench.sent(Heartbeat)
    assert [(p.token, p.text) for p in first.progress] == [(token(1), "1 2 half")]
    assert second.progress == ()


def test_a_burst_of_orders_costs_one_write_and_few_messages(bench: Bench) -> None:
    bench.join()
    for number in range(1_000):
        bench.start(number)
    for request in bench.asked("start"):
        bench.answer(request, state="intent")
    for number in range(1_000):
        bench.hear("started", number, start=START)
    writes = bench.core.outbox.take_writes()
    assert writes is not None
    assert len(writes.puts) == 1_000
    assert bench.core.outbox.take_writes() is None
    bench.handle(OutboxWritten(writes.last_sequence))
    assert [len(message.reports) for message in bench.sent(Reports)] == [500, 500]


def test_refused_reports_wait_as_long_as_told(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    (started,) = reported(bench)
    bench.receive(
        ReportsCommitted(sequences=(), index=1, refused=(started.sequence,), retry_after_ms=60_000)
    )
    bench.core.session.heartbeat_timeout_ms = 1 << 40
    bench.tick(after_ms=59_999)
    assert reported(bench) == []
    bench.tick(after_ms=1)
    assert [r.kind for r in reported(bench)] == ["started"]


def test_a_new_session_sends_everything_uncommitted_again(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    assert len(reported(bench)) == 1
    bench.handle(SessionClosed("reset"))
    bench.welcome()
    bench.answer_only("void", voided=[])
    bench.answer_only("list", attempts=[running(1)])
    bench.verdicts(Verdict(token=token(1), verdict="keep"))
    assert [r.kind for r in reported(bench)] == ["started"]


def test_a_finish_missed_while_the_agent_was_away_is_made_again_from_the_list() -> None:
    bench = Bench()
    bench.attach()
    bench.answer_only("list", attempts=[exited(1)])
    assert bench.core.outbox.has(token(1), "finished")
    bench.answer({"do": "list"}, attempts=[exited(1)])
    assert len(bench.core.outbox) == 1


def test_a_finish_that_already_waits_in_the_outbox_is_not_made_twice() -> None:
    waiting = Report(kind="finished", token=token(1), sequence=5)
    bench = Bench(outbox=Outbox.restore([waiting], last_sequence=5))
    bench.attach()
    bench.answer_only("list", attempts=[exited(1)])
    assert len(bench.core.outbox) == 1


# ---- keeper lost ---------------------------------------------------------------------------------


def test_a_new_keeper_is_told_again_what_the_lost_one_did_not_answer(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    bench.start(2)
    bench.kill(1)
    bench.handle(KeeperLost("killed"))
    bench.start(3)
    bench.actions.clear()
    bench.attach()
    bench.answer_only("list", attempts=[running(1)])
    assert [r["token"] for r in bench.asked("start")] == [token(2), token(3)]
    assert [r["token"] for r in bench.asked("kill")] == [token(1)]
    (lease,) = bench.asked("lease")
    assert lease["leases"][token(1)] == bench.now_ms + LEASE_MS


def test_an_end_that_the_new_keeper_found_is_reported(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    bench.handle(KeeperLost("killed"))
    bench.attach()
    lost = {**FINISH, "cause": "status_lost", "exit_code": None, "evidence": "seen_gone"}
    bench.actions.clear()
    bench.answer({"do": "list"}, attempts=[exited(1, finish=lost)])
    bench.write()
    (report,) = [r for r in reported(bench) if r.kind == "finished"]
    assert report.finish.cause == "status_lost"


def test_a_forget_that_a_lost_keeper_may_have_missed_is_said_again(bench: Bench) -> None:
    bench.join()
    bench.run(1)
    bench.hear("finished", 1, finish=FINISH)
    bench.write()
    bench.commit(*reported(bench))
    assert len(bench.asked("forget")) == 1
    bench.handle(KeeperLost("killed"))
    bench.attach()
    bench.answer_only("list", attempts=[exited(1)])
    assert bench.answer_only("forget")["tokens"] == [token(1)]
    assert bench.core.attempts == {}
    assert len(bench.core.outbox) == 0


def test_another_store_ends_the_session(bench: Bench) -> None:
    bench.join(running(1))
    bench.handle(KeeperLost("killed"))
    bench.attach(store_id="other")
    assert bench.sent(Goodbye) == [Goodbye(mode="reconnect")]
    assert any(isinstance(action, CloseSession) for action in bench.actions)
    assert bench.core.session is None


# ---- heartbeats, leases, silence -----------------------------------------------------------------


def test_an_acknowledgement_renews_from_the_sending(bench: Bench) -> None:
    bench.join(running(1), running(2))
    bench.tick(after_ms=10_000)
    (heartbeat,) = bench.sent(Heartbeat)
    bench.now_ms += 700
    bench.receive(
        HeartbeatAck(
            sequence=heartbeat.sequence,
            sent_boottime_ms=heartbeat.sent_boottime_ms,
            seen=seen(),
            lease_ms=LEASE_MS,
            not_renewed=(token(2),),
        )
    )
    (lease,) = bench.asked("lease")
    assert lease["leases"] == {token(1): heartbeat.sent_boottime_ms + LEASE_MS}


def test_an_acknowledgement_from_the_future_grants_no_more_than_now(bench: Bench) -> None:
    bench.join(running(1))
    bench.tick(after_ms=10_000)
    (heartbeat,) = bench.sent(Heartbeat)
    bench.receive(
        HeartbeatAck(
            sequence=heartbeat.sequence,
            sent_boottime_ms=bench.now_ms + 10_000_000,
            seen=seen(),
            lease_ms=LEASE_MS,
        )
    )
    (lease,) = bench.asked("lease")
    assert lease["leases"] == {token(1): bench.now_ms + LEASE_MS}


def test_a_lower_lease_tells_the_keeper_its_new_margin(bench: Bench) -> None:
    bench.join(running(1))
    bench.tick(after_ms=10_000)
    (heartbeat,) = bench.sent(Heartbeat)
    bench.receive(
        HeartbeatAck(
            sequence=heartbeat.sequence, sent_boottime_ms=bench.now_ms, seen=seen(), lease_ms=5_000
        )
    )
    (settings,) = bench.asked("settings")
    assert settings["lease_margin_ms"] == 1_000


def test_a_silent_leader_is_asked_about_then_left(bench: Bench) -> None:
    bench.join()
    bench.tick(after_ms=10_000)
    assert len(bench.sent(Heartbeat)) == 1
    bench.tick(after_ms=2_000)
    assert QueryLeader() not in bench.actions
    bench.tick(after_ms=1)
    bench.tick(after_ms=1)
    assert bench.actions.count(QueryLeader()) == 1
    bench.handle(LeaderLearned(term=3, address="10.0.0.2:1"))
    assert bench.sent(Goodbye) == []
    bench.handle(LeaderLearned(term=4, address="10.0.0.2:1"))
    assert bench.sent(Goodbye) == [Goodbye(mode="reconnect")]
    (close,) = [action for action in bench.actions if isinstance(action, CloseSession)]
    assert close.address == "10.0.0.2:1"


def test_a_deposed_leader_is_left_for_the_one_it_names(bench: Bench) -> None:
    bench.join()
    bench.receive(NotLeader(leader="c2", address="10.0.0.2:1", term=4))
    assert CloseSession("the leader was deposed", "10.0.0.2:1") in bench.actions
    assert bench.sent(Goodbye) == []
    assert bench.core.session is None


def test_unacknowledged_for_the_timeout_dials_again_whoever_leads(bench: Bench) -> None:
    bench.join()
    bench.tick(after_ms=30_000)
    assert bench.core.session is not None
    bench.tick(after_ms=1)
    assert bench.sent(Goodbye) == [Goodbye(mode="reconnect")]
    assert bench.core.session is None


def test_frozen_attempts_are_in_the_heartbeat(bench: Bench) -> None:
    bench.join(running(1), running(2))
    bench.hear("frozen", 2)
    bench.tick(after_ms=10_000)
    bench.hear("thawed", 2)
    bench.tick(after_ms=10_000)
    assert [h.frozen for h in bench.sent(Heartbeat)] == [(token(2),), ()]


def test_a_lost_report_is_healed_on_request_without_a_reconnect(bench: Bench) -> None:
    bench.join(running(1))
    bench.tick(after_ms=10_000)
    (heartbeat,) = bench.sent(Heartbeat)
    bench.receive(
        HeartbeatAck(
            sequence=heartbeat.sequence,
            sent_boottime_ms=heartbeat.sent_boottime_ms,
            seen=seen(),
            lease_ms=LEASE_MS,
            wants_inventory=True,
        )
    )
    assert bench.asked("void") == []
    bench.answer_only("list", attempts=[running(1)])
    assert len(bench.sent(Inventory)) == 1
    bench.verdicts()
    assert bench.core.session.is_joined


# ---- leaving -------------------------------------------------------------------------------------


def test_leave_ends_the_jobs_reports_their_ends_then_says_goodbye(bench: Bench) -> None:
    bench.join(running(1))
    bench.handle(LeaveRequested("host stops"))
    (stop,) = bench.asked("stop")
    assert stop["end_jobs"]
    bench.start(2)
    (refused,) = bench.sent(OrderRefused)
    assert refused.code == "leaving"
    bench.answer(stop, finishes={token(1): {**FINISH, "cause": "killed"}})
    assert ReleaseKeeper() in bench.actions
    bench.handle(KeeperLost("left"))
    bench.write()
    assert bench.sent(Goodbye) == []
    bench.commit(*reported(bench))
    assert bench.sent(Goodbye) == [Goodbye(mode="leave")]
    assert Exit(EXIT_DONE, "left") in bench.actions


def test_what_comes_while_jobs_end_is_given_back_before_they_have_ended(bench: Bench) -> None:
    bench.join(running(1))
    bench.handle(LeaveRequested("host stops"))
    bench.start(2)
    bench.answer_only("status", state="unknown")
    bench.write()
    assert ("not_started", token(2)) in {
        (report.kind, report.token) for batch in bench.sent(Reports) for report in batch.reports
    }
    assert bench.asked("start") == []


def test_leave_survives_the_loss_of_the_session(bench: Bench) -> None:
    bench.join(running(1))
    bench.handle(LeaveRequested("host stops"))
    bench.answer_only("stop", finishes={token(1): {**FINISH, "cause": "killed"}})
    bench.handle(KeeperLost("left"))
    bench.write()
    bench.handle(SessionClosed("reset"))
    bench.actions.clear()
    bench.welcome()
    (inventory,) = bench.sent(Inventory)
    assert [item.kind for item in inventory.items] == ["finished"]
    bench.verdicts(Verdict(token=token(1), verdict="acknowledged"))
    assert bench.sent(Goodbye) == [Goodbye(mode="leave")]


def test_leave_with_nothing_to_tell_does_not_wait_long_for_a_leader(bench: Bench) -> None:
    bench.attach()
    bench.answer_only("list", attempts=[])
    bench.handle(LeaveRequested("host stops"))
    bench.answer_only("stop", finishes={})
    bench.tick(after_ms=5_000)
    assert not any(isinstance(action, Exit) for action in bench.actions)
    bench.tick(after_ms=1)
    assert any(isinstance(action, Exit) and action.code == EXIT_DONE for action in bench.actions)


def test_leave_waits_as_long_as_an_end_is_not_committed(bench: Bench) -> None:
    bench.attach()
    bench.answer_only("list", attempts=[exited(1)])
    bench.handle(LeaveRequested("host stops"))
    bench.answer_only("stop", finishes={})
    bench.tick(after_ms=60_000)
    assert not any(isinstance(action, Exit) for action in bench.actions)


def test_a_keeper_that_dies_while_stopping_is_stopped_again(bench: Bench) -> None:
    bench.join(running(1))
    bench.handle(LeaveRequested("host stops"))
    assert len(bench.asked("stop")) == 1
    bench.handle(KeeperLost("killed"))
    bench.attach()
    bench.answer({"do": "list"}, attempts=[running(1)])
    assert len(bench.asked("stop")) == 1


def test_restart_says_goodbye_and_leaves_the_keeper_alone(bench: Bench) -> None:
    bench.join(running(1))
    bench.handle(RestartRequested())
    assert bench.sent(Goodbye) == [Goodbye(mode="restart")]
    assert Exit(EXIT_DONE, "restart") in bench.actions
    assert bench.asked("stop") == []
