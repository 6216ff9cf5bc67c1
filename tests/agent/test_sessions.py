"""Sessions over real sockets with a scripted keeper: finding the leader, leaving it, garbage."""

from __future__ import annotations

import json
from pathlib import Path

from agent.core import EXIT_UNCOMMITTED
from agent.places import Places
from scheduler.protocol.messages import Goodbye, Heartbeat, Inventory, LeaderQuery, Reports

from .fakes import (
    config_for,
    controllers,
    fake_keeper,
    running_agent,
    token,
    wait_until,
)


async def test_finds_the_leader_through_a_follower_and_joins(tmp_path: Path) -> None:
    async with fake_keeper(tmp_path), controllers(3) as (leader, first, second):
        async with running_agent(config_for(tmp_path, [first, second])) as agent:
            await wait_until(lambda: leader.of(Heartbeat), "a heartbeat")
            (hello,) = leader.hellos
            assert (hello.name, hello.store_id, hello.boot_id) == ("a1", "s", "b")
            assert hello.start_number == 1
            status = json.loads(Places(tmp_path).status.read_text())
            assert status["leader"] == leader.address
            assert status["session"] == 1
            assert await agent.end(is_leave=True) == 0
            assert leader.of(Goodbye) == [Goodbye(mode="leave")]


async def test_an_order_is_run_reported_and_forgotten(tmp_path: Path) -> None:
    async with fake_keeper(tmp_path) as keeper, controllers(1) as (leader,):
        async with running_agent(config_for(tmp_path, [leader])):
            await wait_until(lambda: leader.is_joined, "the inventory")
            leader.start(1, "true")
            await wait_until(lambda: keeper.did("start"), "the keeper's order")
            start = {"started_at_ms": 1, "pid": 7}
            keeper.tell({"is": "started", "token": token(1), "start": start})
            finish = {"cause": "exit_zero", "ended_at_ms": 2, "start": start, "exit_code": 0}
            keeper.tell({"is": "finished", "token": token(1), "finish": finish})
            await wait_until(lambda: leader.finish(1), "the finish")
            assert leader.kinds(1) == ["started", "finished"]
            await wait_until(
                lambda: any(token(1) in r["tokens"] for r in keeper.did("forget")), "the forget"
            )


async def test_a_burst_of_orders_is_handled_in_batches(tmp_path: Path) -> None:
    async with fake_keeper(tmp_path) as keeper, controllers(1) as (leader,):
        async with running_agent(config_for(tmp_path, [leader])):
            await wait_until(lambda: leader.is_joined, "the inventory")
            for number in range(1_000):
                leader.start(number, "true")
            await wait_until(lambda: len(keeper.did("start")) == 1_000, "all orders at the keeper")
            for number in range(1_000):
                start = {"started_at_ms": 1, "pid": 7}
                keeper.tell({"is": "started", "token": token(number), "start": start})
            await wait_until(lambda: len(leader.reports) == 1_000, "all reports")
            assert len(leader.of(Reports)) < 200


async def test_unreported_ends_go_to_the_next_leader(tmp_path: Path) -> None:
    async with fake_keeper(tmp_path) as keeper, controllers(2) as (leader, other):
        async with running_agent(config_for(tmp_path, [leader, other])):
            await wait_until(lambda: leader.is_joined, "the first join")
            leader.is_silent = True
            start = {"started_at_ms": 1, "pid": 7}
            finish = {"cause": "exit_zero", "ended_at_ms": 2, "start": start, "exit_code": 0}
            keeper.attempts[token(1)] = {"token": token(1), "state": "exited", "finish": finish}
            keeper.tell({"is": "finished", "token": token(1), "finish": finish})
            # The other controller was elected meanwhile: it answers the query with its term.
            other.leader_address, other.term = None, 2
            await wait_until(lambda: other.is_joined, "the move to the new leader")
            assert leader.of(Goodbye) == [Goodbye(mode="reconnect")]
            assert other.of(LeaderQuery)
            await wait_until(lambda: other.finish(1), "the finish at the new leader")


async def test_a_cut_connection_is_dialled_again(tmp_path: Path) -> None:
    async with fake_keeper(tmp_path), controllers(1) as (leader,):
        async with running_agent(config_for(tmp_path, [leader])):
            await wait_until(lambda: leader.is_joined, "the first join")
            leader.cut()
            await wait_until(lambda: len(leader.hellos) == 2, "the second hello")
            await wait_until(lambda: len(leader.of(Inventory)) == 2, "the second inventory")
            assert leader.hellos[0].nonce == leader.hellos[1].nonce


async def test_garbage_from_a_controller_ends_the_session_in_order(tmp_path: Path) -> None:
    async with fake_keeper(tmp_path), controllers(1) as (leader,):
        async with running_agent(config_for(tmp_path, [leader])):
            await wait_until(lambda: leader.is_joined, "the first join")
            assert leader.writer is not None
            leader.writer.write(b"\0\0\0\5hello")
            await wait_until(lambda: len(leader.hellos) == 2, "the second hello")
            assert leader.of(Goodbye) == [Goodbye(mode="reconnect")]


async def test_leaving_without_a_leader_ends_with_its_own_code(tmp_path: Path) -> None:
    async with fake_keeper(tmp_path), controllers(1) as (leader,):
        leader.is_silent = True
        async with running_agent(config_for(tmp_path, [leader], leave_timeout_ms=200)) as agent:
            assert await agent.end(is_leave=True) == EXIT_UNCOMMITTED


async def test_restart_leaves_the_keeper_and_counts_the_start(tmp_path: Path) -> None:
    async with fake_keeper(tmp_path) as keeper, controllers(1) as (leader,):
        async with running_agent(config_for(tmp_path, [leader])) as first:
            await wait_until(lambda: leader.is_joined, "the first join")
            assert await first.end(is_leave=False) == 0
            assert leader.of(Goodbye) == [Goodbye(mode="restart")]
            assert keeper.did("stop") == []
            async with running_agent(config_for(tmp_path, [leader])):
                await wait_until(lambda: len(leader.hellos) == 2, "the second agent")
                one, two = leader.hellos
                assert one.node_uuid == two.node_uuid
                assert (one.start_number, two.start_number) == (1, 2)
                assert one.nonce != two.nonce
