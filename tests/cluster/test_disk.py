"""Controllers on small file systems that fill up: everybody's, then a follower's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler.client import Client, ClientError, Context
from tests.cluster.harness import LocalCluster, wait_until

#: Room for both parts of the test, before it is filled up.
DISK_BYTES = 64 * 1024 * 1024
SEGMENT = "4MiB"
#: Jobs of one submit, and bytes of each: ever smaller ones use up what is left.
SIZES = ((10, 100_000), (1, 100_000), (1, 10_000), (1, 1))
SUBMITS_MAX = 60
#: Megabytes that a follower with a full disk has no room for.
FOLLOWER_SUBMITS = 14


@contextmanager
def small_disks(directories: list[Path]) -> Iterator[None]:
    """Put each directory, with what is in it, on a file system of its own."""
    mounted: list[Path] = []
    try:
        for directory in directories:
            aside = directory.with_name("data.aside")
            directory.rename(aside)
            directory.mkdir(mode=0o700)
            size = f"size={DISK_BYTES}"
            command = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(directory)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
            mounted.append(directory)
            shutil.copytree(aside, directory, dirs_exist_ok=True)
            directory.chmod(0o700)
        yield
    finally:
        for directory in mounted:
            # Lazily: a controller that is being ended may still be in it.
            subprocess.run(["umount", "-l", str(directory)], check=False)


def fill(directory: Path) -> Path:
    """Leave no free byte; returns the file to remove."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65_536))
        except OSError:
            return filler


def connect(cluster: LocalCluster) -> Client:
    """A client that does not wait long for room."""
    info = cluster.info()
    urls = tuple(member["http"] for member in info["controllers"])
    token = Path(info["token_file"]).read_text().strip()
    return Client(Context(urls=urls, token=token, ca_file=info["ca_file"], deadline_s=3.0))


class Submits:
    """Large jobs through the API."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def one(self, count: int = 1, size: int = 1) -> str:
        """Submit jobs that no node is large enough for; the refusal's code, or an empty string."""
        task: dict[str, Any] = {"command": ["true", "x" * size], "resources": {"cpu": 100_000}}
        job = {"kind": "job", "wait_for_capacity": True, "tasks": {"main": task}}
        try:
            self._client.submit_many([job] * count, fields=["id"])
        except ClientError as error:
            return error.code
        return ""

    def until_full(self) -> None:
        """Submit until not even the smallest job is taken."""
        for count, size in SIZES:
            for _ in range(SUBMITS_MAX):
                if self.one(count, size) == "disk_full":
                    break
            else:
                raise AssertionError("the disk never was full")


@pytest.mark.ci
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_full_disks_of_all_and_of_a_follower() -> None:
    with LocalCluster(agents=1, settings={"segment_size": SEGMENT}) as cluster:
        names = [member["name"] for member in cluster.info()["controllers"]]
        data = {name: Path(cluster.member(name)["data_dir"]) for name in names}
        cluster.kill(*names)
        with small_disks(list(data.values())):
            for name in names:
                cluster.start(name)
            cluster.wait_healthy()
            try:
                with connect(cluster) as client:
                    all_are_full(cluster, data, Submits(client))
                    follower_is_full(cluster, data, Submits(client))
            finally:
                cluster.run("down", codes=None)


def all_are_full(cluster: LocalCluster, data: dict[str, Path], submits: Submits) -> None:
    gate = cluster.directory / "gate"
    running = cluster.submit("--", "sh", "-c", f"until [ -e {gate} ]; do sleep 0.1; done; exit 7")
    cluster.wait_running(running)
    # All of them: a busy machine may change the leader at any time.
    fillers = [fill(directory) for directory in data.values()]
    submits.until_full()
    gate.touch()
    ended = cluster.wait_final(running)
    assert (ended["phase"], ended["exit_code"]) == ("Failed", 7)
    for filler in fillers:
        filler.unlink()
    wait_until(lambda: submits.one() == "", "submits are taken again")
    for directory in data.values():
        wait_until((directory / "wal" / "reserve").exists, "the reserve is made again")


def follower_is_full(cluster: LocalCluster, data: dict[str, Path], submits: Submits) -> None:
    leader = cluster.leader()
    follower = next(name for name in data if name != leader)
    filler = fill(data[follower])
    # More than its segments and its reserve can take.
    for _ in range(FOLLOWER_SUBMITS):
        wait_until(lambda: submits.one(*SIZES[0]) == "", "a submit is taken")
    job = cluster.submit("--", "true")
    assert cluster.wait_final(job)["phase"] == "Succeeded"
    recorded = applied(cluster, leader)
    assert applied(cluster, follower) < recorded, "its disk was not full"
    filler.unlink()
    wait_until(lambda: applied(cluster, follower) >= recorded, "the follower catches up")


def applied(cluster: LocalCluster, name: str) -> int:
    return next(int(m["applied_index"]) for m in cluster.status()["members"] if m["name"] == name)
