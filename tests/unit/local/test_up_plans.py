"""What `up` decides before it starts anything: the plan, its refusals, founding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.controller.config import load_config
from scheduler.controller.founding import read_founding
from scheduler.local import up as module
from scheduler.local.down import down
from scheduler.local.errors import LocalError
from scheduler.local.files import Layout, Plan, read_plan, write_plan
from scheduler.local.found import found_member
from scheduler.local.up import Wishes, clear, up_only


def planned(layout: Layout, **wishes: Any) -> tuple[Plan, dict[str, str]]:
    return module._planned(layout, Wishes(**wishes))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def test_a_new_plan_has_the_defaults(layout: Layout) -> None:
    plan, later = planned(layout)
    assert [one.name for one in plan.controllers] == ["c1", "c2", "c3"]
    assert plan.agents == ["a1", "a2"]
    ports = [p for c in plan.controllers for p in (c.http_port, c.agents_port, c.raft_port)]
    assert len(set(ports)) == 9
    assert later == {}
    assert read_plan(layout) == plan


def test_settings_seed_the_cluster_and_later_are_proposed(layout: Layout) -> None:
    settings = {"rejoin_grace": "4s", "election_timeout": "1s-2s"}
    plan, later = planned(layout, settings=settings)
    assert plan.settings == {"rejoin_grace": "4s"}
    assert plan.controller_settings == {"election_timeout": "1s-2s"}
    assert later == {}
    plan.is_founded = True
    write_plan(layout, plan)
    again, later = planned(layout, settings={"rejoin_grace": "9s"})
    assert later == {"rejoin_grace": "9s"}
    assert again.settings == {"rejoin_grace": "4s"}
    assert again.controllers == plan.controllers


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"heartbeat_timeou": "4s"}, "heartbeat_timeout"),
        ({"heartbeat_timeout": "soon"}, "soon"),
        ({"election_timeout": "1s"}, "election_timeout"),
        ({"snapshot_entries": "many"}, "snapshot_entries"),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_made(
    layout: Layout, settings: dict[str, str], part: str
) -> None:
    with pytest.raises(LocalError) as caught:
        planned(layout, settings=settings)
    assert caught.value.kind == "usage"
    assert part in caught.value.why
    assert list(layout.root.iterdir()) == []


def test_agents_may_be_added_and_nothing_else_changed(layout: Layout) -> None:
    planned(layout)
    plan, _ = planned(layout, agents=4, controllers=3)
    assert plan.agents == ["a1", "a2", "a3", "a4"]
    for wishes in ({"controllers": 5}, {"agents": 1}, {"base_port": 3}):
        with pytest.raises(LocalError) as caught:
            planned(layout, **wishes)
        assert caught.value.code == "fixed_membership"


def test_a_directory_with_other_things_in_it_is_left_alone(layout: Layout) -> None:
    (layout.root / "thesis.tex").touch()
    with pytest.raises(LocalError) as caught:
        module.up(layout.root, Wishes(), say=lambda _: None)
    assert caught.value.code == "bad_directory"
    assert "thesis.tex" in caught.value.why
    assert [path.name for path in layout.root.iterdir()] == ["thesis.tex"]


def test_clearing_removes_what_is_ours_alone(layout: Layout) -> None:
    planned(layout)
    (layout.root / "tls").mkdir()
    (layout.root / "thesis.tex").touch()
    clear(layout)
    assert [path.name for path in layout.root.iterdir()] == ["thesis.tex"]


def test_without_a_cluster_there_is_nothing_to_stop_or_restart(layout: Layout) -> None:
    for call in (lambda: down(layout.root, keeps_jobs=False), lambda: up_only(layout.root, "c1")):
        with pytest.raises(LocalError) as caught:
            call()
        assert (caught.value.code, caught.value.kind) == ("no_cluster", "not_found")


def test_stopping_what_does_not_run_is_fine(layout: Layout) -> None:
    planned(layout)
    down(layout.root, keeps_jobs=False)
    down(layout.root, keeps_jobs=True)


def test_an_interrupted_founding_goes_on_with_the_same_record(layout: Layout) -> None:
    plan, _ = planned(layout, settings={"rejoin_grace": "5s"})
    module._found(layout, plan)
    configs = [load_config(layout.config_file("controller", f"c{n}")) for n in (1, 2, 3)]
    [record] = {json.dumps(vars_of(read_founding(config))) for config in configs}
    assert json.loads(record)["settings"] == {"rejoin_grace": 5000}
    token = layout.token_file.read_text()
    assert layout.token_file.stat().st_mode & 0o777 == 0o600
    plan.is_founded = False
    write_plan(layout, plan)
    module._found(layout, plan)
    [again] = {json.dumps(vars_of(read_founding(config))) for config in configs}
    assert again == record
    assert layout.token_file.read_text() == token
    assert read_plan(layout) == plan
    assert plan.is_founded


def vars_of(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ("cluster_id", "incarnation", "settings")}


def test_members_on_several_hosts_are_founded_from_one_record(layout: Layout) -> None:
    plan, _ = planned(layout)
    for name in ("c1", "c2"):
        layout.config_file("controller", name).parent.mkdir(parents=True)
        layout.config_file("controller", name).write_text(
            module.controller_toml(layout, plan, name)
        )
    first = found_member(
        layout.config_file("controller", "c1"),
        settings={"rejoin_grace": "5s"},
        founding_file=None,
    )
    founding = Path(first["data_dir"]) / "founding.json"
    second = found_member(
        layout.config_file("controller", "c2"), settings={}, founding_file=founding
    )
    assert first["cluster_id"] == second["cluster_id"] == plan.cluster_id
    assert first["incarnation"] == second["incarnation"]
    with pytest.raises(LocalError) as caught:
        found_member(layout.root / "no.toml", settings={}, founding_file=None)
    assert "no.toml" in caught.value.why


@pytest.mark.parametrize(
    ("directory", "environment", "root"),
    [
        (None, None, ".pertinax"),
        ("there", None, "there"),
        (None, "./named", "named"),
        ("there", "./named", "there"),
        (None, "https://c1:1", ".pertinax"),
        (None, "a-context", ".pertinax"),
    ],
)
def test_the_directory_that_is_meant(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    directory: str | None,
    environment: str | None,
    root: str,
) -> None:
    from scheduler.cli.local import _root

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERTINAX_CLUSTER", raising=False)
    if environment is not None:
        monkeypatch.setenv("PERTINAX_CLUSTER", environment)
    assert _root(directory) == tmp_path / root
