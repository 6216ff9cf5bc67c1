"""The two ways to lose a node, takeovers and leases, as a leader lives through them (1.6, 3.5)."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from scheduler.core.commands import Entry, LeaderTookOver, NodeOffline, decode_entry
from scheduler.protocol.messages import (
    HeartbeatAck,
    NotLeader,
    Start,
    Verdicts,
    Welcome,
)
from tests.unit.controller.world import PlayedAgent, World, play

Kind = TypeVar("Kind", bound=Entry)


def entries_of(world: World, kind: type[Kind]) -> list[Kind]:
    entries = [decode_entry(command) for _, _, command in world.log.entries]
    return [entry for entry in entries if isinstance(entry, kind)]


def offline_entries(world: World) -> list[NodeOffline]:
    return entries_of(world, NodeOffline)


def test_a_close_by_a_living_agent_is_final_after_the_settle_time() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, _ = await world.running(agent)
        agent.die()
        await world.wait(0.9)
        assert world.phase(job) == "Running"
        await world.wait(0.2)
        assert world.phase(job) == "Failed"
        attempt = world.attempt(job)
        assert (attempt["cause"], attempt["evidence"]) == ("node_disconnected", "declared")
        assert world.node("a1")["offline_reason"] == "disconnected"

    play(scenario)


def test_a_reset_counts_as_the_peers_close() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, _ = await world.running(agent)
        agent.die(ConnectionResetError())
        await world.until(lambda: world.phase(job) == "Failed", within_s=2)

    play(scenario)


@pytest.mark.parametrize("error", [TimeoutError(), OSError(113, "no route to host")])
def test_a_connection_that_the_network_gave_up_is_silence(error: OSError) -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, _ = await world.running(agent)
        agent.die(error)
        await world.wait(20)
        assert world.phase(job) == "Running"
        await world.until(lambda: world.attempt(job)["unknown"], within_s=12)
        assert world.attempt(job)["unknown"]["cause"] == "heartbeat_lost"

    play(scenario)


def test_an_old_close_after_silence_is_no_death() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, _ = await world.running(agent)
        await world.wait(16)  # more than 1.5 intervals of 10 s
        agent.die()
        await world.wait(5)
        assert world.phase(job) == "Running"
        unknown = await world.until(lambda: world.attempt(job)["unknown"], within_s=15)
        assert unknown["cause"] == "heartbeat_lost"

    play(scenario)


def test_a_new_hello_within_the_settle_time_shows_that_the_agent_lives() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        agent.die()
        await world.wait(0.5)
        agent.dial()
        await agent.join(agent.running_item(order))
        await world.wait(5)
        assert world.phase(job) == "Running"
        assert offline_entries(world) == []

    play(scenario)


def test_silence_is_unknown_and_a_rejoin_claims_it() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        agent.cut()
        unknown = await world.until(lambda: world.attempt(job)["unknown"], within_s=31)
        assert unknown["cause"] == "heartbeat_lost"
        assert world.node("a1")["offline_reason"] == "heartbeat_lost"
        again = PlayedAgent(world)
        verdicts = await again.join(again.running_item(order))
        assert [one.verdict for one in verdicts.verdicts] == ["keep"]
        assert world.attempt(job)["unknown"] is None
        again.report_finished(order)
        await world.until(lambda: world.phase(job) == "Succeeded")

    play(scenario)


def test_what_nobody_claims_is_lost_at_its_deadline() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, _ = await world.running(agent)
        agent.cut()
        await world.until(lambda: world.attempt(job)["unknown"], within_s=31)
        await world.until(lambda: world.phase(job) == "Failed", within_s=60)
        assert world.attempt(job)["cause"] == "node_lost"

    play(scenario, settings={"transient_timeout": 40_000})


def test_an_agent_whose_acknowledgements_get_lost_counts_as_silent() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, _ = await world.running(agent)
        for _ in range(45):
            if not agent.transport.is_closing():
                agent.beat(acknowledged=0)
            await world.wait(1)
        assert world.attempt(job)["unknown"]["cause"] == "heartbeat_lost"
        assert agent.transport.is_closing()

    play(scenario)


def test_a_heard_and_acknowledged_node_stays_online() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        await agent.beat_for(300, interval_s=10)
        assert world.node("a1")["phase"] == "Online"
        assert offline_entries(world) == []

    play(scenario)


@pytest.mark.parametrize(
    ("mode", "reason", "unknown"),
    [
        ("restart", "agent_restarting", "agent_restarting"),
        ("reconnect", "agent_restarting", "agent_restarting"),
    ],
)
def test_an_orderly_goodbye_leaves_the_jobs_unknown(mode: str, reason: str, unknown: str) -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, _ = await world.running(agent)
        agent.goodbye(mode)
        agent.die()
        await world.until(lambda: world.node("a1")["phase"] == "Offline")
        assert world.node("a1")["offline_reason"] == reason
        await world.wait(5)
        assert world.attempt(job)["unknown"]["cause"] == unknown

    play(scenario)


def test_a_leaving_agent_takes_its_reports_along_before_the_node_is_left() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        agent.report_finished(order)
        agent.goodbye("leave")
        await world.until(lambda: world.node("a1")["offline_reason"] == "left")
        assert world.phase(job) == "Succeeded"

    play(scenario)


# ---- leases ------------------------------------------------------------------------------------


def test_a_heartbeat_is_acknowledged_only_after_a_round_begun_after_its_receipt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        rounds: list[asyncio.Event] = []

        async def barrier(*, timeout_s: float | None = None) -> int:
            event = asyncio.Event()
            rounds.append(event)
            await event.wait()
            return world.log.applied_index

        monkeypatch.setattr(world.log, "read_barrier", barrier)
        first = agent.beat()
        await world.until(lambda: rounds)
        second = agent.beat()
        await world.wait(1)
        assert agent.all(HeartbeatAck) == []
        rounds[0].set()
        assert (await agent.next(HeartbeatAck)).sequence == first.sequence
        await world.until(lambda: len(rounds) == 2)
        assert agent.all(HeartbeatAck)[-1].sequence == first.sequence
        rounds[1].set()
        assert (await agent.next(HeartbeatAck)).sequence == second.sequence

    play(scenario)


def test_an_acknowledgement_echoes_what_leases_are_counted_from() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        beat = agent.beat(sent_boottime_ms=123)
        ack = await agent.next(HeartbeatAck)
        assert (ack.sequence, ack.sent_boottime_ms, ack.lease_ms) == (beat.sequence, 123, 300_000)
        assert ack.not_renewed == ()
        assert ack.seen.incarnation == world.machine.incarnation

    play(scenario)


def test_the_offline_entry_carries_the_end_of_the_last_lease_given() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        await world.wait(7)
        agent.beat()
        await agent.next(HeartbeatAck)
        duties = world.leader.duties
        assert duties is not None
        given = duties.lead.log_time.now_ms() + 300_000
        agent.cut()
        await world.until(lambda: offline_entries(world), within_s=40)
        [entry] = offline_entries(world)
        assert entry.lease_until_ms == pytest.approx(given, abs=20)
        assert entry.lease_until_ms < entry.log_time_ms + 300_000

    play(scenario)


def test_nothing_is_acknowledged_while_an_entry_that_may_end_attempts_is_in_flight() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        duties = world.leader.duties
        assert duties is not None
        number = duties.lead.endings.begin(duties.lead.log_time.now_ms())
        agent.beat()
        await world.wait(1)
        assert agent.all(HeartbeatAck) == []
        duties.lead.endings.end(number)
        duties.heartbeats.wake()
        await agent.next(HeartbeatAck, within_s=1)

    play(scenario)


def test_final_attempts_whose_tree_may_live_are_not_renewed() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        agent.die()
        await world.until(lambda: world.phase(job) == "Failed", within_s=3)
        agent.dial()
        verdicts = await agent.join(agent.running_item(order))
        assert [one.verdict for one in verdicts.verdicts] == ["kill"]
        assert verdicts.not_renewed == (order.token,)
        agent.beat()
        assert (await agent.next(HeartbeatAck)).not_renewed == (order.token,)

    play(scenario)


def test_a_node_that_is_being_declared_offline_gets_no_acknowledgement_any_more() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        world.log.hold()
        await world.wait(32)
        duties = world.leader.duties
        assert duties is not None
        contact = duties.lead.contacts.get("a1")
        assert contact is not None
        assert contact.is_ending
        agent.beat()
        await world.wait(0.5)
        assert agent.all(HeartbeatAck) == []
        world.log.release()
        await world.until(lambda: world.node("a1")["phase"] == "Offline")

    play(scenario)


# ---- takeovers ---------------------------------------------------------------------------------


def test_a_takeover_makes_running_work_unknown_until_its_agent_rejoins() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        world.log.set_leader("c2")
        assert (await agent.next(NotLeader)).address == "127.0.0.2:7002"
        assert agent.transport.is_closing()
        world.log.set_leader("c1")
        await world.led()
        assert world.attempt(job)["unknown"]["cause"] == "leader_changed"
        assert world.phase(job) == "Running"
        agent.dial()
        verdicts = await agent.join(agent.running_item(order))
        assert [one.verdict for one in verdicts.verdicts] == ["keep"]
        assert world.attempt(job)["unknown"] is None

    play(scenario)


def test_a_hello_during_the_takeover_is_answered_once_that_is_applied() -> None:
    async def scenario(world: World) -> None:
        world.log.hold()
        world.log.set_leader("c1")
        await world.wait(0.1)
        agent = PlayedAgent(world)
        agent.send(agent.hello())
        await world.wait(1)
        assert agent.received == []
        world.log.release()
        welcome = await agent.next(Welcome)
        takeover = next(entry for entry in entries_of(world, LeaderTookOver))
        assert welcome.term == takeover.term == world.log.leadership.term

    play(scenario, leads=False)


def test_a_takeover_that_fails_sends_the_waiting_agents_on() -> None:
    async def scenario(world: World) -> None:
        world.log.hold()
        world.log.set_leader("c1")
        await world.wait(0.1)
        agent = PlayedAgent(world)
        agent.send(agent.hello())
        world.log.set_leader("c3")
        assert (await agent.next(NotLeader)).leader == "c3"

    play(scenario, leads=False)


def test_nodes_that_never_come_to_a_new_leader_are_silent_after_the_rejoin_grace() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, _ = await world.running(agent)
        since = world.log.set_leader("c2")
        assert since is None
        world.log.set_leader("c1")
        await world.led()
        await world.wait(59)
        assert world.node("a1")["phase"] == "Online"
        before = world.attempt(job)["unknown"]
        await world.until(lambda: world.node("a1")["phase"] == "Offline", within_s=3)
        assert world.attempt(job)["unknown"]["transient_since"] == before["transient_since"]

    play(scenario)


def test_a_suspended_leader_takes_over_again_before_it_concludes_anything() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        job, order = await world.running(agent)
        await agent.beat_for(5)
        world.loop.jump(100)
        await agent.next(NotLeader, within_s=5)
        await world.led()
        assert offline_entries(world) == []
        assert world.attempt(job)["unknown"]["cause"] == "leader_changed"
        agent.dial()
        await agent.join(agent.running_item(order))
        assert world.phase(job) == "Running"
        assert world.metrics.takeovers._value.get() == 2

    play(scenario)


def test_a_leader_that_was_late_blames_no_node_for_it() -> None:
    async def scenario(world: World) -> None:
        await world.joined()
        for _ in range(60):
            world.loop.jump(0.8)
            await world.wait(0.1)
        assert offline_entries(world) == []

    play(scenario)


def test_a_deposed_leader_gives_no_order_and_fails_what_is_in_flight() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined()
        world.log.hold()
        submitting = asyncio.ensure_future(world.submit())
        await world.wait(0.1)
        world.log.set_leader("c2")
        with pytest.raises(Exception, match="leader changed") as raised:
            await submitting
        assert getattr(raised.value, "outcome_unknown", None) is True
        await world.wait(5)
        assert agent.all(Start) == []

    play(scenario)


def test_a_join_in_flight_at_a_leader_change_is_sent_on() -> None:
    async def scenario(world: World) -> None:
        agent = PlayedAgent(world)
        world.log.hold()
        agent.send(agent.hello())
        await world.wait(0.1)
        world.log.set_leader("c3")
        assert (await agent.next(NotLeader)).leader == "c3"
        assert agent.all(Welcome) == []
        assert agent.all(Verdicts) == []

    play(scenario)
