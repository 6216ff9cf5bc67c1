"""Placing, ordering and expiring, reports and their answers, as one leader does them."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.controller import effect_runner
from scheduler.controller import reports as intake
from scheduler.core.commands import AttemptReports, DeadlinesPassed, Placed, decode_entry
from scheduler.protocol.digest import inventory_digest
from scheduler.protocol.ids import make_token
from scheduler.protocol.messages import (
    AskStatus,
    HeartbeatAck,
    Inventory,
    Kill,
    Progress,
    Report,
    Reports,
    ReportsCommitted,
    Start,
    StartFacts,
    Verdicts,
)
from tests.unit.controller.world import INCARNATION, PlayedAgent, World, play


def entries(world: World, kind: type) -> list[object]:
    decoded = [decode_entry(command) for _, _, command in world.log.entries]
    return [entry for entry in decoded if isinstance(entry, kind)]


def unknown_report(number: int, sequence: int) -> Report:
    token = make_token(INCARNATION, 1 << 40, number)
    return Report(kind="started", token=token, sequence=sequence, start=start_facts())


def start_facts() -> StartFacts:
    return StartFacts(started_at_ms=1, pid=1, boot_id="boot-1")


# ---- orders ------------------------------------------------------------------------------------


def test_a_submit_is_ordered_reported_and_finished_without_any_waiting() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        begin = world.loop.time()
        job = await world.submit()
        order = await agent.next(Start)
        assert order.work.attempt == f"{job}/main/0#1"
        assert (order.session, order.order_sequence) == (agent.session, 1)
        started = agent.report_started(order)
        assert (await agent.next(ReportsCommitted)).sequences == (started.sequence,)
        finished = agent.report_finished(order)
        assert (await agent.next(ReportsCommitted)).sequences == (finished.sequence,)
        assert world.phase(job) == "Succeeded"
        assert world.loop.time() - begin < 0.1  # nothing polls or sleeps on the way

    play(scenario)


def test_an_order_is_sent_once_per_session_however_often_the_node_is_looked_at() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        await world.submit()
        await agent.next(Start)
        for _ in range(5):
            await world.submit(cpu_millis=8000)
            duties = world.leader.duties
            assert duties is not None
            duties.orders.touch("a1")
        await world.wait(5)
        assert len(agent.all(Start)) == 1

    play(scenario)


def test_an_order_that_an_inventory_lacks_is_sent_again_to_the_new_session() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job = await world.submit()
        first = await agent.next(Start)
        agent.cut()
        again = PlayedAgent(world)
        await again.join()
        second = await again.next(Start)
        assert (second.token, second.session) == (first.token, again.session)
        again.report_started(second)
        await world.until(lambda: world.phase(job) == "Running")

    play(scenario)


def test_a_new_leader_orders_what_the_old_one_did_not_send() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        agent.link.is_writable = False  # the order stays behind
        job = await world.submit()
        await world.until(lambda: entries(world, Placed))
        await world.wait(1)
        assert agent.all(Start) == []
        world.log.set_leader("c2")
        world.log.set_leader("c1")
        await world.led()
        agent.dial()
        await agent.join()
        assert (await agent.next(Start)).work.attempt == f"{job}/main/0#1"

    play(scenario)


def test_orders_wait_for_a_slow_reader_and_go_on_when_it_has_read() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        agent.link.pause_writing()
        await world.submit()
        await world.wait(1)
        assert agent.all(Start) == []
        agent.link.resume_writing()
        await agent.next(Start, within_s=1)

    play(scenario)


def test_a_kill_reaches_the_node_and_its_end_is_killed_with_who_and_why() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        answer, _ = await world.service.kill(str(job), user="ben", why="typo", if_version=None)
        assert not answer.is_done
        kill = await agent.next(Kill)
        assert (kill.token, kill.by, kill.why) == (order.token, "user:ben", "typo")
        agent.report_finished(order, cause="killed", exit_code=None, signal="SIGTERM")
        await world.until(lambda: world.phase(job) == "Killed")
        view = world.service.job(job)
        assert view is not None
        assert (view["cause"], view["by"], view["why"]) == ("user_cancel", "user:ben", "typo")

    play(scenario)


def test_an_unconfirmed_start_is_asked_for_and_placed_anew_when_it_never_began() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job = await world.submit()
        order = await agent.next(Start)
        acknowledged = await agent.beat_for(40, interval_s=5)
        assert acknowledged
        ask = await agent.next(AskStatus, within_s=40)
        assert ask.token == order.token
        agent.report("not_started", order.token)
        second = await agent.next(Start)
        assert second.work.attempt == f"{job}/main/0#2"
        assert world.attempt(job, 1)["cause"] == "revoked"

    play(scenario, settings={"start_timeout": 30_000})


def test_work_that_fits_nowhere_waits_without_the_leader_spinning() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined(cpu_millis=1000)
        first, order = await world.running(agent)
        second = await world.submit()
        await agent.beat_for(20, interval_s=5)
        assert len(entries(world, Placed)) == 1
        agent.report_finished(order)
        assert (await agent.next(Start)).work.attempt == f"{second}/main/0#1"
        assert world.phase(first) == "Succeeded"

    play(scenario)


def test_a_retry_is_placed_when_its_backoff_is_over_with_nothing_else_happening() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent, retries=1)
        agent.report_finished(order, exit_code=3)
        await world.until(lambda: len(world.service.attempts(str(job)) or []) == 2)
        begin = world.loop.time()
        second = await agent.next(Start)
        assert second.work.attempt == f"{job}/main/0#2"
        assert 0.5 < world.loop.time() - begin < 2.5

    play(scenario)


def test_a_burst_of_jobs_is_placed_in_few_entries() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined(cpu_millis=700_000)
        for _ in range(300):
            await world.submit()
        await world.until(lambda: len(agent.all(Start)) == 300)
        tokens = [order.token for order in agent.all(Start)]
        assert len(set(tokens)) == 300
        sequences = [order.order_sequence for order in agent.all(Start)]
        assert sequences == sorted(sequences)

    play(scenario)


def test_deadlines_are_proposed_when_they_pass_and_not_before() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, _ = await world.running(agent)
        agent.cut()
        await world.until(lambda: world.attempt(job)["unknown"], within_s=31)
        assert entries(world, DeadlinesPassed) == []
        await world.until(lambda: world.phase(job) == "Failed", within_s=60)
        assert 1 <= len(entries(world, DeadlinesPassed)) <= 3

    play(scenario, settings={"transient_timeout": 40_000})


# ---- reports -----------------------------------------------------------------------------------


def test_reports_of_one_loop_turn_are_one_entry_and_one_answer() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        orders = []
        for _ in range(3):
            await world.submit()
            orders.append(await agent.next(Start))
        for order in orders:
            agent.report_started(order)
        answer = await agent.next(ReportsCommitted)
        assert len(answer.sequences) == 3
        assert len(entries(world, AttemptReports)) == 1

    play(scenario)


def test_the_same_report_again_gets_the_same_answer() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        await agent.next(ReportsCommitted)
        report = agent.report_finished(order)
        await agent.next(ReportsCommitted)
        agent.send(Reports(reports=(report,)))
        assert (await agent.next(ReportsCommitted)).sequences == (report.sequence,)
        assert world.phase(job) == "Succeeded"

    play(scenario)


def test_a_report_in_flight_at_a_leader_change_is_not_answered_and_sent_again() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        await agent.next(ReportsCommitted)
        world.log.hold()
        report = agent.report_finished(order)
        await world.wait(0.1)
        world.log.set_leader("c2")
        world.log.release()
        world.log.set_leader("c1")
        await world.led()
        assert len(agent.all(ReportsCommitted)) == 1
        agent.dial()
        await agent.join(Report(kind="finished", token=order.token, finish=report.finish))
        agent.send(Reports(reports=(report,)))
        assert (await agent.next(ReportsCommitted)).sequences == (report.sequence,)
        assert world.phase(job) == "Succeeded"

    play(scenario)


def test_an_unknown_report_is_committed_and_registered() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        agent.send(Reports(reports=(unknown_report(1, 7),)))
        assert (await agent.next(ReportsCommitted)).sequences == (7,)
        assert world.service.cluster_status()["registry"]["size"] == 1

    play(scenario)


def test_a_flood_of_unknown_reports_is_refused_before_the_log_and_known_ones_pass() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        await agent.next(ReportsCommitted)
        flood = tuple(unknown_report(number, 100 + number) for number in range(30))
        finish = Report(
            kind="finished", token=order.token, sequence=99, finish=agent.finish_facts(order)
        )
        agent.send(Reports(reports=(*flood, finish)))
        await world.until(lambda: world.phase(job) == "Succeeded")
        await world.wait(1)
        answers = agent.all(ReportsCommitted)
        refused = [number for answer in answers for number in answer.refused]
        assert len(refused) == 20
        assert all(answer.retry_after_ms > 0 for answer in answers if answer.refused)
        assert world.service.cluster_status()["registry"]["size"] == 10
        logged = entries(world, AttemptReports)[-1]
        assert isinstance(logged, AttemptReports)
        assert len(logged.reports) == 11

    play(scenario, settings={"unknown_report_max_per_node": 10})


def test_reports_that_pile_up_are_dropped_for_the_outbox_to_send_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "REPORTS_PENDING_MAX", 5)

    async def scenario(world: World) -> None:
        agent = await world.joined()
        world.log.hold()
        for number in range(8):
            agent.send(Reports(reports=(unknown_report(number, number + 1),)))
            await world.wait(0.01)
        world.log.release()
        await world.wait(1)
        committed = [n for answer in agent.all(ReportsCommitted) for n in answer.sequences]
        assert committed == [1, 2, 3, 4, 5]

    play(scenario)


def test_reports_too_large_for_one_entry_are_split() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        long = "x" * 400_000
        reports = tuple(
            Report(
                kind="progress",
                token=make_token(INCARNATION, 1 << 40, n),
                sequence=n + 1,
                text=long,
            )
            for n in range(5)
        )
        agent.send(Reports(reports=reports))
        await world.until(
            lambda: sum(len(one.sequences) for one in agent.all(ReportsCommitted)) == 5
        )
        assert len(entries(world, AttemptReports)) >= 3

    play(scenario)


def test_progress_lines_of_heartbeats_are_shown_and_answered_by_the_acknowledgement_alone() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        await agent.next(ReportsCommitted)
        line = Progress(token=order.token, text="37 100 epoch 37")
        stranger = Progress(token=make_token(INCARNATION, 1 << 40, 1), text="1 2")
        agent.beat(progress=(line, stranger))
        await agent.next(HeartbeatAck)

        def shown() -> object:
            [worker] = world.service.workers(str(job)) or []
            return worker["progress"]

        progress = await world.until(shown)
        assert (progress["done"], progress["total"], progress["text"]) == (37, 100, "epoch 37")
        await world.wait(1)
        assert not agent.received
        assert world.service.cluster_status()["registry"]["size"] == 0

    play(scenario)


# ---- anti-entropy ------------------------------------------------------------------------------


def test_a_digest_that_differs_twice_while_settled_asks_for_the_inventory() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        lost = inventory_digest([])  # the agent's finish report got lost: it has nothing
        sent = {"digest": lost, "report_sequence": 9, "order_sequence": 1}
        agent.beat(**sent)
        assert not (await agent.next(HeartbeatAck)).wants_inventory
        await world.wait(1)
        agent.beat(**sent)
        assert (await agent.next(HeartbeatAck)).wants_inventory
        finish = Report(kind="finished", token=order.token, finish=agent.finish_facts(order))
        agent.send(Inventory(session=agent.session, items=(finish,)))
        verdicts = await agent.next(Verdicts)
        assert [one.verdict for one in verdicts.verdicts] == ["acknowledged"]
        assert world.phase(job) == "Succeeded"
        agent.beat(**sent)
        assert not (await agent.next(HeartbeatAck)).wants_inventory

    play(scenario)


def test_an_equal_digest_or_one_in_motion_asks_for_nothing() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        _, order = await world.running(agent)
        same = inventory_digest([order.token])
        for _ in range(3):
            agent.beat(digest=same, order_sequence=1)
            assert not (await agent.next(HeartbeatAck)).wants_inventory
        for number in range(3):
            agent.beat(digest="0" * 16, order_sequence=1, report_sequence=number)
            assert not (await agent.next(HeartbeatAck)).wants_inventory
        for _ in range(3):
            agent.beat(digest="0" * 16, order_sequence=0)
            assert not (await agent.next(HeartbeatAck)).wants_inventory

    play(scenario)


def test_a_digest_that_stays_different_is_asked_for_less_and_less() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        await world.running(agent)
        asked = []
        for number in range(40):
            agent.beat(digest="0" * 16, order_sequence=1)
            if (await agent.next(HeartbeatAck)).wants_inventory:
                asked.append(number)
        assert asked == [1, 5, 13, 29]

    play(scenario)


# ---- faults of ours ----------------------------------------------------------------------------


def test_a_bug_in_a_duty_ends_the_process_instead_of_the_duty_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.joined()

        def plan(limit: int, *, now_ms: int) -> tuple[()]:
            raise RuntimeError("a bug")

        monkeypatch.setattr(world.machine, "plan", plan)
        await world.submit()
        await world.wait(1)

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug"), flatten_subgroups=True):
        play(scenario)


def test_a_bug_in_a_callback_ends_the_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def orders(*arguments: object, **options: object) -> tuple[()]:
        raise RuntimeError("a bug")

    async def scenario(world: World) -> None:
        await world.joined()
        monkeypatch.setattr(effect_runner, "pending_effects", orders)
        await world.submit()
        await world.wait(1)

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug"), flatten_subgroups=True):
        play(scenario)


def test_an_apply_lag_near_the_registrys_patience_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        status = dataclasses.replace(world.log.status(), apply_lag_ms=7_000.0)
        monkeypatch.setattr(world.log, "status", lambda: status)
        await world.wait(25)

    play(scenario)
    said = [line for line in caplog.messages if "unknown_report_ttl_too_short" in line]
    assert len(said) == 2
