"""Limits by the kernel, where this machine lets us (specification 3.6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.keeper.cgroups import Cgroups
from agent.keeper.main import _group_name
from tests.keeper.harness import KeeperProcess, eventually

pytestmark = pytest.mark.cluster

HOG = "x = bytearray(300_000_000)"


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[KeeperProcess]:
    """A keeper that may use cgroups; leaves none behind. Skips where there are none to use."""
    name = _group_name(tmp_path / "keeper")
    if Cgroups.kind_here(name) != "cgroup1":
        # Version 2 would move this very process; it is tried where the keeper is a service.
        pytest.skip("no writable cgroup of version 1")
    keeper = KeeperProcess(tmp_path)
    yield keeper
    keeper.end()
    for base in Path("/sys/fs/cgroup").glob(f"*/**/{name}"):
        for path in [*base.iterdir(), base]:
            if path.is_dir():
                path.rmdir()


def bases(keeper: KeeperProcess) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"*/**/{_group_name(keeper.keeper_directory)}"))


def test_memory_kill_by_the_kernel_is_oom(limited: KeeperProcess) -> None:
    client = limited.start()
    assert client.attached["limits"] == "cgroup1"
    finish = client.run("job", "python3", "-c", HOG, memory_bytes=60_000_000)
    assert (finish["cause"], finish["signal"]) == ("oom", "SIGKILL")
    assert not finish["was_signalled"]
    assert eventually(lambda: not bases(limited))


def test_kill_from_elsewhere_in_a_group_is_a_signal(limited: KeeperProcess) -> None:
    client = limited.start()
    finish = client.run("job", "sh", "-c", "kill -9 $$", memory_bytes=60_000_000)
    assert finish["cause"] == "signal"


def test_child_killed_for_memory_does_not_spoil_a_success(limited: KeeperProcess) -> None:
    client = limited.start()
    line = f"python3 -c '{HOG}'; exit 0"
    finish = client.run("job", "sh", "-c", line, memory_bytes=60_000_000)
    assert (finish["cause"], finish["exit_code"]) == ("exit_zero", 0)


def test_daemon_without_environment_is_found_by_its_group(limited: KeeperProcess) -> None:
    client = limited.start()
    client.start("other", "sleep", "1000")
    client.event("started", "other")
    note = limited.directory / "pid"
    line = (
        f"env -i setsid sh -c 'echo $$ > {note}.new; mv {note}.new {note}; exec sleep 1000' & "
        f"while [ ! -e {note} ]; do sleep 0.01; done"
    )
    finish = client.run("job", "sh", "-c", line, memory_bytes=60_000_000)
    assert finish["cause"] == "exit_zero"
    assert not Path(f"/proc/{note.read_text().strip()}").exists()
    client.kill("other")
    client.finish("other")


def test_successor_finds_the_group_again(limited: KeeperProcess) -> None:
    client = limited.start()
    client.start("job", "sleep", "1000", memory_bytes=60_000_000)
    client.event("started", "job")
    limited.kill()
    client = limited.start()
    client.kill("job")
    client.finish("job")
    assert eventually(lambda: not bases(limited))
