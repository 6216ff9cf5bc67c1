"""`run`: output as it comes, and the exit code that the job's end means."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.cli import run as module
from scheduler.client.errors import LogLost
from tests.unit.cli.conftest import Done, FakeClient, make_job

Pertinax = Callable[..., Done]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, 0),
        ({"cause": "accepted_exit", "exit_code": 3}, 0),
        ({"phase": "Failed", "cause": "exit_nonzero", "exit_code": 7}, 7),
        ({"phase": "Failed", "cause": "output_check", "exit_code": 0}, 1),
        ({"phase": "Failed", "cause": "signal", "exit_code": None, "signal": "SIGKILL"}, 137),
        ({"phase": "Failed", "cause": "signal", "exit_code": None, "signal": "SIGTERM"}, 143),
        ({"phase": "Failed", "cause": "oom", "exit_code": None}, 137),
        ({"phase": "Failed", "cause": "timeout", "exit_code": None}, 124),
        ({"phase": "Failed", "cause": "timeout", "exit_code": 0}, 124),
        ({"phase": "Failed", "cause": "stalled", "exit_code": None}, 124),
        ({"phase": "Failed", "cause": "launch_error", "why": "ENOENT: /x: No such file"}, 127),
        ({"phase": "Failed", "cause": "launch_error", "why": "EACCES: /x: denied"}, 126),
        ({"phase": "Failed", "cause": "launch_failed", "exit_code": None}, 125),
        ({"phase": "Failed", "cause": "node_lost", "exit_code": None}, 125),
        ({"phase": "Failed", "cause": "node_disconnected", "exit_code": None}, 125),
        ({"phase": "Failed", "cause": "status_lost", "exit_code": None}, 125),
        ({"phase": "Killed", "cause": "user_cancel", "exit_code": 0}, 125),
        ({"phase": "Killed", "cause": "resource_overuse", "exit_code": None}, 125),
    ],
)
def test_exit_codes(fields: dict[str, Any], code: int) -> None:
    assert module.exit_code_of(make_job(1, **fields)) == code


def test_both_streams_are_passed_on_and_the_exit_code_too(
    client: FakeClient, pertinax: Pertinax
) -> None:
    client.add(1, phase="Failed", cause="exit_nonzero", exit_code=7)
    client.logs_by_stream = {"stdout": [b"hello\n", b"again\n"], "stderr": [b"oops\n"]}
    done = pertinax("run", "--name", "x", "--", "sh", "-c", "exit 7")
    assert done == Done(7, "hello\nagain\n", "oops\n")
    assert client.calls[0][1]["name"] == "x"


def test_the_signal_is_asked_of_the_attempt(client: FakeClient, pertinax: Pertinax) -> None:
    client.add(1, phase="Failed", cause="signal", exit_code=None)
    client.answers["attempts"] = {"attempts": [{"signal": None}, {"signal": "SIGSEGV"}]}
    assert pertinax("run", "--", "x").code == 139


def test_an_end_that_the_job_did_not_choose_is_explained(
    client: FakeClient, pertinax: Pertinax
) -> None:
    client.add(1, phase="Killed", cause="user_cancel", by="user:ben", why="not needed")
    done = pertinax("run", "--", "x")
    assert done.code == 125
    assert done.err == "job 1: Killed user_cancel, by user:ben, not needed (pertinax history 1)\n"


def test_json_is_one_document_without_the_output(client: FakeClient, pertinax: Pertinax) -> None:
    client.add(1)
    client.logs_by_stream = {"stdout": [b"hello\n"]}
    done = pertinax("run", "--json", "--", "echo", "hello")
    assert (done.code, json.loads(done.out)["id"]) == (0, 1)


def test_lost_output_is_said_and_changes_no_exit_code(
    client: FakeClient, pertinax: Pertinax, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.add(1)
    kept = {"bytes": 5}
    client.answers["attempts"] = {"attempts": [{"stdout": kept, "stderr": {"bytes": 0}}]}

    def lose(*_: Any, **__: Any) -> Any:
        raise LogLost("missing from a1", code="log_missing", offset=0)

    monkeypatch.setattr(FakeClient, "logs", lose)
    done = pertinax("run", "--", "x")
    assert done == Done(0, "", "(its stdout is not complete: missing from a1)\n")


def test_when_nobody_reads_the_output_any_more_the_job_is_left_alone(
    client: FakeClient, pertinax: Pertinax, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(*_: Any) -> None:
        raise BrokenPipeError

    gone = threading.Event()
    wait = FakeClient.wait

    def wait_for_both(self: FakeClient, *args: Any, **options: Any) -> Any:
        assert gone.wait(30)
        return wait(self, *args, **options)

    class Follower(module._Follower):
        def run(self) -> None:
            super().run()
            if self.is_reader_gone:
                gone.set()

    monkeypatch.setattr(module, "_Follower", Follower)
    monkeypatch.setattr(FakeClient, "wait", wait_for_both)
    monkeypatch.setattr("scheduler.cli.output.OutputWriter.write", close)
    # The descriptor of standard output is the test runner's here: it must not be replaced.
    monkeypatch.setattr("scheduler.cli.main._broken_pipe", lambda: 141)
    client.logs_by_stream["stdout"] = [b"x"]
    done = pertinax("run", "--", "yes")  # it stays Pending
    assert done.code == 141
    assert "job 1 goes on" in done.err


def test_ctrl_c_detaches_and_says_how_to_come_back(
    client: FakeClient, pertinax: Pertinax, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.answers["wait"] = KeyboardInterrupt()
    monkeypatch.setattr(module, "sleep", lambda _: None)
    done = pertinax("run", "--", "x")
    assert done.code == 130
    assert "pertinax logs -f 1" in done.err
    assert "pertinax wait 1" in done.err
    assert not [call for call in client.calls if call[0] == "kill"]


def test_a_second_ctrl_c_kills_the_job(
    client: FakeClient, pertinax: Pertinax, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    client.answers["wait"] = KeyboardInterrupt()
    monkeypatch.setattr(module, "sleep", interrupt)
    assert pertinax("run", "--", "x").code == 130
    assert [call for call in client.calls if call[0] == "kill"] == [
        ("kill", "1", "interrupted by Ctrl-C")
    ]


def test_without_a_cluster_nothing_is_started_unless_asked(
    pertinax: Pertinax, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("PERTINAX_CLUSTER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    started: list[Any] = []
    monkeypatch.setattr("scheduler.cli.local.ensure_up", started.append)
    assert pertinax("run", "--", "x").code == 6
    assert started == []
    assert pertinax("run", "--up", "--", "x").code == 6  # the scripted start started nothing
    assert started == [tmp_path / ".pertinax"]
