"""The options of `submit`: what document they make, and what is refused where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.protocol.specfile import job_from_document
from scheduler.protocol.supported import NOT_YET
from tests.unit.cli.conftest import Done, FakeClient

Pertinax = Callable[..., Done]


def submitted(client: FakeClient, pertinax: Pertinax, *args: str) -> dict[str, Any]:
    done = pertinax("submit", *args)
    assert (done.code, done.err) == (0, ""), done
    document = client.calls[-1][1]
    assert isinstance(document, dict)
    return document


def test_a_bare_command_is_a_job_of_one_task(client: FakeClient, pertinax: Pertinax) -> None:
    document = submitted(client, pertinax, "--", "echo", "-n", "--json", "a b")
    assert document == {
        "kind": "job",
        "tasks": {"main": {"command": ["echo", "-n", "--json", "a b"]}},
    }


def test_the_first_word_ends_the_options(client: FakeClient, pertinax: Pertinax) -> None:
    document = submitted(client, pertinax, "--name", "x", "echo", "--name", "y")
    assert document["name"] == "x"
    assert document["tasks"]["main"]["command"] == ["echo", "--name", "y"]


def test_every_supported_option_makes_a_valid_document(
    client: FakeClient, pertinax: Pertinax, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FROM_HERE", "here")
    (tmp_path / "env").write_text("# comment\nA=file\nB=kept\n\n")
    document = submitted(
        client, pertinax,
        "--name", "n", "--cpu", "0.5", "--memory", "4GiB", "--gpu", "1", "--node", "a1",
        "--queue", "default", "--priority", "-3", "--timeout", "1h", "--pending-timeout", "1m",
        "--stall-timeout", "30s", "--retries", "2", "--node-retries", "5",
        "--retry-on", "oom, 75", "--env-file", "env", "--env", "A=x=y", "--env", "FROM_HERE",
        "--cwd", "sub", "--user", "ana", "--check", "test -s out", "--expect-output", "a",
        "--expect-output", "b", "--accept-exit", "3,4", "--wait-for-capacity", "--grace", "2s",
        "--stop-signal", "INT", "--on-disconnect", "unknown", "--on-lease-end", "kill",
        "--label", "team=x", "--resource", "lic=2", "--key", "k", "--", "true",
    )  # fmt: skip
    assert client.calls[-1][2] == "k"
    job = job_from_document(document)
    task = job.tasks["main"]
    assert (job.name, job.node, job.priority, job.labels) == ("n", "a1", -3, {"team": "x"})
    assert job.wait_for_capacity
    assert task.resources.cpu_millis == 500
    assert task.resources.memory_bytes == 4 << 30
    assert (task.resources.gpu, task.resources.custom) == (1, {"lic": 2})
    assert (task.timeout_ms, task.pending_timeout_ms) == (3_600_000, 60_000)
    assert (task.stall_timeout_ms, task.grace_ms) == (30_000, 2_000)
    assert (task.retry.limit, task.retry.node_limit) == (2, 5)
    assert task.retry.on == ("oom", "75")
    assert task.env == {"A": "x=y", "B": "kept", "FROM_HERE": "here"}
    assert task.cwd == str(tmp_path / "sub")
    assert (task.user, task.stop_signal) == ("ana", "INT")
    assert task.success.check == "test -s out"
    assert task.success.output_nonempty == ("a", "b")
    assert task.exit_codes == {3: "success", 4: "success"}
    assert (task.on_disconnect, task.on_lease_end) == ("unknown", "kill")


@pytest.mark.parametrize(
    ("option", "value", "path"),
    [
        ("--array", "0-9%2", "tasks.main.array"),
        ("--constraint", "a == b", "tasks.main.constraints"),
        ("--requires", "x>=1", "tasks.main.requires"),
        ("--queue", "gpu", "queue"),
        ("--after", "41", "after"),
    ],
)
def test_options_of_later_releases_are_handed_on_to_be_refused_by_name(
    client: FakeClient, pertinax: Pertinax, option: str, value: str, path: str
) -> None:
    document = submitted(client, pertinax, option, value, "--", "true")
    with pytest.raises(Exception, match=NOT_YET) as caught:
        job_from_document(document)
    assert path in str(caught.value)


@pytest.mark.parametrize("option", ["--env-secret", "--notify"])
def test_options_without_a_field_are_refused_here(
    client: FakeClient, pertinax: Pertinax, option: str
) -> None:
    done = pertinax("submit", option, "x", "--", "true")
    assert done.code == 4
    assert f"{option}: " in done.err
    assert NOT_YET in done.err
    assert client.calls == []


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ((), "no command"),
        (("--env", "NOT_SET_ANYWHERE", "--", "x"), "is not set"),
        (("--env", "=x", "--", "x"), "NAME=VALUE"),
        (("--label", "x", "--", "x"), "NAME=VALUE"),
        (("--resource", "a=b", "--", "x"), "no count"),
        (("--env-file", "/no/such", "--", "x"), "/no/such"),
        (("--priority", "high", "--", "x"), "valid integer"),
        (("--no-such-option", "--", "x"), "--no-such-option"),
        (("-f", "x.json", "--", "x"), "exclude each other"),
        (("-f", "x.json", "--cpu", "1"), "-f and --cpu exclude"),
        (("--", "\udc80"), "UTF-8"),
    ],
)
def test_mistakes_of_the_command_line_are_usage_errors(
    client: FakeClient, pertinax: Pertinax, args: tuple[str, ...], part: str
) -> None:
    done = pertinax("submit", *args)
    assert done.code == 2
    assert part in done.err
    assert done.out == ""
    assert client.calls == []
