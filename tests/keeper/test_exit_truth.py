"""What the keeper says of an end is what happened (specification 3.6)."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest

from agent.keeper.output import read_stream, stream_size
from tests.keeper.harness import Client, KeeperProcess, eventually

pytestmark = pytest.mark.cluster


def output(shared: KeeperProcess, token: str, stream: str = "stdout") -> bytes:
    directory = shared.keeper_directory / "attempts" / token
    return read_stream(directory, stream, 0, 1 << 20)[1]


def test_exit_zero_is_observed_with_start_and_use(client: Client, token: str) -> None:
    finish = client.run(token, "true")
    assert (finish["cause"], finish["exit_code"], finish["signal"]) == ("exit_zero", 0, None)
    assert finish["evidence"] == "observed"
    assert finish["is_tree_gone"]
    assert not finish["was_signalled"]
    assert finish["start"] == client.event("started", token)["start"]
    assert finish["start"]["worker"] == "42/main/0"
    assert finish["peak_rss_bytes"] > 0
    assert finish["cpu_ms"] >= 0


@pytest.mark.parametrize("code", [1, 126, 127, 255])
def test_exit_codes_are_the_process_s_own(client: Client, token: str, code: int) -> None:
    finish = client.run(token, "sh", "-c", f"exit {code}")
    assert (finish["cause"], finish["exit_code"]) == ("exit_nonzero", code)


def test_accepted_code_is_success(client: Client, token: str) -> None:
    finish = client.run(token, "sh", "-c", "exit 75", accept_exit=[75])
    assert (finish["cause"], finish["exit_code"]) == ("accepted_exit", 75)


@pytest.mark.parametrize("name", ["KILL", "SEGV", "USR1"])
def test_signal_of_another_is_named(client: Client, token: str, name: str) -> None:
    finish = client.run(token, "sh", "-c", f"ulimit -c 0; kill -{name} $$")
    assert (finish["cause"], finish["signal"], finish["exit_code"]) == (
        "signal",
        f"SIG{name}",
        None,
    )
    assert not finish["was_signalled"]


@pytest.mark.parametrize(
    ("argv", "errno_name"),
    [
        (["no-such-command-here"], "ENOENT"),
        (["/etc/passwd"], "EACCES"),
        (["/etc/passwd/x"], "ENOTDIR"),
        (["\0"], "EINVAL"),
    ],
)
def test_what_cannot_be_executed_is_a_launch_error(
    client: Client, token: str, argv: list[str], errno_name: str
) -> None:
    finish = client.run(token, *argv)
    assert finish["cause"] == "launch_error"
    assert errno_name in finish["detail"]
    assert finish["start"]["pid"] is None
    assert finish["exit_code"] is None


def test_text_without_interpreter_is_a_launch_error(client: Client, token: str) -> None:
    finish = client.run(token, "./job", files={"job": "no program\n"})
    assert finish["cause"] == "launch_error"
    assert "ENOEXEC" in finish["detail"]


def test_missing_directory_is_named(client: Client, token: str) -> None:
    finish = client.run(token, "true", cwd="/no/such/place")
    assert finish["cause"] == "launch_error"
    assert "ENOENT: /no/such/place" in finish["detail"]


def test_unknown_user_is_named(client: Client, token: str) -> None:
    finish = client.run(token, "true", user="nobody-of-that-name")
    assert (finish["cause"], "user unknown" in finish["detail"]) == ("launch_error", True)


def test_kill_ends_the_tree_and_is_killed(
    shared: KeeperProcess, client: Client, token: str
) -> None:
    client.shell(token, "sleep 1000 & setsid sleep 1000 & wait")
    eventually(lambda: len(shared.members(token)) == 3)
    assert client.kill(token)["state"] == "running"
    finish = client.finish(token)
    assert (finish["cause"], finish["signal"]) == ("killed", "SIGTERM")
    assert finish["detail"] == "user_cancel by user:ana: typo"
    assert finish["was_signalled"]
    assert not finish["has_exited_before_kill"]
    assert shared.members(token) == []


def test_exit_zero_after_our_signal_is_killed(client: Client, token: str) -> None:
    client.shell(token, "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done")
    client.event("started", token)
    directory = _directory(client, token)
    eventually(lambda: stream_size(directory, "stdout"))
    client.kill(token)
    finish = client.finish(token)
    assert (finish["cause"], finish["exit_code"]) == ("killed", 0)


def test_kill_of_what_ignores_the_signal_becomes_kill(client: Client, token: str) -> None:
    client.shell(token, "trap '' TERM; echo up; while :; do sleep 0.02; done")
    directory = _directory(client, token)
    eventually(lambda: stream_size(directory, "stdout"))
    client.kill(token, grace_ms=60_000)
    client.kill(token, grace_ms=50)  # a shorter grace replaces a longer one
    finish = client.finish(token)
    assert (finish["cause"], finish["signal"]) == ("killed", "SIGKILL")


def test_kill_after_the_end_answers_exited(client: Client, token: str) -> None:
    client.run(token, "true")
    assert client.kill(token)["state"] == "exited"
    assert client.entry(token)["finish"]["cause"] == "exit_zero"


def test_strays_are_ended_before_the_finish(
    shared: KeeperProcess, client: Client, token: str
) -> None:
    finish = client.run(token, "sh", "-c", "setsid sleep 1000 & sleep 1000 & exit 3")
    assert (finish["cause"], finish["exit_code"]) == ("exit_nonzero", 3)
    assert not finish["was_signalled"]
    assert finish["is_tree_gone"]
    assert shared.members(token) == []


def test_stray_without_our_environment_is_found(client: Client, token: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    line = f"env -i setsid sh -c 'echo $$ > {note}.new; mv {note}.new {note}; exec sleep 1000' &"
    finish = client.run(token, "sh", "-c", f"{line} while [ ! -e {note} ]; do sleep 0.01; done")
    assert finish["cause"] == "exit_zero"
    assert finish["is_tree_gone"]
    assert not Path(f"/proc/{note.read_text().strip()}").exists()


def test_stray_that_ignores_the_signal_gets_kill(client: Client, token: str) -> None:
    line = "(trap '' TERM; setsid sleep 1000; sleep 1000) & exit 0"
    assert client.run(token, "sh", "-c", line, grace_ms=100)["cause"] == "exit_zero"


def test_timeout_is_told(client: Client, token: str) -> None:
    finish = client.run(token, "sleep", "1000", timeout_ms=150)
    assert (finish["cause"], finish["was_signalled"]) == ("timeout", True)
    assert "150 ms" in finish["detail"]


def test_silence_is_a_stall(client: Client, token: str) -> None:
    finish = client.run(token, "sh", "-c", "echo 1; exec sleep 1000", stall_timeout_ms=300)
    assert finish["cause"] == "stalled"
    assert finish["stdout"]["size_bytes"] == 2


def test_output_is_exact_and_hashed(shared: KeeperProcess, client: Client, token: str) -> None:
    finish = client.run(token, "sh", "-c", r"printf 'a\000\377b'; printf oops >&2")
    assert output(shared, token) == b"a\0\xffb"
    assert output(shared, token, "stderr") == b"oops"
    assert finish["stdout"] == {
        "size_bytes": 4,
        "sha256": hashlib.sha256(b"a\0\xffb").hexdigest(),
        "is_truncated": False,
    }


def test_output_keeps_head_and_tail(shared: KeeperProcess, client: Client, token: str) -> None:
    line = "seq 1 100000"
    finish = client.run(token, "sh", "-c", line, log_limit_bytes=8_000)
    whole = b"".join(b"%d\n" % number for number in range(1, 100_001))
    assert finish["stdout"]["size_bytes"] == len(whole)
    assert finish["stdout"]["sha256"] == hashlib.sha256(whole).hexdigest()
    assert finish["stdout"]["is_truncated"]
    directory = shared.keeper_directory / "attempts" / token
    assert read_stream(directory, "stdout", 0, 4_000) == (0, whole[:4_000])
    begin, data = read_stream(directory, "stdout", len(whole) - 1_000, 1_000)
    assert begin + len(data) <= len(whole)
    assert data == whole[begin : begin + len(data)]
    kept = sum(path.stat().st_size for path in directory.iterdir())
    assert kept <= 8_000


def test_one_that_holds_the_pipe_cannot_delay_the_finish(client: Client, token: str) -> None:
    # The holder is no process of the attempt: it got the pipe's end and left the tree for ours.
    finish = client.run(token, "sh", "-c", "echo before; sleep 1000 & exit 0", grace_ms=0)
    assert finish["stdout"]["size_bytes"] == 7


def test_silent_attempt_leaves_no_file(shared: KeeperProcess, client: Client, token: str) -> None:
    client.run(token, "true")
    assert not (shared.keeper_directory / "attempts" / token).exists()
    eventually(lambda: not (shared.keeper_directory / "work" / token).exists())


def test_environment_is_exact(shared: KeeperProcess, client: Client, token: str) -> None:
    value = "x" * 100_000 + " $HOME `id` \n'\"\\ é \udcff"
    client.run(token, "env", "-0", env={"A B;C": value})
    listed = dict(item.split(b"=", 1) for item in output(shared, token).split(b"\0") if item)
    assert listed[b"A B;C"] == value.encode("utf-8", "surrogateescape")
    assert listed[b"PERTINAX_JOB"] == b"42"
    assert listed[b"PERTINAX_TASK"] == b"main"
    assert listed[b"PERTINAX_INDEX"] == b"0"
    assert listed[b"PERTINAX_REPLICAS"] == b"1"
    assert listed[b"PERTINAX_ATTEMPT"] == token.encode()
    assert listed[b"PERTINAX_CLUSTER_ID"] == shared.cluster_id.encode()
    assert listed[b"PERTINAX_NODE"] == b"node-a"
    assert listed[b"LANG"] == b"C.UTF-8"
    assert set(listed) == {
        b"A B;C", b"HOME", b"USER", b"LOGNAME", b"LANG", b"PATH",
        *(f"PERTINAX_{name}".encode() for name in (
            "JOB", "TASK", "INDEX", "REPLICAS", "ATTEMPT", "CLUSTER_ID", "NODE", "PROGRESS",
            "WORKDIR",
        )),
    }  # fmt: skip


def test_arguments_are_never_interpreted(shared: KeeperProcess, client: Client, token: str) -> None:
    arguments = ["$(id)", "a b", "", "*", "\n", "ü\udcfe", "-n"]
    client.run(token, "printf", r"%s\0", *arguments)
    expected = [item.encode("utf-8", "surrogateescape") for item in arguments]
    assert output(shared, token).split(b"\0")[:-1] == expected


def test_own_directory_files_stdin_and_umask(
    shared: KeeperProcess, client: Client, token: str
) -> None:
    line = "pwd; cat; ls -l made sub/script; test $PERTINAX_WORKDIR = $PWD; sub/script"
    finish = client.run(
        token,
        "sh",
        "-c",
        "touch made; " + line,
        files={"input": "from a file\n", "sub/script": "#!/bin/sh\nexit 9\n"},
        stdin="input",
        umask=0o077,
    )
    lines = output(shared, token).decode().splitlines()
    assert finish["exit_code"] == 9
    assert lines[0] == str(shared.keeper_directory / "work" / token)
    assert lines[1] == "from a file"
    assert lines[2].startswith("-rw-------")


def test_file_outside_the_directory_is_refused(client: Client, token: str) -> None:
    finish = client.run(token, "true", files={"../evil": "x"})
    assert finish["cause"] == "launch_error"


def test_no_descriptor_and_no_signal_disposition_leaks(
    shared: KeeperProcess, client: Client, token: str
) -> None:
    line = "ls /proc/self/fd | wc -l; grep -E '^Sig(Blk|Ign)' /proc/self/status"
    client.run(token, "sh", "-c", line)
    count, blocked, ignored = output(shared, token).decode().splitlines()
    assert int(count) <= 4  # three streams and the directory that ls reads
    assert int(blocked.split()[1], 16) == 0
    assert int(ignored.split()[1], 16) == 0


def test_attempt_leads_its_own_session(shared: KeeperProcess, client: Client, token: str) -> None:
    client.start(token, "sleep", "1000")
    pid = client.event("started", token)["start"]["pid"]
    assert os.getsid(pid) == os.getpgid(pid) == pid
    os.kill(pid, signal.SIGTERM)
    assert client.finish(token)["cause"] == "signal"


def _directory(client: Client, token: str) -> Path:
    workdir = Path(f"/proc/{client.event('started', token)['start']['pid']}/cwd").readlink()
    return workdir.parents[1] / "attempts" / token
