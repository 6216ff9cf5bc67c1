"""Sessions over real sockets with a scripted keeper: finding the leader, leaving it, garbage."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest

from agent.config import TlsFiles
from agent.core import EXIT_UNCOMMITTED
from agent.places import Places
from scheduler.controller import certs
from scheduler.protocol.messages import (
    Goodbye,
    Heartbeat,
    Inventory,
    LeaderQuery,
    OpenBulk,
    Reports,
)

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


async def test_a_hello_without_an_answer_is_taken_to_the_leader_of_a_higher_term(
    tmp_path: Path,
) -> None:
    async with fake_keeper(tmp_path), controllers(2) as (paused, leader):
        paused.is_silent = True
        leader.leader_address, leader.term = None, 2
        async with running_agent(config_for(tmp_path, [paused, leader])):
            await wait_until(lambda: leader.is_joined, "the join at the leader")


async def test_a_bug_ends_the_agent_with_a_goodbye(tmp_path: Path) -> None:
    async with fake_keeper(tmp_path), controllers(1) as (leader,):
        async with running_agent(config_for(tmp_path, [leader])) as agent:
            await wait_until(lambda: leader.is_joined, "the inventory")
            agent.core.attempts.digest = None
            with pytest.raises(ExceptionGroup):
                await agent.task
            await wait_until(lambda: leader.of(Goodbye), "the goodbye")
            assert leader.of(Goodbye) == [Goodbye(mode="restart")]


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


async def test_a_slow_reader_of_a_log_delays_no_heartbeat(tmp_path: Path) -> None:
    content = bytes(range(256)) * 65_536  # 16 MiB: more than sockets hold
    directory = tmp_path / "keeper" / "attempts" / token(1)
    directory.mkdir(parents=True)
    (directory / "stdout").write_bytes(content)
    async with fake_keeper(tmp_path), controllers(1) as (leader,):
        async with running_agent(config_for(tmp_path, [leader])):
            await wait_until(lambda: leader.is_joined, "the inventory")
            leader.reads_streams.clear()
            leader.send(OpenBulk(request="r", token=token(1), stream="stdout"))
            await wait_until(lambda: "r" in leader.streams, "the stream's hello")
            before = len(leader.of(Heartbeat))
            await wait_until(lambda: len(leader.of(Heartbeat)) > before + 3, "more heartbeats")
            assert "r" not in leader.stream_ends
            leader.reads_streams.set()
            await wait_until(lambda: "r" in leader.stream_ends, "the end of the stream")
            assert leader.streams["r"] == content


async def test_a_token_that_leads_elsewhere_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_text("secret")
    async with fake_keeper(tmp_path), controllers(1) as (leader,):
        async with running_agent(config_for(tmp_path, [leader])):
            await wait_until(lambda: leader.is_joined, "the inventory")
            leader.send(OpenBulk(request="r", token="../..", stream="stdout"))
            leader.send(OpenBulk(request="s", token=token(9), stream="stdout"))
            await wait_until(lambda: {"r", "s"} <= leader.stream_ends.keys(), "both ends")
            assert leader.stream_ends["r"].code == "error"
            assert leader.stream_ends["s"].code == "missing"
            assert leader.streams == {"r": b"", "s": b""}


def tls_files(directory: Path, member: str) -> TlsFiles:
    """Certificates as the cluster makes them; `member` is whose the listening side has."""
    ca = certs.make_ca(directory)
    certs.issue(directory, member)
    mine = certs.issue(directory, "agent:a1")
    return TlsFiles(ca=ca.cert, cert=mine.cert, key=mine.key)


def listening_context(directory: Path, member: str) -> ssl.SSLContext:
    stem = member.replace(":", "-")
    return certs.server_context(
        ca=directory / "ca.pem", cert=directory / f"{stem}.pem", key=directory / f"{stem}.key"
    )


async def test_mutual_tls_and_the_name_in_the_certificate(tmp_path: Path) -> None:
    files = tls_files(tmp_path, "controller:c1")
    context = listening_context(tmp_path, "controller:c1")
    data = tmp_path / "data"
    data.mkdir()
    async with fake_keeper(data), controllers(1, tls=context) as (leader,):
        async with running_agent(config_for(data, [leader], tls=files)):
            await wait_until(lambda: leader.of(Heartbeat), "a heartbeat")
            leader.send(OpenBulk(request="r", token=token(9), stream="stdout"))
            await wait_until(lambda: "r" in leader.stream_ends, "the end of the stream")


async def test_another_agent_in_the_controllers_place_is_told_nothing(tmp_path: Path) -> None:
    files = tls_files(tmp_path, "agent:evil")
    context = listening_context(tmp_path, "agent:evil")
    data = tmp_path / "data"
    data.mkdir()
    async with fake_keeper(data), controllers(1, tls=context) as (impostor,):
        async with running_agent(config_for(data, [impostor], tls=files)) as agent:
            await wait_until(lambda: "which is no controller" in agent.log.getvalue(), "a refusal")
            assert impostor.received == []
