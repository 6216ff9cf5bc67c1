"""Version 2 on a pretended hierarchy: what is written where. The kernel's part is elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.keeper import cgroups
from agent.keeper.cgroups import Cgroups, Group


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our own group, delegated to us."""
    root = tmp_path / "service"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu io memory pids\n")
    (root / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_own_groups", lambda: {"": "/service"})
    return root


def test_keeper_and_agent_move_into_a_leaf(service: Path) -> None:
    found = Cgroups.open("pertinax-1")
    assert found.kind == "cgroup2"
    assert (service / "pertinax-1-keeper" / "cgroup.procs").exists()
    assert (service / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_group_with_strangers_is_not_ours_to_divide(service: Path) -> None:
    (service / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")
    assert Cgroups.open("pertinax-1").kind == "sampled"
    assert not (service / "pertinax-1-keeper").exists()


def test_group_without_memory_limits_nothing(service: Path) -> None:
    (service / "cgroup.controllers").write_text("hugetlb\n")
    assert Cgroups.open("pertinax-1").kind == "sampled"


def test_successor_is_born_in_the_leaf_and_finds_the_base(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cgroups.open("pertinax-1")
    (service / "cgroup.procs").write_text("")
    leaf = service / "pertinax-1-keeper"
    (leaf / "cgroup.controllers").write_text("cpu memory pids\n")
    monkeypatch.setattr(cgroups, "_own_groups", lambda: {"": f"/service/{leaf.name}"})
    assert Cgroups.open("pertinax-1").kind == "cgroup2"
    assert not (leaf / "pertinax-1").exists()


def test_limits_are_written_before_anybody_joins(service: Path) -> None:
    group = Cgroups.open("pertinax-1").create("a.1", memory_bytes=1_000_000, cpu_millis=2_500)
    assert group is not None
    path = service / "pertinax-1" / "a.1"
    assert (path / "memory.max").read_text() == "1000000"
    assert (path / "memory.oom.group").read_text() == "1"
    assert (path / "cpu.weight").read_text() == "250"
    assert group.join_fds == []


def test_kernel_s_counters_are_read(service: Path) -> None:
    group = Cgroups.open("pertinax-1").create("a.1", memory_bytes=1, cpu_millis=0)
    assert group is not None
    path = service / "pertinax-1" / "a.1"
    assert (group.oom_kills(), group.peak_bytes()) == (0, None)
    (path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (path / "memory.peak").write_text("4096\n")
    assert (group.oom_kills(), group.peak_bytes()) == (2, 4096)
    assert group.freeze(is_frozen=True)
    assert (path / "cgroup.freeze").read_text() == "1"


def test_group_is_found_again_from_its_facts_only_below_the_root(service: Path) -> None:
    group = Cgroups.open("pertinax-1").create("a.1", memory_bytes=1, cpu_millis=0)
    assert group is not None
    assert Group.from_facts(group.facts()) == group
    assert Group.from_facts({"version": 2, "paths": {"all": "/etc"}}) is None
    assert Group.from_facts({"version": 3, "paths": {}}) is None
