"""Which cluster is meant: every rule of the order, and every way in which there is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scheduler.cli.failure import Exit, Failure
from scheduler.cli.find import find_cluster


def make_local(directory: Path, *, pid: int | None, leader: str | None = "c2") -> Path:
    directory.mkdir(parents=True)
    (directory / "admin.token").write_text("secret\n")
    cluster = {
        "controllers": [
            {"name": name, "pid": pid, "http": f"https://127.0.0.1:{port}"}
            for name, port in (("c1", 1), ("c2", 2))
        ],
        "agents": [],
        "leader": leader,
        "token_file": str(directory / "admin.token"),
        "ca_file": str(directory / "ca.pem"),
    }
    (directory / "cluster.json").write_text(json.dumps(cluster))
    return directory


def failure(given: str | None, environment: dict[str, str], cwd: Path) -> Failure:
    with pytest.raises(Failure) as caught:
        find_cluster(given, environment=environment, cwd=cwd)
    return caught.value


def test_a_url_is_taken_with_token_and_ca_of_the_environment(tmp_path: Path) -> None:
    environment = {
        "PERTINAX_CLUSTER": "https://c1:1/, https://c2:2",
        "PERTINAX_TOKEN": "t",
        "PERTINAX_CA_FILE": "/ca.pem",
        "XDG_STATE_HOME": str(tmp_path),
    }
    found = find_cluster(None, environment=environment, cwd=tmp_path)
    assert found.context.urls == ("https://c1:1", "https://c2:2")
    assert (found.context.token, found.context.ca_file) == ("t", "/ca.pem")
    assert tmp_path in found.memory.parents


def test_the_option_wins_over_the_environment(tmp_path: Path) -> None:
    environment = {"PERTINAX_CLUSTER": "https://c1:1"}
    found = find_cluster("https://c9:9", environment=environment, cwd=tmp_path)
    assert found.context.urls == ("https://c9:9",)


def test_a_directory_gives_its_leader_first_and_its_token(tmp_path: Path) -> None:
    directory = make_local(tmp_path / "mine", pid=os.getpid())
    found = find_cluster(str(directory), environment={}, cwd=tmp_path)
    assert found.context.urls == ("https://127.0.0.1:2", "https://127.0.0.1:1")
    assert found.context.token == "secret"
    assert found.memory == directory / "client"


def test_the_nearest_local_cluster_upwards_is_found(tmp_path: Path) -> None:
    make_local(tmp_path / ".pertinax", pid=os.getpid())
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    found = find_cluster(None, environment={}, cwd=below)
    assert found.source == f"directory {tmp_path / '.pertinax'}"


@pytest.mark.parametrize("pid", [None, 2**22 + 1])
def test_a_stopped_cluster_is_told_at_once(tmp_path: Path, pid: int | None) -> None:
    directory = make_local(tmp_path / "mine", pid=pid)
    found = failure(str(directory), {}, tmp_path)
    assert (found.code, found.exit_code) == ("not_running", Exit.UNAVAILABLE)
    assert f"pertinax up --dir {directory}" in found.hint


def test_contexts_are_taken_by_name_and_by_default(tmp_path: Path) -> None:
    config = tmp_path / "pertinax" / "config.toml"
    config.parent.mkdir()
    (tmp_path / "token").write_text("abc\n")
    config.write_text(
        f'default = "lab"\n[contexts.lab]\nurls = ["https://l:1/"]\n'
        f'token_file = "{tmp_path / "token"}"\nuser = "zoe"\n'
        f'[contexts.here]\ndir = "{tmp_path / "mine"}"\n[contexts.bad]\n'
    )
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    for given in (None, "lab"):
        found = find_cluster(given, environment=environment, cwd=Path("/"))
        assert found.context.urls == ("https://l:1",)
        assert (found.context.token, found.context.user) == ("abc", "zoe")
    make_local(tmp_path / "mine", pid=os.getpid())
    here = find_cluster("here", environment=environment, cwd=Path("/"))
    assert here.context.token == "secret"
    assert "known: bad, here, lab" in failure("labb", environment, tmp_path).why
    assert "has no urls" in failure("bad", environment, tmp_path).why


def test_no_cluster_says_how_to_get_one(tmp_path: Path) -> None:
    found = failure(None, {"XDG_CONFIG_HOME": str(tmp_path)}, Path("/"))
    assert (found.code, found.exit_code) == ("no_cluster", Exit.UNAVAILABLE)
    assert "pertinax up" in found.hint


def test_broken_files_are_named(tmp_path: Path) -> None:
    directory = make_local(tmp_path / "mine", pid=1)
    (directory / "cluster.json").write_text("{")
    assert "cluster.json" in failure(str(directory), {}, tmp_path).why
    config = tmp_path / "pertinax" / "config.toml"
    config.parent.mkdir()
    config.write_text("= x")
    assert "config.toml" in failure("lab", {"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path).why
    config.write_text('[contexts.lab]\nurls = ["https://l:1"]\ntoken_file = "/no/such"\n')
    missing = failure("lab", {"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path)
    assert (missing.code, missing.exit_code) == ("no_token", Exit.NOT_ALLOWED)
