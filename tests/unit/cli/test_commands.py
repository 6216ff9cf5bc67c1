"""What each command asks the cluster, what it prints, and with which code it ends.

The tables are compared with `snapshots/NAME.COLUMNS.txt`. After a wanted change write them anew
with PERTINAX_WRITE_SNAPSHOTS=1, and read the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.failure import Exit
from scheduler.client.errors import ApiError
from tests.unit.cli.conftest import Done, FakeClient

Pertinax = Callable[..., Done]
SNAPSHOTS = Path(__file__).parent / "snapshots"

ATTEMPT = {
    "id": "7/main/0#1",
    "uid": "0",
    "number": 1,
    "phase": "Failed",
    "cause": "node_lost",
    "by": None,
    "why": "not heard since 03:03:00; nobody claimed it until its deadline at 03:03:59",
    "evidence": "declared",
    "node": "a1",
    "started_at": "2026-01-02T03:00:00Z",
    "ended_at": "2026-01-02T03:03:59Z",
    "exit_code": None,
    "signal": None,
    "peak_rss_bytes": None,
    "unknown": None,
}
RUNNING = ATTEMPT | {
    "id": "7/main/0#2",
    "number": 2,
    "phase": "Running",
    "cause": None,
    "evidence": None,
    "why": None,
    "node": "b-rack12",
    "ended_at": None,
    "peak_rss_bytes": 5 << 20,
    "unknown": {
        "cause": "heartbeat_lost",
        "transient_since": "2026-01-02T03:03:59Z",
        "deadline": "2026-01-02T03:08:59Z",
    },
}
EVENTS = [
    {"index": 5, "time": "2026-01-02T03:00:00Z", "object": "7", "kind": "submitted",
     "from": None, "to": "Pending", "cause": None, "by": "user:ana", "why": None, "details": {}},
    {"index": 6, "time": "2026-01-02T03:00:00Z", "object": "7/main/0#1", "kind": "placed",
     "from": None, "to": None, "cause": None, "by": None, "why": None,
     "details": {"node": "a1", "token": "t"}},
    {"index": 9, "time": "2026-01-02T03:03:59Z", "object": "7/main/0#1", "kind": "attempt",
     "from": "Running", "to": "Failed", "cause": "node_lost", "by": None,
     "why": ATTEMPT["why"], "details": {}},
]  # fmt: skip
NODES = [
    {"name": "a1", "phase": "Online", "offline_reason": None, "unschedulable": True,
     "unschedulable_reason": "disk swap", "last_heard_s": 2.5,
     "capacity": {"cpu": 8, "memory_bytes": 16 << 30, "gpu": 2},
     "allocated": {"cpu": 1.5, "memory_bytes": 4 << 30, "gpu": 1}, "labels": {"zone": "x"},
     "uid": "u", "boot_id": "b", "agent_version": "0.1.0", "attempts": 3},
    {"name": "b-rack12", "phase": "Offline", "offline_reason": "heartbeat_lost",
     "unschedulable": False, "unschedulable_reason": None, "last_heard_s": 300.0,
     "capacity": {"cpu_millis": 2500, "memory_bytes": 0},
     "allocated": {}, "labels": {}, "attempts": 0},
]  # fmt: skip
STATUS = {
    "cluster_id": "abc", "leader": None, "term": 7, "quorum": False,
    "members": [
        {"name": "c1", "role": "follower", "healthy": True, "commit_index": 90,
         "applied_index": 90, "lag_entries": 0, "version": "0.1.0"},
        {"name": "c2", "role": "unknown", "healthy": False, "commit_index": None,
         "applied_index": None, "lag_entries": None, "version": None},
    ],
    "log": {"first_index": 1, "last_index": 90, "bytes": 70_000, "snapshot_index": 0},
    "registry": {"size": 0, "by_node": {}, "expired": 0, "refused": 0},
    "jobs_by_phase": {"Pending": 0, "Running": 2, "Failed": 1},
}  # fmt: skip


def fill(client: FakeClient) -> None:
    """A cluster in which something of everything happens."""
    client.add(1, name="first")
    client.add(
        7,
        name="a name that is rather long, as names can be",
        phase="Running",
        cause=None,
        exit_code=None,
        ended_at=None,
        unknown=1,
        message="Unknown: 7/main/0#2 on b-rack12, heartbeat_lost, decided at 03:08:59",
    )
    client.add(
        8,
        name="日本 \x1b[31m",
        phase="Pending",
        cause=None,
        exit_code=None,
        started_at=None,
        ended_at=None,
        pending_reasons=[
            {"code": "Unsatisfiable", "message": "asks 4096 cpus; largest has 8", "count": 1}
        ],
    )
    client.add(
        9,
        phase="Killed",
        cause="user_cancel",
        exit_code=None,
        by="user:ben",
        why="not needed",
        message="user_cancel (9/main/0#1)",
    )
    client.answers |= {
        "attempts": {"attempts": [ATTEMPT, RUNNING]},
        "workers": {
            "workers": [
                {
                    "id": "7/main/0",
                    "phase": "Running",
                    "attempt": 2,
                    "attempts": 2,
                    "node": "b-rack12",
                    "ready": False,
                    "pending_reasons": [],
                    "unknown": None,
                    "progress": {"done": 37, "total": 100, "text": "epoch 37", "eta_s": 61},
                }
            ]
        },
        "history": {"events": EVENTS},
        "why": RUNNING | {"pending_reasons": [{"code": "X", "message": "y", "count": 3}]},
        "nodes": {"nodes": NODES},
        "node": NODES[0],
        "cluster_status": STATUS,
        "config": {"settings": {"heartbeat_timeout": 30_000, "unknown_report_max": 100}},
    }


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize(
    "command",
    [
        "jobs", "job 7", "job 8", "job 9", "attempts 7", "workers 7", "history 7", "why 7",
        "nodes", "node show a1", "cluster status", "cluster members", "cluster config show",
        "config show", "wait 1 9",
    ],
)  # fmt: skip
def test_tables(
    client: FakeClient,
    pertinax: Pertinax,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    columns: int,
) -> None:
    fill(client)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("scheduler.cli.find._login_name", lambda: "ana")
    done = pertinax(*command.split())
    assert done.err == ""
    assert "\x1b" not in done.out
    snapshot = SNAPSHOTS / f"{command.replace(' ', '-')}.{columns}.txt"
    if os.environ.get("PERTINAX_WRITE_SNAPSHOTS"):
        snapshot.write_text(done.out)
    assert done.out == snapshot.read_text()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("attempts 7", {"attempts": [ATTEMPT, RUNNING]}),
        ("history 7", {"events": EVENTS}),
        ("nodes", {"nodes": NODES}),
        ("node show a1", NODES[0]),
        ("cluster status", STATUS),
    ],
)
def test_json_is_what_the_cluster_said(
    client: FakeClient, pertinax: Pertinax, command: str, shown: Any
) -> None:
    fill(client)
    done = pertinax(*command.split(), "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == shown


def test_quiet_prints_ids_only(client: FakeClient, pertinax: Pertinax) -> None:
    fill(client)
    assert pertinax("jobs", "-q").out == "9\n8\n7\n1\n"
    assert pertinax("nodes", "-q").out == "a1\nb-rack12\n"
    assert pertinax("attempts", "7", "-q").out == "7/main/0#1\n7/main/0#2\n"
    assert pertinax("wait", "1", "9", "-q").out == "1\n9\n"


def test_filters_are_asked_of_the_cluster(client: FakeClient, pertinax: Pertinax) -> None:
    pertinax("jobs", "--state", "running,Pending", "--user", "u", "--name", "x*", "--overdue")
    assert client.calls == [
        (
            "jobs",
            {
                "limit": 50,
                "state": ("Running", "Pending"),
                "user": "u",
                "queue": None,
                "name": "x*",
                "overdue": True,
            },
        )
    ]


def test_a_long_list_takes_several_requests(client: FakeClient, pertinax: Pertinax) -> None:
    for number in range(1, 2502):
        client.add(number)
    done = pertinax("jobs", "--limit", "2500", "-q")
    ids = done.out.split()
    assert (len(ids), ids[0], ids[-1]) == (2500, "2501", "2")
    assert [call[1]["limit"] for call in client.calls] == [1000, 1000, 500]


def test_a_cut_list_says_so(client: FakeClient, pertinax: Pertinax) -> None:
    fill(client)
    assert "--limit" in pertinax("jobs", "--limit", "2").err
    assert pertinax("jobs", "--limit", "4").err == ""


def test_submit_prints_the_id_and_remembers_it(client: FakeClient, pertinax: Pertinax) -> None:
    client.next_id = 41
    assert pertinax("submit", "--", "true") == Done(0, "41\n", "")
    client.answers["history"] = {"events": []}
    assert pertinax("job", "@last", "--json").code == 0
    pertinax("history", "@last")
    assert client.calls[-1] == ("history", "41")


def test_last_is_of_this_directory(
    client: FakeClient, pertinax: Pertinax, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pertinax("submit", "--", "true")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert pertinax("job", "@last").code == Exit.NOT_FOUND


def test_the_newest_of_a_name_is_meant(client: FakeClient, pertinax: Pertinax) -> None:
    client.add(3, name="a*b")
    client.add(4, name="other")
    client.answers["history"] = {"events": []}
    pertinax("history", "name:other")
    assert client.calls[-1] == ("history", "4")
    pertinax("history", "name:a*b")
    asked = next(call for call in reversed(client.calls) if call[0] == "jobs")
    assert asked[1]["name"] == "a[*]b"
    assert pertinax("job", "name:nobody").code == Exit.NOT_FOUND


def test_files_are_submitted_together(
    client: FakeClient, pertinax: Pertinax, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text(
        "name: a\ntasks: {main: {command: [x]}}\n---\nname: b\ntasks: {main: {shell: y}}\n"
    )
    done = pertinax("submit", "-f", "jobs.yaml", "--json")
    assert [job["id"] for job in json.loads(done.out)["jobs"]] == [1, 2]
    (tmp_path / "one.toml").write_text('[tasks.main]\ncommand = ["x"]\n')
    assert json.loads(pertinax("submit", "-f", "one.toml", "--json").out)["job"]["id"] == 3


@pytest.mark.parametrize(
    ("name", "text", "code", "part"),
    [
        ("gone.json", None, Exit.NOT_FOUND, "no file gone.json"),
        ("x.json", "{", Exit.INVALID, "line 1"),
        ("x.toml", "=", Exit.INVALID, "not TOML"),
        ("x.yaml", "a: [", Exit.INVALID, "not YAML"),
        ("x.json", "", Exit.INVALID, "no document"),
        ("x.json", "\ud800", Exit.USAGE, "cannot be read"),
    ],
)
def test_files_that_cannot_be_used(
    client: FakeClient,
    pertinax: Pertinax,
    tmp_path: Path,
    name: str,
    text: str | None,
    code: Exit,
    part: str,
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    for command in (("submit", "-f", name), ("validate", name)):
        done = pertinax(*command)
        assert (done.code, done.out) == (code, "")
        assert part in done.err


def test_validate_needs_no_cluster_and_tells_all(
    pertinax: Pertinax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = tmp_path / "good.json"
    good.write_text('{"tasks": {"main": {"command": ["x"]}}}')
    assert pertinax("validate", str(good)).out == "valid: 1 job\n"
    assert json.loads(pertinax("validate", str(good), "--json").out)["valid"] is True
    bad = tmp_path / "bad.yaml"
    bad.write_text("tasks: {main: {comand: [x]}}\n---\nqueue: gpu\ntasks: {main: {shell: x}}\n")
    done = pertinax("validate", str(good), str(bad), "--json")
    assert done.code == Exit.INVALID
    mistakes = json.loads(done.err)["error"]["details"]["mistakes"]
    assert [(m["document"], m["path"]) for m in mistakes] == [
        (1, "tasks.main.comand"),
        (1, "tasks.main"),
        (2, "queue"),
    ]
    assert {m["file"] for m in mistakes} == {str(bad)}


def test_wait_ends_as_the_jobs_did(client: FakeClient, pertinax: Pertinax) -> None:
    fill(client)
    assert pertinax("wait", "1").code == Exit.DONE
    assert pertinax("wait", "1", "9").code == Exit.FAILED
    assert client.calls[-1] == ("wait", ("1", "9"), None, False)
    done = pertinax("wait", "1", "7", "--timeout", "1m30s")
    assert done.code == Exit.TIMED_OUT
    assert client.calls[-1] == ("wait", ("1", "7"), 90.0, False)
    assert "pertinax wait 7" in done.err
    assert pertinax("wait", "404").code == Exit.NOT_FOUND
    assert json.loads(pertinax("wait", "9", "--json").out)["jobs"][0]["id"] == 9


def test_submit_can_wait(client: FakeClient, pertinax: Pertinax) -> None:
    client.add(1, phase="Failed", cause="exit_nonzero", exit_code=3)
    assert pertinax("submit", "--wait", "--", "false") == Done(Exit.FAILED, "1\n", "")


def test_kill_tells_each_target_and_tries_all(client: FakeClient, pertinax: Pertinax) -> None:
    fill(client)
    done = pertinax("kill", "7", "--why", "not needed")
    assert (done.code, done.out, done.err) == (0, "", "7: being ended\n")
    assert client.calls[-1] == ("kill", "7", "not needed")
    refused = pertinax("kill", "9")
    assert refused.code == Exit.REFUSED
    assert "clone it" in refused.err
    done = pertinax("kill", "9", "7/main/0", "404", "--json")
    assert done.code == Exit.REFUSED
    results = json.loads(done.out)["results"]
    assert [("error" in one, one["target"]) for one in results] == [
        (True, "9"),
        (False, "7/main/0"),
        (True, "404"),
    ]


def test_cordon_and_settings_are_changes(client: FakeClient, pertinax: Pertinax) -> None:
    fill(client)
    client.answers |= {"cordon": NODES[0], "uncordon": NODES[0]}
    client.answers["configure"] = client.answers["config"]
    pertinax("node", "cordon", "node:a1", "--why", "disk")
    assert client.calls[-1] == ("cordon", "a1", "disk")
    pertinax("node", "uncordon", "a1")
    assert client.calls[-1] == ("uncordon", "a1", "")
    pertinax("cluster", "config", "set", "heartbeat_timeout=20s", "unknown_report_max=5")
    assert client.calls[-1] == (
        "configure",
        {"heartbeat_timeout": "20s", "unknown_report_max": 5},
    )
    assert pertinax("cluster", "config", "get", "heartbeat_timeout").out == "30s\n"
    missing = pertinax("cluster", "config", "get", "heartbeat_timeou")
    assert missing.code == Exit.NOT_FOUND
    assert "did you mean heartbeat_timeout?" in missing.err


def test_logs_are_bytes_for_programs(
    client: FakeClient, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from scheduler.cli.main import run

    client.logs_by_stream["stdout"] = [b"\x80\xff\x00x\r\n", b"\x1b[31m"]
    assert run(["logs", "7", "--tail", "5", "--attempt", "2"]) == 0
    assert capfdbinary.readouterr().out == b"\x80\xff\x00x\r\n\x1b[31m"
    asked = {"attempt": 2, "tail_lines": 5, "follow": False}
    assert client.calls[-1] == ("logs", "7", "stdout", asked)


def test_logs_as_json_keep_every_byte(client: FakeClient, pertinax: Pertinax) -> None:
    client.logs_by_stream["stderr"] = ["ü\n".encode(), b"\x80"]
    lines = [json.loads(one) for one in pertinax("logs", "7", "--stderr", "--json").out.split("\n")
             if one]  # fmt: skip
    assert [(one["offset"], one.get("text"), one.get("base64")) for one in lines] == [
        (0, "ü\n", None),
        (3, None, "gA=="),
    ]


def test_logs_that_are_not_there(
    client: FakeClient, pertinax: Pertinax, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ApiError("7 has not started yet", status=409, code="not_started", hint="later")

    monkeypatch.setattr(FakeClient, "logs", refuse)
    done = pertinax("logs", "7")
    assert (done.code, done.out) == (Exit.REFUSED, "")
    assert "has not started" in done.err


def test_events_are_followed_a_line_each(client: FakeClient, pertinax: Pertinax) -> None:
    client.answers["follow"] = EVENTS
    done = pertinax("events", "--follow", "--object", "7", "--json")
    assert [json.loads(line) for line in done.out.splitlines()] == EVENTS
    assert client.calls[-1] == ("follow", {"after": None, "objects": ("7",)})
    shown = pertinax("events", "-f").out.splitlines()
    assert len(shown) == 3
    assert "Running → Failed" in shown[2]
