"""Whatever agents send, in whatever order: the controller goes on and its state stays sound."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.invariants import check_state
from scheduler.protocol.ids import make_token
from scheduler.protocol.messages import (
    BulkData,
    BulkEnd,
    BulkHello,
    FinishFacts,
    Goodbye,
    Heartbeat,
    Inventory,
    LeaderQuery,
    OrderRefused,
    Progress,
    Report,
    Reports,
    Start,
    StartFacts,
)
from tests.unit.controller.world import INCARNATION, PlayedAgent, World, play

NAMES = ("a1", "a2")
#: Tokens that exist after the first placements, and some that never will.
TOKENS = tuple(make_token(INCARNATION, index, 0) for index in (8, 9, 10, 11, 1 << 40))

tokens = st.sampled_from((*TOKENS, "", "no token"))
starts = st.builds(
    StartFacts,
    started_at_ms=st.integers(0, 10),
    pid=st.none() | st.just(7),
    worker=st.sampled_from(("1/main/0", "2/main/0", "", "9/x/1")),
)
finishes = st.builds(
    FinishFacts,
    cause=st.sampled_from(("exit_zero", "signal", "killed", "launch_error", "status_lost", "?")),
    ended_at_ms=st.integers(-1, 10),
    start=st.none() | starts,
    exit_code=st.none() | st.integers(0, 255),
    evidence=st.sampled_from(("observed", "replayed", "seen_gone", "never_started", "?")),
    is_tree_gone=st.booleans(),
    was_signalled=st.booleans(),
)
reports = st.builds(
    Report,
    kind=st.sampled_from(
        ("started", "finished", "not_started", "progress", "ready", "tree_gone", "?")
    ),
    token=tokens,
    sequence=st.integers(0, 20),
    start=st.none() | starts,
    finish=st.none() | finishes,
    text=st.text(max_size=5),
)
batches = st.lists(reports, max_size=4).map(tuple)
#: None stands for the session's true number.
session_numbers = st.sampled_from((None, 0, 5))
few_tokens = st.lists(tokens, max_size=2).map(tuple)
words = st.text(max_size=3)
progress = st.lists(st.builds(Progress, token=tokens, text=words), max_size=2).map(tuple)
messages = st.one_of(
    st.builds(Reports, reports=batches),
    st.builds(
        Heartbeat,
        sequence=st.integers(0, 5),
        sent_boottime_ms=st.integers(0, 5),
        digest=st.sampled_from(("", "0" * 16)),
        frozen=few_tokens,
        progress=progress,
        acknowledged=st.integers(0, 5),
    ),
    st.builds(Goodbye, mode=st.sampled_from(("restart", "reconnect", "leave", "?"))),
    st.builds(OrderRefused, order_sequence=st.integers(0, 3), token=tokens, code=words),
    st.builds(BulkHello, name=st.sampled_from(NAMES), node_uuid=words, request=words),
    st.builds(BulkData, offset=st.integers(0, 3), data=st.binary(max_size=3)),
    st.builds(BulkEnd, code=words),
    st.builds(LeaderQuery, cluster_id=words, name=st.sampled_from(NAMES)),
)
inventories = st.tuples(st.just("inventory"), session_numbers, batches, st.booleans())
acts = st.one_of(
    st.tuples(st.just("send"), messages),
    inventories,
    st.tuples(st.just("join"), batches),
    st.tuples(st.just("hello"), st.integers(1, 2), st.sampled_from(("u1", "u2"))),
    st.sampled_from((("die",), ("dial",), ("submit",), ("kill",), ("takeover",), ("obey",))),
    st.tuples(st.just("wait"), st.sampled_from((0.01, 0.5, 2.0, 9.0, 60.0))),
    st.tuples(st.just("bytes"), st.binary(max_size=12)),
)
SETTINGS: dict[str, int | str] = {
    "heartbeat_interval": 1_000,
    "heartbeat_timeout": 4_000,
    "transient_timeout": 12_000,
    "rejoin_grace": 5_000,
    "unknown_report_ttl": 6_000,
}


async def act(world: World, agent: PlayedAgent, step: tuple[Any, ...]) -> None:
    match step:
        case ("send", message):
            agent.send(message)
        case ("inventory", number, items, is_last):
            session = agent.session if number is None else number
            agent.send(Inventory(session=session, items=items, is_last=is_last))
        case ("join", items):
            agent.dial()
            agent.send(agent.hello())
            await world.wait(0.01)
            agent.session = max((getattr(one, "session", 0) for one in agent.received), default=0)
            agent.send(Inventory(session=agent.session, items=items))
        case ("hello", start_number, uuid):
            agent.send(agent.hello(start_number=start_number, node_uuid=uuid))
        case ("die",):
            agent.die()
        case ("dial",):
            agent.dial()
        case ("submit",):
            await world.submit(node_limit=1, retries=1)
        case ("kill",):
            if world.service.job(1) is not None and world.phase(1) in ("Pending", "Running"):
                await world.service.kill("1", user="u", why="w", if_version=None)
        case ("takeover",):
            world.log.set_leader("c2")
            world.log.set_leader("c1")
            await world.led()
        case ("obey",):
            for order in agent.all(Start):
                agent.report_started(order)
        case ("wait", seconds):
            await world.wait(seconds)
        case ("bytes", data):
            agent.send_raw(data)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from((0, 1)), acts), max_size=25))
def test_any_agents_leave_the_controller_leading_and_its_state_sound(
    steps: list[tuple[int, tuple[Any, ...]]],
) -> None:
    async def scenario(world: World) -> None:
        agents = [PlayedAgent(world, name) for name in NAMES]
        await agents[0].join()
        await world.submit()
        for number, step in steps:
            await act(world, agents[number], step)
        await world.led()
        await world.wait(1)
        assert check_state(world.machine.state) == []
        newcomer = PlayedAgent(world, "a3")
        await newcomer.join()
        assert await newcomer.beat_for(2)

    play(scenario, settings=SETTINGS)
