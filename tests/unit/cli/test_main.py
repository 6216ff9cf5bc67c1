"""The frame: errors in their two forms, exit codes, commands that are not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from scheduler.cli import main as entry
from scheduler.cli.failure import Exit, failure_of
from scheduler.client.errors import (
    ApiError,
    BadAnswer,
    ClientError,
    LogLost,
    NoLeader,
    Unreachable,
    WaitTimeout,
)
from scheduler.local.errors import LocalError
from scheduler.protocol.errors import InvalidSpec, Mistake
from tests.unit.cli.conftest import Done, FakeClient

Pertinax = Callable[..., Done]


def commands() -> dict[str, click.Command]:
    """Every command, with those inside groups."""
    found: dict[str, click.Command] = {}

    def visit(path: str, command: click.Command) -> None:
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                visit(f"{path} {name}".strip(), inner)
        else:
            found[path] = command

    context = click.Context(entry.cli)
    for name in entry.COMMANDS:
        command = entry.cli.get_command(context, name)
        assert command is not None
        visit(name, command)
    return found


def test_every_command_takes_json() -> None:
    missing = [
        path
        for path, command in commands().items()
        if not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert missing == []


def test_what_the_machine_refuses_is_told_and_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        (tmp_path / "file" / "below").mkdir()
    failure = failure_of(caught.value)
    assert failure is not None
    assert (failure.code, failure.exit_code) == ("os_error", Exit.FAILED)
    assert str(tmp_path / "file" / "below") in failure.what
    assert failure_of(ValueError("a bug")) is None


SPECIFIED = """
    submit run validate plan jobs job workers attempts history why logs wait stop resume kill hold
    release retry clone delete accept priority workflow schedule queue nodes node addon cluster
    token whoami audit events metrics top web completion version drill verify wal orphans incidents
    usage config update controller agent up down
"""


def test_every_command_of_the_specification_is_there_or_refused_by_name() -> None:
    assert set(SPECIFIED.split()) == set(entry.COMMANDS) | set(entry.NOT_YET)


@pytest.mark.parametrize("name", [*entry.NOT_YET, "cluster backup", "cluster transfer"])
def test_commands_of_later_releases_are_refused(pertinax: Pertinax, name: str) -> None:
    done = pertinax(*name.split(), "42", "--some-option", "--json")
    assert done.code == Exit.REFUSED
    assert json.loads(done.err)["error"]["code"] == "not_supported"
    assert name in done.err


def test_an_error_is_three_lines_for_people(client: FakeClient, pertinax: Pertinax) -> None:
    done = pertinax("job", "999")
    assert (done.code, done.out) == (Exit.NOT_FOUND, "")
    lines = done.err.splitlines()
    assert len(lines) == 3
    assert lines[0] == "error: job 999 does not exist"
    assert lines[1].startswith("  why: ")
    assert lines[2].startswith("  do:  ")


def test_an_error_is_an_object_for_programs(client: FakeClient, pertinax: Pertinax) -> None:
    done = pertinax("job", "999", "--json")
    assert (done.code, done.out) == (Exit.NOT_FOUND, "")
    error = json.loads(done.err)["error"]
    assert set(error) == {"code", "message", "hint", "details"}
    assert (error["code"], error["details"]["status"]) == ("not_found", 404)


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("jbos",), "did you mean 'jobs'?"),
        (("qqqq",), "--help"),
        (("jobs", "--stat", "x"), "--help"),
        (("job",), "pertinax job --help"),
        (("jobs", "--limit", "0"), "pertinax jobs --help"),
        (("jobs", "--state", "Done"), "Pending,Running"),
        (("job", "abc"), "@last"),
        (("wait", "1", "--timeout", "soon"), "30s"),
        (("cluster", "config", "set", "x"), "heartbeat_timeout=30s"),
        (("up", "--only", "c1", "--fresh"), "--only c1"),
        (("completion", "tcsh"), "--help"),
    ],
)
def test_mistakes_of_the_command_line_are_usage_errors(
    client: FakeClient, pertinax: Pertinax, args: tuple[str, ...], hint: str
) -> None:
    done = pertinax(*args)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert hint in done.err.splitlines()[2]
    assert client.calls == []


def test_usage_errors_are_objects_when_json_was_asked_for(pertinax: Pertinax) -> None:
    done = pertinax("jobs", "--limit", "x", "--json")
    assert done.code == Exit.USAGE
    assert json.loads(done.err)["error"]["code"] == "usage"


def test_json_of_the_jobs_own_words_does_not_count(client: FakeClient, pertinax: Pertinax) -> None:
    assert pertinax("submit", "--gpu", "x", "--", "a", "--json").err.startswith("error: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError("x", status=400, code="bad_request"), Exit.USAGE),
        (ApiError("x", status=401, code="unauthenticated"), Exit.NOT_ALLOWED),
        (ApiError("x", status=403, code="forbidden"), Exit.NOT_ALLOWED),
        (ApiError("x", status=404, code="not_found"), Exit.NOT_FOUND),
        (ApiError("x", status=409, code="final"), Exit.REFUSED),
        (ApiError("x", status=412, code="version"), Exit.REFUSED),
        (ApiError("x", status=413, code="too_large"), Exit.INVALID),
        (ApiError("x", status=422, code="invalid_spec"), Exit.INVALID),
        (ApiError("x", status=429, code="overloaded"), Exit.UNAVAILABLE),
        (ApiError("x", status=500, code="internal"), Exit.FAILED),
        (ApiError("x", status=503, code="low_disk"), Exit.UNAVAILABLE),
        (NoLeader("x", code="no_quorum"), Exit.UNAVAILABLE),
        (Unreachable("x"), Exit.UNAVAILABLE),
        (BadAnswer("x"), Exit.FAILED),
        (WaitTimeout("x", []), Exit.TIMED_OUT),
        (LogLost("x", code="missing", offset=0), Exit.NOT_FOUND),
        (LogLost("x", code="node_unreachable", offset=0), Exit.UNAVAILABLE),
        (InvalidSpec((Mistake("a", "b"),)), Exit.INVALID),
        (LocalError("x", why="y", hint="z", kind="refused", code="c"), Exit.REFUSED),
        (LocalError("x", why="y", hint="z", kind="unavailable", code="c"), Exit.UNAVAILABLE),
    ],
)  # fmt: skip
def test_exit_codes(error: Exception, code: Exit) -> None:
    failure = failure_of(error)
    assert failure is not None
    assert failure.exit_code == code
    assert all((failure.what, failure.why, failure.hint, failure.code))


def test_an_unknown_outcome_is_said() -> None:
    error = Unreachable("no controller answered", outcome_unknown=True)
    failure = failure_of(error)
    assert failure is not None
    assert "may or may not" in failure.why
    assert failure.document()["error"]["details"]["outcome_unknown"] is True


def test_all_mistakes_of_a_specification_are_told(client: FakeClient, pertinax: Pertinax) -> None:
    mistakes = [{"path": f"tasks.{n}", "message": "bad", "hint": "good"} for n in "ab"]
    client.answers["submit"] = ApiError(
        "x", status=422, code="invalid_spec", details={"mistakes": mistakes}
    )
    done = pertinax("submit", "--", "true")
    assert done.code == Exit.INVALID
    assert "tasks.a: bad (good); tasks.b: bad (good)" in done.err
    document = json.loads(pertinax("submit", "--json", "--", "true").err)
    assert document["error"]["details"]["mistakes"] == mistakes


def test_a_bug_is_not_dressed_up_as_a_failure(client: FakeClient, pertinax: Pertinax) -> None:
    client.answers["nodes"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        pertinax("nodes")


def test_ctrl_c_ends_with_130(
    client: FakeClient, pertinax: Pertinax, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: FakeClient) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeClient, "nodes", interrupt)
    assert pertinax("nodes").code == Exit.INTERRUPTED


def test_a_client_error_cannot_colour_the_terminal(client: FakeClient, pertinax: Pertinax) -> None:
    client.answers["nodes"] = ClientError("\x1b[31mred")
    assert "\x1b" not in pertinax("nodes").err


def test_version_and_help(pertinax: Pertinax) -> None:
    assert pertinax("version").out.startswith("pertinax ")
    assert json.loads(pertinax("version", "--json").out)["version"]
    assert pertinax("--version").out.startswith("pertinax ")
    shown = pertinax("--help").out
    assert all(f"  {name} " in shown for name in entry.COMMANDS)
    assert pertinax().out == shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(pertinax: Pertinax, shell: str) -> None:
    assert "_PERTINAX_COMPLETE" in pertinax("completion", shell).out


def test_completion_offers_ids_names_and_nodes(client: FakeClient) -> None:
    from click.shell_completion import ShellComplete

    client.add(41, name="train")
    client.add(42)
    client.answers["nodes"] = {"nodes": [{"name": "a1"}, {"name": "b1"}]}
    shell = ShellComplete(entry.cli, {}, "pertinax", "_PERTINAX_COMPLETE")
    jobs = [item.value for item in shell.get_completions(["logs"], "4")]
    assert jobs == ["42", "41"]
    assert [i.value for i in shell.get_completions(["logs"], "name:")] == ["name:train"]
    assert [i.value for i in shell.get_completions(["node", "show"], "a")] == ["a1"]


def test_completion_is_silent_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from click.shell_completion import ShellComplete

    monkeypatch.setenv("PERTINAX_CLUSTER", str(tmp_path))
    shell = ShellComplete(entry.cli, {}, "pertinax", "_PERTINAX_COMPLETE")
    assert shell.get_completions(["logs"], "4") == []
