"""The controller's process: what it refuses to start with, and what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replication.interface import Leadership, Role
from scheduler.controller.config import load_config
from scheduler.controller.founding import found
from scheduler.main import EXIT_CONFIG, StatusFile, main, replication_config
from tests.unit.controller.world import CONFIG, World, play


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "c1.toml"
    file.write_text(text)
    return file


def test_a_bad_configuration_is_one_clear_complaint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(written(tmp_path, 'nmae = "c1"'))]) == EXIT_CONFIG
    complaint = capsys.readouterr().err
    assert complaint.startswith("pertinax controller: ")
    assert "did you mean 'name'?" in complaint
    assert "Traceback" not in complaint


def test_a_missing_file_and_an_unfounded_directory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(tmp_path / "none.toml")]) == EXIT_CONFIG
    assert main(["--config", str(written(tmp_path, CONFIG))]) == EXIT_CONFIG
    assert "cluster init" in capsys.readouterr().err


def test_the_logs_configuration_follows_the_controllers(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, CONFIG))
    founding = found(config)
    made = replication_config(config, founding)
    assert (made.name, made.cluster_id) == ("c1", founding.cluster_id)
    assert made.members["c2"] == ("127.0.0.2", 7001)
    assert (made.election_timeout_min_ms, made.election_timeout_max_ms) == (500, 1_000)
    assert made.tls is None


def test_the_status_file_follows_leadership_and_goes_with_the_process(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        file = tmp_path / "status.json"
        status = StatusFile(file, world.log)
        status.write(Leadership(term=4, role=Role.FOLLOWER, leader="c2"))
        document = json.loads(file.read_text())
        assert document.pop("pid") > 0
        assert document == {"name": "c1", "role": "follower", "term": 4, "leader": "c2"}
        status.remove()
        assert list(tmp_path.iterdir()) == []

    play(scenario)
