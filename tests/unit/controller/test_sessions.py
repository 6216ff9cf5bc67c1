"""Agents coming in, being refused, and what their connections can do to a controller."""

from __future__ import annotations

import asyncio

import pytest

from scheduler.controller import rejoin, sessions
from scheduler.controller.admission import ADMISSIONS_BURST
from scheduler.protocol.framing import HELLO_BYTES_MAX
from scheduler.protocol.messages import (
    ComeBack,
    Heartbeat,
    Inventory,
    LeaderQuery,
    NotLeader,
    Refused,
    Report,
    Seen,
    Start,
    Verdicts,
    Welcome,
)
from tests.unit.controller.world import PlayedAgent, World, play


def test_a_hello_is_welcomed_and_the_inventory_answered_with_verdicts() -> None:
    async def scenario(world: World) -> None:
        agent = PlayedAgent(world)
        agent.send(agent.hello())
        welcome = await agent.next(Welcome)
        assert welcome.cluster_id == "cluster"
        assert welcome.lease_ms == 300_000
        assert world.node("a1")["phase"] == "Offline"
        agent.send(Inventory(session=welcome.session, items=()))
        verdicts = await agent.next(Verdicts)
        assert (verdicts.is_last, verdicts.verdicts) == (True, ())
        assert verdicts.seen.index >= welcome.session
        assert world.node("a1")["phase"] == "Online"
        assert world.node("a1")["last_heard_s"] is not None

    play(scenario)


def test_a_follower_names_the_leaders_agents_address_and_the_term() -> None:
    async def scenario(world: World) -> None:
        world.log.set_leader("c2")
        agent = PlayedAgent(world)
        agent.send(agent.hello())
        answer = await agent.next(NotLeader)
        assert (answer.leader, answer.address) == ("c2", "127.0.0.2:7002")
        assert answer.term == world.log.leadership.term
        assert agent.transport.is_closing()

    play(scenario, leads=False)


def test_a_leader_query_is_answered_without_a_session() -> None:
    async def scenario(world: World) -> None:
        agent = PlayedAgent(world)
        agent.send(LeaderQuery(cluster_id="cluster", name="a1"))
        answer = await agent.next(NotLeader)
        assert (answer.leader, answer.address) == ("c1", "127.0.0.1:7002")

    play(scenario)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster_id": "another"}, "wrong_cluster"),
        ({"protocol_min": 2, "protocol_max": 3}, "unknown_protocol"),
        ({"name": "../etc"}, "bad_hello"),
        ({"boot_id": ""}, "bad_hello"),
        ({"seen": Seen(incarnation="ffffffff0000")}, "stale_controller"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_with_its_reason(
    changes: dict[str, object], code: str
) -> None:
    async def scenario(world: World) -> None:
        agent = PlayedAgent(world)
        agent.send(agent.hello(**changes))
        assert (await agent.next(Refused)).code == code
        assert agent.transport.is_closing()
        assert world.service.nodes() == []

    play(scenario)


def test_an_agent_that_was_shown_a_newer_term_is_not_taken_in() -> None:
    async def scenario(world: World) -> None:
        agent = PlayedAgent(world)
        seen = Seen(incarnation=world.machine.incarnation, term=99, index=1)
        agent.send(agent.hello(seen=seen))
        await agent.next(NotLeader)
        assert world.service.nodes() == []

    play(scenario)


def test_another_host_under_a_heard_name_is_refused_and_the_first_stays() -> None:
    async def scenario(world: World) -> None:
        first = await world.joined("a1")
        second = PlayedAgent(world, "a1", uuid="other")
        second.send(second.hello())
        assert (await second.next(Refused)).code == "duplicate_agent"
        first.beat()
        await world.until(lambda: first.all(type(first.history[-1])))
        assert not first.transport.is_closing()
        assert world.node("a1")["uid"] == first.uuid

    play(scenario)


def test_a_higher_start_number_supersedes_at_once_and_the_old_close_is_no_death() -> None:
    async def scenario(world: World) -> None:
        old = await world.joined("a1")
        job, order = await world.running(old)
        new = PlayedAgent(world, "a1", start_number=2, nonce="n2")
        await new.join(new.running_item(order))
        assert old.transport.is_closing()
        await world.wait(5)
        assert world.node("a1")["phase"] == "Online"
        assert world.phase(job) == "Running"

    play(scenario)


def test_a_stale_session_can_report_nothing_any_more() -> None:
    async def scenario(world: World) -> None:
        old = await world.joined("a1")
        job, order = await world.running(old)
        new = PlayedAgent(world, "a1", start_number=2, nonce="n2")
        await new.join(new.running_item(order))
        old.link.data_received(b"")
        old.report_finished(order)
        await world.wait(1)
        assert world.phase(job) == "Running"

    play(scenario)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x01\x80",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        (HELLO_BYTES_MAX + 1).to_bytes(4, "big"),
    ],
)
def test_garbage_ends_its_own_connection_only(data: bytes) -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined("a1")
        stranger = PlayedAgent(world, "x")
        stranger.send_raw(data)
        assert stranger.transport.is_closing()
        await world.wait(2)
        assert not agent.transport.is_closing()
        assert world.node("a1")["phase"] == "Online"

    play(scenario)


def test_a_session_that_sends_garbage_is_silent_and_not_dead() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined("a1")
        job, _ = await world.running(agent)
        agent.send_raw(b"\x00\x00\x00\x01\xc1")
        assert agent.transport.is_closing()
        await world.wait(10)
        assert world.phase(job) == "Running"
        assert world.node("a1")["phase"] == "Online"

    play(scenario)


def test_who_says_nothing_is_cut_off() -> None:
    async def scenario(world: World) -> None:
        stranger = PlayedAgent(world, "x")
        await world.until(stranger.transport.is_closing, within_s=11)

    play(scenario)


def test_a_first_message_that_is_no_hello_is_refused() -> None:
    async def scenario(world: World) -> None:
        agent = PlayedAgent(world)
        agent.send(Heartbeat(sequence=1, sent_boottime_ms=1))
        assert (await agent.next(Refused)).code == "bad_hello"

    play(scenario)


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CONNECTIONS_MAX", 3)

    async def scenario(world: World) -> None:
        agents = [PlayedAgent(world, f"a{number}") for number in range(4)]
        assert [one.transport.is_closing() for one in agents] == [False, False, False, True]
        agents[0].die()
        await world.wait(0.1)
        assert not PlayedAgent(world, "a9").transport.is_closing()

    play(scenario)


def test_a_storm_of_two_thousand_agents_is_let_in_at_a_bounded_rate() -> None:
    async def scenario(world: World) -> None:
        joins = []

        async def come(name: str) -> float:
            while True:
                agent = PlayedAgent(world, name)
                agent.send(agent.hello())
                answer = await agent.next(object)
                if isinstance(answer, ComeBack):
                    await asyncio.sleep(answer.after_ms / 1000)
                    continue
                assert isinstance(answer, Welcome)
                agent.send(Inventory(session=answer.session, items=()))
                await agent.next(Verdicts)
                return world.loop.time()

        start = world.loop.time()
        joins = await asyncio.gather(*(come(f"a{number}") for number in range(400)))
        took = sorted(at - start for at in joins)
        assert sum(at < 0.1 for at in took) <= ADMISSIONS_BURST
        assert took[-1] < 3
        assert all(node["phase"] == "Online" for node in world.service.nodes())

    play(scenario)


def test_an_inventory_in_parts_is_judged_as_one() -> None:
    async def scenario(world: World) -> None:
        agent = await world.joined("a1")
        orders = []
        for _ in range(3):
            await world.submit()
            orders.append(await agent.next(Start))
        for order in orders:
            agent.report_started(order)
        await world.wait(1)
        agent.cut()
        again = PlayedAgent(world, "a1")
        again.send(again.hello())
        welcome = await again.next(Welcome)
        parts = [again.running_item(order) for order in orders]
        again.send(Inventory(session=welcome.session, items=(parts[0],), is_last=False))
        again.send(Inventory(session=welcome.session, items=tuple(parts[1:])))
        verdicts = await again.next(Verdicts)
        assert [one.verdict for one in verdicts.verdicts] == ["keep"] * 3

    play(scenario)


def test_an_inventory_beyond_its_bound_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejoin, "INVENTORY_ITEMS_MAX", 2)

    async def scenario(world: World) -> None:
        agent = PlayedAgent(world)
        agent.send(agent.hello())
        welcome = await agent.next(Welcome)
        items = tuple(Report(kind="not_started", token=f"t{number}") for number in range(3))
        agent.send(Inventory(session=welcome.session, items=items))
        assert (await agent.next(Refused)).code == "inventory_too_large"

    play(scenario)


def test_an_inventory_of_another_session_is_refused() -> None:
    async def scenario(world: World) -> None:
        agent = PlayedAgent(world)
        agent.send(agent.hello())
        welcome = await agent.next(Welcome)
        agent.send(Inventory(session=welcome.session + 1, items=()))
        assert (await agent.next(Refused)).code == "bad_order"

    play(scenario)
