"""The files of a local cluster: plan, cluster.json, configurations, locks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config import load_config as load_agent
from scheduler.controller.config import load_config as load_controller
from scheduler.local import members
from scheduler.local.configs import agent_toml, controller_toml, to_toml
from scheduler.local.errors import LocalError
from scheduler.local.files import (
    Layout,
    Plan,
    PlannedController,
    change_cluster,
    locked,
    read_cluster,
    read_plan,
    write_plan,
)
from scheduler.local.watch import leader_of, refresh


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def make_plan(**fields: Any) -> Plan:
    controllers = [PlannedController(f"c{n}", 7000 + n, 7100 + n, 7200 + n) for n in (1, 2, 3)]
    plan = Plan(cluster_id="abc", controllers=controllers, agents=["a1", "a2"])
    for name, value in fields.items():
        setattr(plan, name, value)
    return plan


def test_a_plan_is_read_as_it_was_written(layout: Layout) -> None:
    assert read_plan(layout) is None
    plan = make_plan(settings={"a": "1"}, agent_settings={"labels.x": "y"}, is_founded=True)
    write_plan(layout, plan)
    assert read_plan(layout) == plan


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"version": 2}', '{"version": 1, "controllers": [{}]}']
)
def test_a_damaged_plan_is_refused_with_a_way_out(layout: Layout, text: str) -> None:
    layout.plan_file.write_text(text)
    with pytest.raises(LocalError) as caught:
        read_plan(layout)
    assert caught.value.kind == "refused"
    assert "--fresh" in caught.value.hint


def test_a_damaged_cluster_file_counts_as_empty(layout: Layout) -> None:
    layout.cluster_file.write_text("{")
    assert read_cluster(layout) == {}


def test_a_change_that_changes_nothing_writes_nothing(layout: Layout) -> None:
    change_cluster(layout, lambda found: found.update(leader="c1"))
    before = layout.cluster_file.stat().st_ino
    change_cluster(layout, lambda found: found.update(leader="c1"))
    assert layout.cluster_file.stat().st_ino == before
    change_cluster(layout, lambda found: found.update(leader="c2"))
    assert read_cluster(layout) == {"leader": "c2"}
    assert not [path for path in layout.root.iterdir() if path.name.startswith(".")]


def test_a_lock_that_is_held_is_told_after_a_while(layout: Layout) -> None:
    path = layout.root / "operation.lock"
    with locked(path, wait_s=0), pytest.raises(LocalError) as caught, locked(path, wait_s=0):
        pass
    assert caught.value.code == "busy"
    with locked(path, wait_s=0):
        pass  # released


def test_the_cluster_file_has_the_fields_of_the_contract(layout: Layout) -> None:
    document = members.entries(layout, make_plan())
    assert {"controllers", "agents", "leader"} <= set(document)
    for one in document["controllers"]:
        assert {"name", "pid", "http", "agents_port", "raft_port", "data_dir"} <= set(one)
        assert one["http"].startswith("https://")
        assert not one["http"].endswith("/")
        assert Path(one["data_dir"]).is_absolute()
    for one in document["agents"]:
        assert {"name", "pid", "keeper_pid", "data_dir"} <= set(one)


def test_configurations_are_what_the_daemons_take(layout: Layout) -> None:
    plan = make_plan(
        controller_settings={"election_timeout": "1s-2s", "snapshot_entries": "77"},
        agent_settings={"capacity.cpu": "4", "labels.zone": "x", "on_sigterm": "restart"},
    )
    layout.tls.mkdir()
    for name in (
        "ca.pem",
        "controller-c2.pem",
        "controller-c2.key",
        "agent-a1.pem",
        "agent-a1.key",
    ):
        (layout.tls / name).touch()
    path = layout.root / "c.toml"
    path.write_text(controller_toml(layout, plan, "c2"))
    controller = load_controller(path)
    assert (controller.name, controller.cluster_id) == ("c2", "abc")
    assert controller.data_dir == layout.data_dir("controller", "c2")
    assert controller.member.http == "https://127.0.0.1:7002"
    assert set(controller.members) == {"c1", "c2", "c3"}
    assert (controller.election_timeout_min_ms, controller.snapshot_entries) == (1000, 77)
    path = layout.root / "a.toml"
    path.write_text(agent_toml(layout, plan, "a1"))
    agent = load_agent(path, environment={})
    assert (agent.name, agent.cluster_id, agent.on_sigterm) == ("a1", "abc", "restart")
    assert agent.capacity.cpu_millis == 4000
    assert agent.labels == {"zone": "x"}
    assert [one.port for one in agent.controllers] == [7101, 7102, 7103]
    path.write_text(agent_toml(layout, make_plan(), "a1"))
    plain = load_agent(path, environment={})
    assert (plain.on_sigterm, plain.capacity.cpu_millis) == ("leave", 8000)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = texts | st.integers(-(2**60), 2**60) | st.booleans() | st.lists(texts, max_size=3)
tables = st.recursive(
    st.dictionaries(texts, scalars, max_size=3),
    lambda inner: st.dictionaries(
        texts, inner | st.lists(inner, min_size=1, max_size=2), max_size=3
    ),
    max_leaves=6,
)


@settings(max_examples=50)
@given(tables)
def test_toml_is_read_as_it_was_meant(document: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(document)) == document


def ticks_of(pid: int) -> int:
    from scheduler.local.processes import start_ticks

    ticks = start_ticks(pid)
    assert ticks is not None
    return ticks


def say(data_dir: Path, **status: Any) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "status.json").write_text(json.dumps(status))


def test_the_live_leader_of_the_highest_term_is_shown(layout: Layout) -> None:
    document = members.entries(layout, make_plan())
    pid = os.getpid()
    assert leader_of(document) is None
    for one, term in zip(document["controllers"], (3, 5, 9), strict=True):
        one.update(pid=pid, start_ticks=ticks_of(pid))
        say(Path(one["data_dir"]), pid=pid, role="leader", term=term)
    assert leader_of(document) == "c3"
    document["controllers"][2]["start_ticks"] += 1  # the pid was reused: that leader is dead
    assert leader_of(document) == "c2"
    say(Path(document["controllers"][1]["data_dir"]), pid=pid + 1, role="leader", term=5)
    assert leader_of(document) == "c1"  # what an earlier process wrote counts for nothing
    say(Path(document["controllers"][0]["data_dir"]), pid=pid, role="follower", term=10)
    assert leader_of(document) is None


def test_a_keeper_is_shown_while_it_lives(layout: Layout) -> None:
    document = members.entries(layout, make_plan())
    one, other = document["agents"]
    say(Path(one["data_dir"]), pid=1, keeper_pid=os.getpid())
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    say(Path(other["data_dir"]), pid=1, keeper_pid=gone.pid)
    refresh(document)
    assert one["keeper_pid"] == os.getpid()
    assert other["keeper_pid"] is None
