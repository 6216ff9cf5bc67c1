"""A job from submit to its known end, on one shared cluster that stays healthy throughout."""

from __future__ import annotations

import json
import os
import socket
import ssl
import uuid

import pytest

from tests.cluster.harness import LocalCluster, pids_with, start_ticks, wait_until


def test_three_controllers_elect_and_two_agents_join(cluster: LocalCluster) -> None:
    status = cluster.status()
    assert len(status["members"]) == 3
    assert status["quorum"]
    assert status["leader"]
    assert [n["phase"] for n in cluster.nodes()] == ["Online", "Online"]


def test_run_prints_the_output_and_exits_with_the_code_of_the_job(cluster: LocalCluster) -> None:
    assert cluster.run("run", "--", "echo", "hello").stdout == "hello\n"
    cluster.run("run", "--", "sh", "-c", "exit 7", codes=(7,))
    cluster.run("run", "--", "sh", "-c", "kill -9 $$", codes=(137,))


def test_the_record_of_a_failed_job_is_complete(cluster: LocalCluster) -> None:
    job = cluster.submit("--name", "first", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    record = cluster.wait_final(job)
    assert (record["phase"], record["cause"], record["exit_code"]) == ("Failed", "exit_nonzero", 3)
    [attempt] = cluster.attempts(job)
    assert attempt["evidence"] == "observed"
    assert all(attempt[key] for key in ("node", "pid", "started_at", "ended_at", "uid"))
    assert (attempt["stdout"]["bytes"], attempt["stderr"]["bytes"]) == (4, 4)
    assert cluster.run("logs", job).stdout == "out\n"
    assert cluster.run("logs", job, "--stderr").stdout == "err\n"
    steps = [(e["from"], e["to"]) for e in cluster.json("history", job)["events"]]
    assert ("Pending", "Running") in steps
    assert ("Running", "Failed") in steps


def test_the_exit_statuses_of_all_kinds_are_told_apart(cluster: LocalCluster) -> None:
    wanted = {
        ("sh", "-c", "exit 0"): ("Succeeded", "exit_zero"),
        ("sh", "-c", "exit 127"): ("Failed", "exit_nonzero"),
        ("sh", "-c", "kill -TERM $$"): ("Failed", "signal"),
        ("/no/such/program",): ("Failed", "launch_error"),
        ("/etc/passwd",): ("Failed", "launch_error"),
    }
    jobs = {cluster.submit("--", *command): end for command, end in wanted.items()}
    for job, end in jobs.items():
        record = cluster.wait_final(job)
        assert (record["phase"], record["cause"]) == end


def test_arguments_and_environment_arrive_unchanged(cluster: LocalCluster) -> None:
    words = ["a b", "", "q'\"$HOME;`x`", "ü–💡", "-x", "tab\there", "new\nline", "*"]
    code = "import os,sys,json; print(json.dumps([sys.argv[1:], os.environ['ODD']]))"
    done = cluster.run("run", "--env", "ODD=a b;$c 'd'", "--", "python3", "-c", code, *words)
    assert json.loads(done.stdout) == [words, "a b;$c 'd'"]


def test_a_kill_ends_the_whole_tree_and_says_who_and_why(cluster: LocalCluster) -> None:
    mark = f"MARK{uuid.uuid4().hex}"
    script = f"setsid env A={mark} sleep 900 & (env B={mark} sleep 900 &); env C={mark} sleep 900"
    job = cluster.submit("--", "sh", "-c", script)
    wait_until(lambda: len(pids_with(f"={mark}\0")) == 3, "the tree runs")
    cluster.run("kill", job, "--why", "not needed")
    record = cluster.wait_final(job)
    assert (record["phase"], record["cause"], record["why"]) == (
        "Killed",
        "user_cancel",
        "not needed",
    )
    assert record["by"].startswith("user:")
    wait_until(lambda: not pids_with(mark), "no process of the tree is left")


def test_the_end_by_our_time_limit_is_no_success(cluster: LocalCluster) -> None:
    script = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    job = cluster.submit("--timeout", "1s", "--grace", "1s", "--", "sh", "-c", script)
    record = cluster.wait_final(job)
    assert (record["phase"], record["cause"]) == ("Failed", "timeout")


def test_one_key_gives_one_job(cluster: LocalCluster) -> None:
    key = uuid.uuid4().hex
    assert len({cluster.submit("--key", key, "--", "true") for _ in range(3)}) == 1
    cluster.run("submit", "--key", key, "--", "false", codes=(4,))


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("job", "999999"), 3, "999999"),
        (("logs", "999999"), 3, "999999"),
        (("kill", "999999"), 3, "999999"),
        (("submit",), 2, ""),
        (("frobnicate",), 2, "frobnicate"),
        (("submit", "--cpu", "many", "--", "true"), 7, "many"),
        (("submit", "--timeout", "soon", "--", "true"), 7, "soon"),
        (("job", "not-an-id"), 2, "not-an-id"),
    ],
)
def test_mistakes_get_a_clear_answer(
    cluster: LocalCluster, args: tuple[str, ...], code: int, words: str
) -> None:
    done = cluster.run(*args, codes=(code,))
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_is_an_object_with_json(cluster: LocalCluster) -> None:
    done = cluster.run("job", "999999", "--json", codes=(3,))
    error = json.loads(done.stderr)["error"]
    assert error["code"]
    assert error["message"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no: [yaml", "yaml"),
        ('{"kind": "job", "tasks": {"main": {"comand": ["x"]}}}', "comand"),
        ('{"kind": "job", "tasks": {}}', "tasks"),
        ('{"kind": "job", "tasks": {"main": {"command": ["x"], "timeout": "soon"}}}', "timeout"),
    ],
)
def test_a_bad_specification_names_the_place(cluster: LocalCluster, text: str, words: str) -> None:
    path = cluster.directory / "bad.yaml"
    path.write_text(text)
    done = cluster.run("submit", "-f", path, codes=(7,))
    assert words in done.stderr.lower()


def test_garbage_on_every_port_disturbs_nobody(cluster: LocalCluster) -> None:
    leader = cluster.leader()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for member in cluster.info()["controllers"]:
        http = int(member["http"].rpartition(":")[2])
        for port in (member["raft_port"], member["agents_port"], http):
            for junk in (
                b"\x00\x00\x00\x10" + b"\x80" * 16,
                os.urandom(512),
                b"GET / HTTP/1.0\r\n\r\n",
            ):
                with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
                    raw.sendall(junk)
            with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
                try:
                    with context.wrap_socket(raw) as tls:
                        tls.sendall(b"\xff" * 64)
                except OSError:
                    pass  # refused in the handshake, for want of a certificate
    assert cluster.run("run", "--", "echo", "fine").stdout == "fine\n"
    assert cluster.leader() == leader


def test_calls_need_the_token(cluster: LocalCluster) -> None:
    port = int(cluster.info()["controllers"][0]["http"].rpartition(":")[2])
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        with context.wrap_socket(raw) as tls:
            tls.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert tls.recv(100).startswith(b"HTTP/1.1 401")


def test_binary_output_arrives_as_bytes(cluster: LocalCluster) -> None:
    job = cluster.submit("--", "sh", "-c", r"printf '\200\377\000x'")
    cluster.wait_final(job)
    out = cluster.run("logs", job, "--raw").stdout
    assert out.encode("utf-8", "surrogateescape") == b"\x80\xff\x00x"


def test_a_follower_of_the_log_sees_all_of_it(cluster: LocalCluster) -> None:
    job = cluster.submit("--", "sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.2; done")
    done = cluster.run("logs", job, "-f")
    assert done.stdout == "1\n2\n3\n4\n5\n"


def test_a_running_job_has_a_real_process(cluster: LocalCluster) -> None:
    job = cluster.submit("--", "sleep", "600")
    attempt = cluster.wait_running(job)
    assert start_ticks(attempt["pid"]) is not None
    assert attempt["decided_by"]["rule"]
    assert cluster.json("jobs", "--overdue")["jobs"] == []
    cluster.run("kill", job)
    wait_until(lambda: start_ticks(attempt["pid"]) is None, "its process is gone")
