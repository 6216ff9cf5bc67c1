"""A real agent process with its real keeper, against a scripted controller."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from scheduler.protocol.messages import CloseBulk, Goodbye, OpenBulk

from .fakes import DEADLINE_S, Controller, controllers, token, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


class Host:
    """One data directory: starts its agent, reads its status."""

    def __init__(self, directory: Path, leader: Controller) -> None:
        self.directory = directory
        self.config = directory / "agent.toml"
        self.config.write_text(
            'name = "a1"\ndata_dir = "data"\ncluster_id = "c"\nlog_file = "agent.log"\n'
            f'controllers = [{{ name = "c1", address = "{leader.address}" }}]\n'
        )
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "agent", "--config", str(self.config), *arguments)
        process = await asyncio.create_subprocess_exec(*command, cwd=Path(__file__).parents[2])
        self.processes.append(process)
        return process

    def status(self) -> dict[str, Any]:
        try:
            status = json.loads((self.directory / "data" / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        assert isinstance(status, dict)
        return status

    async def leave(self) -> int:
        process = await self.start("--leave")
        async with asyncio.timeout(DEADLINE_S * 2):
            return await process.wait()


def is_alive(pid: int) -> bool:
    """Whether `pid` is a process that has not ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@asynccontextmanager
async def host(directory: Path) -> AsyncIterator[tuple[Host, Controller]]:
    async with controllers(1) as (leader,):
        one = Host(directory, leader)
        try:
            yield one, leader
        finally:
            if "exit_code" not in one.status():
                await one.leave()
            for process in one.processes:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def test_a_job_runs_its_output_is_served_and_leaving_ends_everything(tmp_path: Path) -> None:
    async with host(tmp_path) as (one, leader):
        agent = await one.start()
        await wait_until(lambda: leader.is_joined, "the inventory")
        leader.start(1, "/bin/sh", "-c", "echo out; echo err >&2; exit 3")
        await wait_until(lambda: leader.finish(1), "the finish")
        finish = leader.finish(1)
        assert (finish.cause, finish.exit_code, finish.evidence) == ("exit_nonzero", 3, "observed")
        assert finish.stdout.size_bytes == 4
        leader.send(OpenBulk(request="r", token=token(1), stream="stdout"))
        await wait_until(lambda: "r" in leader.stream_ends, "the end of the stream")
        assert (leader.streams["r"], leader.stream_ends["r"].code) == (b"out\n", "complete")
        leader.start(2, "/bin/sleep", "600")
        await wait_until(lambda: "started" in leader.kinds(2), "the second start")
        keeper = one.status()["keeper_pid"]
        assert await one.leave() == 0
        assert await agent.wait() == 0
        assert leader.finish(2).cause in ("killed", "node_drain")
        assert leader.of(Goodbye) == [Goodbye(mode="leave")]
        await wait_until(lambda: not is_alive(keeper), "the keeper's end")


async def test_an_end_while_the_agent_is_dead_is_reported_by_the_next(tmp_path: Path) -> None:
    async with host(tmp_path) as (one, leader):
        agent = await one.start()
        await wait_until(lambda: leader.is_joined, "the inventory")
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        leader.start(1, "/bin/sh", "-c", f"read line < {gate}; exit 7")
        await wait_until(lambda: "started" in leader.kinds(1), "the start")
        keeper = one.status()["keeper_pid"]
        agent.kill()
        await agent.wait()
        await asyncio.to_thread(gate.write_text, "go\n")
        await one.start()
        await wait_until(lambda: leader.finish(1), "the finish")
        finish = leader.finish(1)
        assert (finish.cause, finish.exit_code) == ("exit_nonzero", 7)
        assert finish.evidence in ("replayed", "observed")
        assert one.status()["keeper_pid"] == keeper
        assert leader.kinds(1).count("started") == 1


async def test_a_killed_keeper_is_replaced_and_the_outcome_is_not_invented(tmp_path: Path) -> None:
    async with host(tmp_path) as (one, leader):
        await one.start()
        await wait_until(lambda: leader.is_joined, "the inventory")
        leader.start(1, "/bin/sleep", "600")
        await wait_until(lambda: "started" in leader.kinds(1), "the start")
        first = one.status()["keeper_pid"]
        os.kill(first, signal.SIGKILL)
        await wait_until(lambda: one.status().get("keeper_pid") not in (None, first), "another")
        pid = next(r.start.pid for r in leader.reports.values() if r.kind == "started")
        assert is_alive(pid)
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: leader.finish(1), "the finish")
        assert leader.finish(1).cause == "status_lost"
        assert leader.finish(1).exit_code is None


async def test_a_followed_stream_ends_with_its_attempt(tmp_path: Path) -> None:
    async with host(tmp_path) as (one, leader):
        await one.start()
        await wait_until(lambda: leader.is_joined, "the inventory")
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        leader.start(1, "/bin/sh", "-c", f"echo one; read line < {gate}; echo $line")
        await wait_until(lambda: "started" in leader.kinds(1), "the start")
        for request in ("follow", "closed"):
            follow = OpenBulk(request=request, token=token(1), stream="stdout", is_following=True)
            leader.send(follow)
            await wait_until(lambda r=request: leader.streams.get(r) == b"one\n", "the first line")
        leader.send(CloseBulk(request="closed"))
        await asyncio.to_thread(gate.write_text, "two\n")
        await wait_until(lambda: "follow" in leader.stream_ends, "the end of the stream")
        assert leader.streams["follow"] == b"one\ntwo\n"
        assert leader.stream_ends["follow"].size_bytes == 8
        assert "closed" not in leader.stream_ends


@pytest.mark.ci
async def test_a_stopped_keeper_is_killed_and_replaced(tmp_path: Path) -> None:
    async with host(tmp_path) as (one, leader):
        await one.start()
        await wait_until(lambda: leader.is_joined, "the inventory")
        first = one.status()["keeper_pid"]
        os.kill(first, signal.SIGSTOP)
        await wait_until(lambda: one.status().get("keeper_pid") not in (None, first), "another")
        assert not is_alive(first)
        leader.start(1, "/bin/true")
        await wait_until(lambda: leader.finish(1), "the finish")


@pytest.mark.ci
async def test_a_thousand_short_jobs_all_end_and_nothing_is_kept(tmp_path: Path) -> None:
    async with host(tmp_path) as (one, leader):
        await one.start()
        await wait_until(lambda: leader.is_joined, "the inventory")
        for number in range(1_000):
            leader.start(number, "/bin/true")
        finished = {"finished"}
        await wait_until(
            lambda: sum(r.kind in finished for r in leader.reports.values()) == 1_000, "all ends"
        )
        causes = {r.finish.cause for r in leader.reports.values() if r.finish is not None}
        assert causes == {"exit_zero"}
