"""Founding a member: once, alike on all members, and for one cluster only."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.controller.config import ControllerConfig, parse_config
from scheduler.controller.founding import (
    NotFounded,
    draw_founding,
    found,
    incarnation_number,
    read_founding,
)
from scheduler.protocol.ids import next_incarnation
from wal.errors import WrongIdentity
from wal.identity import read_identity


def config_in(tmp_path: Path, *, cluster_id: str = "") -> ControllerConfig:
    text = f"""
name = "c1"
data_dir = "data"
cluster_id = "{cluster_id}"
insecure = true
[members.c1]
raft = "127.0.0.1:1"
agents = "127.0.0.1:2"
http = "http://127.0.0.1:3"
[settings]
heartbeat_timeout = "40s"
"""
    return parse_config(text, tmp_path / "c1.toml")


def test_an_empty_directory_founds_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFounded, match="cluster init"):
        read_founding(config_in(tmp_path))


def test_founding_again_keeps_the_first_record(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    first = found(config, {"start_timeout": "12s"})
    assert first.settings == {"heartbeat_timeout": 40_000, "start_timeout": 12_000}
    assert found(config, {"start_timeout": "99s"}) == first == read_founding(config)
    identity = read_identity(config.data_dir)
    assert (identity.cluster_id, identity.member) == (first.cluster_id, "c1")
    assert identity.incarnation == incarnation_number(first.incarnation)


def test_all_members_are_given_one_record(tmp_path: Path) -> None:
    record = draw_founding({"start_timeout": "5s"})
    one = found(config_in(tmp_path / "one"), founding=record)
    two = found(config_in(tmp_path / "two"), founding=record)
    assert one == two == record


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    found(config_in(tmp_path, cluster_id="first"))
    with pytest.raises(NotFounded, match="belongs to cluster first"):
        read_founding(config_in(tmp_path, cluster_id="second"))
    (tmp_path / "data" / "founding.json").unlink()
    with pytest.raises(WrongIdentity):
        found(config_in(tmp_path, cluster_id="second"))


def test_a_damaged_record_is_told_as_such(tmp_path: Path) -> None:
    found(config_in(tmp_path))
    (tmp_path / "data" / "founding.json").write_text("{")
    with pytest.raises(NotFounded, match="damaged"):
        read_founding(config_in(tmp_path))


def test_incarnations_keep_their_order_as_numbers() -> None:
    first = draw_founding().incarnation
    assert incarnation_number(next_incarnation(first)) == incarnation_number(first) + 1
