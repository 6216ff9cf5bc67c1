"""`cluster replace`: what it refuses, what it leaves behind, and that it can be interrupted."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.client.errors import Unreachable
from scheduler.controller.config import load_config
from scheduler.controller.founding import found_replacement, is_founded, is_joining, read_founding
from scheduler.local import directories, members
from scheduler.local import replace as module
from scheduler.local import up as up_module
from scheduler.local.directories import move_aside, prepare
from scheduler.local.errors import LocalError
from scheduler.local.files import Layout, Plan, change_cluster, read_cluster, read_plan
from scheduler.local.processes import Process, process_of
from scheduler.local.replace import NOTE_NAME, replace
from scheduler.local.up import Wishes, up_only


class Interrupted(BaseException):
    """The command was killed here."""


class Cluster:
    """A founded cluster whose processes are played: a test says who runs and who is well."""

    def __init__(self, layout: Layout, count: int) -> None:
        self.layout = layout
        plan, _ = up_module._planned(layout, Wishes(controllers=count, agents=1))
        up_module._found(layout, plan)
        self.names = [one.name for one in plan.controllers]
        self.plan = plan
        self.unwell: set[str] = set()
        self.is_reachable = True
        #: Looks until a started replacement is admitted.
        self.looks = 2
        self.started: list[str] = []
        up_module.ensure_document(layout, plan)
        for name in self.names:
            self.run(name)

    def data(self, name: str) -> Path:
        return self.layout.data_dir("controller", name)

    def run(self, name: str) -> None:
        """`cluster.json` says that it runs; this process plays it."""
        own = process_of(os.getpid())
        assert own is not None
        self._note(name, own)

    def end(self, name: str) -> None:
        self._note(name, None)
        self.unwell.add(name)

    def _note(self, name: str, process: Process | None) -> None:
        def note(document: dict[str, Any]) -> None:
            found = members.find(document, name)
            assert found is not None
            found[1]["pid"] = process and process.pid
            found[1]["start_ticks"] = process and process.start_ticks

        change_cluster(self.layout, note)

    def start(self, layout: Layout, plan: Plan, kind: str, name: str) -> Process:
        """In place of a real start: the member catches up by and by."""
        if members.is_lost(layout, plan, kind, name):
            raise members.lost(layout, name)
        self.started.append(name)
        self.run(name)
        self.unwell.discard(name)
        own = process_of(os.getpid())
        assert own is not None
        return own

    def status(self) -> dict[str, Any]:
        if not self.is_reachable:
            raise Unreachable("nobody answers")
        self.looks -= 1
        if self.looks < 0:
            for name in self.started:
                (self.data(name) / "joining").unlink(missing_ok=True)
        rows = [{"name": n, "healthy": n not in self.unwell} for n in self.names]
        return {"quorum": True, "leader": "c1", "members": rows}

    def replace(self, name: str, **options: Any) -> directories.Replaced:
        said: list[str] = []
        return replace(
            self.layout.root, name, is_forced=options.get("is_forced", False), say=said.append
        )


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    def issue(tls: Path, name: str, *, into: Path) -> None:
        del tls
        into.mkdir(exist_ok=True)
        (into / f"{name.replace(':', '-')}.pem").touch()

    # Keys take long to make, and nobody shakes hands here.
    monkeypatch.setattr("scheduler.controller.certs.make_ca", lambda tls: None)
    monkeypatch.setattr("scheduler.controller.certs.issue", issue)

    def make(count: int = 3) -> Cluster:
        cluster = Cluster(Layout(tmp_path), count)

        class PlayedClient:
            def __init__(self, context: object) -> None:
                self.context = context

            def cluster_status(self) -> dict[str, Any]:
                return cluster.status()

            def close(self) -> None:
                pass

        monkeypatch.setattr(module, "Client", PlayedClient)
        monkeypatch.setattr(module, "ensure_watcher", lambda layout: None)
        monkeypatch.setattr(module, "end_all", lambda *_, **__: [])
        monkeypatch.setattr(members, "start", cluster.start)
        monkeypatch.setattr(members, "wait_serving", lambda *_: None)
        monkeypatch.setattr(module, "OTHERS_DEADLINE_S", 0.0)
        monkeypatch.setattr(module, "HEALTH_PATIENCE_S", 0.0)
        monkeypatch.setattr(module, "CATCH_UP_DEADLINE_S", 10.0)
        monkeypatch.setattr(module, "LOOK_PERIOD_S", 0.0)
        return cluster

    return make


@pytest.fixture
def cluster(make: Callable[..., Cluster]) -> Cluster:
    return make()


def refusal(call: Callable[[], object]) -> LocalError:
    with pytest.raises(LocalError) as caught:
        call()
    return caught.value


# ---- what is refused -----------------------------------------------------------------------------


def test_a_healthy_member_is_left_alone_unless_forced(cluster: Cluster) -> None:
    error = refusal(lambda: cluster.replace("c2"))
    assert (error.kind, error.code) == ("refused", "member_healthy")
    assert "--force" in error.hint
    assert cluster.started == []
    done = cluster.replace("c2", is_forced=True)
    assert done.moved_to == str(cluster.data("c2")) + ".replaced-1"
    assert cluster.started == ["c2"]


@pytest.mark.parametrize("name", ["c9", "a1"])
def test_only_controllers_are_replaced(cluster: Cluster, name: str) -> None:
    error = refusal(lambda: cluster.replace(name))
    assert (error.kind, error.code) == ("not_found", "unknown_member")
    assert "c1, c2, c3" in error.why


def test_a_single_controller_has_nobody_to_come_back_from(make: Callable[..., Cluster]) -> None:
    error = refusal(lambda: make(1).replace("c1", is_forced=True))
    assert (error.kind, error.code) == ("refused", "no_others")


def test_without_a_majority_of_others_nothing_is_touched(cluster: Cluster) -> None:
    cluster.end("c2")
    cluster.unwell.add("c3")
    before = sorted((cluster.layout.root / "controllers").rglob("*"))
    error = refusal(lambda: cluster.replace("c2"))
    assert (error.kind, error.code) == ("unavailable", "no_quorum")
    assert "up --only c3" in error.hint
    cluster.is_reachable = False
    assert refusal(lambda: cluster.replace("c2")).code == "no_quorum"
    assert sorted((cluster.layout.root / "controllers").rglob("*")) == before


def test_another_replacement_under_way_does_not_count_as_a_member(cluster: Cluster) -> None:
    cluster.end("c2")
    (cluster.data("c3") / "joining").touch()
    assert refusal(lambda: cluster.replace("c2")).code == "no_quorum"


def test_of_five_three_others_are_needed(make: Callable[..., Cluster]) -> None:
    cluster = make(5)
    cluster.end("c2")
    cluster.end("c3")
    assert cluster.replace("c2").name == "c2"
    cluster.end("c4")
    cluster.end("c2")
    assert refusal(lambda: cluster.replace("c3")).code == "no_quorum"


# ---- what it does --------------------------------------------------------------------------------


def test_the_old_data_is_kept_and_the_new_directory_joins(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.end("c2")
    (cluster.data("c2") / "evidence").write_text("damaged")
    joined: list[bool] = []

    def start(*args: Any) -> Process:
        joined.append(is_joining(cluster.data("c2")))
        return cluster.start(*args)

    monkeypatch.setattr(members, "start", start)
    done = cluster.replace("c2")
    assert joined == [True]
    assert done.moved_to is not None
    assert (Path(done.moved_to) / "evidence").read_text() == "damaged"
    records = [
        read_founding(load_config(cluster.layout.config_file("controller", name)))
        for name in ("c1", "c2")
    ]
    assert records[0] == records[1]
    assert done.pid == os.getpid()
    assert members.find(read_cluster(cluster.layout), "c2")[1]["pid"] == os.getpid()  # type: ignore[index]
    assert not (cluster.data("c2").parent / NOTE_NAME).exists()


@pytest.mark.parametrize("loss", ["empty", "no data", "no member"])
def test_a_lost_member_is_not_started_by_up_and_is_replaced(cluster: Cluster, loss: str) -> None:
    cluster.end("c2")
    directory = cluster.data("c2")
    for path in directory.iterdir():
        path.unlink()
    if loss != "empty":
        directory.rmdir()
    if loss == "no member":
        for path in directory.parent.iterdir():
            path.unlink()
        directory.parent.rmdir()
    error = members.lost(cluster.layout, "c2")
    assert "cluster replace c2" in error.hint
    plan = read_plan(cluster.layout)
    assert plan is not None
    with pytest.raises(LocalError, match="lost its data"):
        cluster.start(cluster.layout, plan, "controller", "c2")
    done = cluster.replace("c2")
    assert done.moved_to is None
    assert is_founded(directory)


def test_up_starts_the_others_before_it_refuses_a_lost_member(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in cluster.data("c1").iterdir():
        path.unlink()
    monkeypatch.setattr(up_module, "ensure_watcher", lambda layout: None)
    for name in cluster.names:
        cluster.end(name)
    error = refusal(lambda: up_module._start_missing(cluster.layout, cluster.plan, lambda _: None))
    assert error.code == "member_lost"
    assert cluster.started == ["c2", "c3", "a1"]


def test_up_only_refuses_a_lost_member(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_module, "ensure_watcher", lambda layout: None)
    cluster.end("c2")
    for path in cluster.data("c2").iterdir():
        path.unlink()
    assert refusal(lambda: up_only(cluster.layout.root, "c2")).code == "member_lost"


def test_a_member_that_never_catches_up_is_said_and_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CATCH_UP_DEADLINE_S", 0.0)
    cluster.end("c2")
    cluster.looks = 1_000
    error = refusal(lambda: cluster.replace("c2"))
    assert (error.kind, error.code) == ("unavailable", "not_caught_up")
    cluster.looks = 2
    monkeypatch.setattr(module, "CATCH_UP_DEADLINE_S", 10.0)
    done = cluster.replace("c2")
    assert cluster.started == ["c2"], "the second call only waits"
    assert done.moved_to == str(cluster.data("c2")) + ".replaced-1"


def test_a_member_that_ends_while_it_catches_up_is_said(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.end("c2")
    monkeypatch.setattr(members, "wait_serving", lambda *_: cluster.end("c2"))
    assert refusal(lambda: cluster.replace("c2")).code == "member_ended"


# ---- interrupted ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "target", "left"),
    [
        (module, "move_aside", "old data"),
        (Path, "write_text", "nothing"),
        (module, "founding_of_another", "nothing"),
        (members, "write_config", "nothing"),
        (members, "start", "joining"),
        (members, "wait_serving", "joining"),
        (module, "change_cluster", "admitted"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_killed_at_any_point_it_can_be_repeated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, where: Any, target: str, left: str
) -> None:
    cluster.end("c2")
    data = cluster.data("c2")
    (data / "evidence").touch()

    def killed(*_: object, **__: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(where, target, killed)
        with pytest.raises(Interrupted):
            cluster.replace("c2")
    # With an empty disk it is no member, or one that does not vote before it caught up.
    assert is_founded(data) is (left != "nothing")
    assert is_joining(data) is (left == "joining")
    assert (data / "evidence").exists() is (left == "old data")
    cluster.looks = 2
    done = cluster.replace("c2")
    assert done.pid == os.getpid()
    assert is_founded(data)
    assert not is_joining(data)
    assert not (data / "evidence").exists()
    kept = list(data.parent.glob("data.replaced-*/evidence"))
    assert len(kept) == 1


def test_an_interrupted_founding_is_no_member(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(cluster.layout.config_file("controller", "c2"))
    founding = read_founding(config)
    move_aside(config.data_dir)

    def killed(*_: object, **__: object) -> None:
        raise Interrupted

    monkeypatch.setattr("scheduler.controller.founding.create_directory", killed)
    with pytest.raises(Interrupted):
        found_replacement(config, founding)
    assert is_joining(config.data_dir)
    assert not is_founded(config.data_dir)
    with pytest.raises(FileExistsError):
        found_replacement(config, founding)


# ---- directories ---------------------------------------------------------------------------------


def test_directories_set_aside_are_numbered(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert move_aside(data) is None
    data.mkdir()
    assert move_aside(data) is None
    for number in (1, 2, 10):
        if number == 10:
            (tmp_path / "data.replaced-9").mkdir()
        data.mkdir(exist_ok=True)
        (data / "x").touch()
        assert move_aside(data) == tmp_path / f"data.replaced-{number}"
    assert not data.exists()


def test_on_its_own_host_a_member_is_prepared(cluster: Cluster) -> None:
    config = cluster.layout.config_file("controller", "c2")
    founding = cluster.data("c1") / "founding.json"
    done = prepare(config, "c2", founding_file=founding)
    assert done.moved_to == str(cluster.data("c2")) + ".replaced-1"
    assert is_joining(cluster.data("c2"))
    (cluster.data("c2") / "founding.json").unlink()
    assert refusal(lambda: prepare(config, "c2", founding_file=None)).kind == "usage"
    assert refusal(lambda: prepare(config, "c1", founding_file=founding)).kind == "usage"
    foreign = cluster.layout.root / "other.json"
    foreign.write_text(json.dumps({**json.loads(founding.read_text()), "cluster_id": "other"}))
    assert "other" in refusal(lambda: prepare(config, "c2", founding_file=foreign)).why


def test_a_directory_in_use_is_not_prepared(cluster: Cluster) -> None:
    with (cluster.data("c2") / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        error = refusal(
            lambda: prepare(
                cluster.layout.config_file("controller", "c2"), "c2", founding_file=None
            )
        )
    assert (error.kind, error.code) == ("refused", "member_runs")
    assert is_founded(cluster.data("c2"))
