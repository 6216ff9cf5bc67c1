"""Orders and their sessions, records and their retention (specification 3.2, 3.5)."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.keeper.output import read_stream
from tests.keeper.harness import Client, KeeperProcess, eventually

pytestmark = pytest.mark.cluster


def test_order_of_an_earlier_session_is_void(keeper: KeeperProcess) -> None:
    client = keeper.start()
    assert client.ask("void", below_session=5)["voided"] == []
    assert client.start("job", "true", session=4)["code"] == "voided"
    keeper.kill()
    client = keeper.start()
    assert client.start("job", "true", session=4)["code"] == "voided"
    assert client.run("job", "true", session=5)["cause"] == "exit_zero"


def test_started_orders_survive_the_void(client: Client, token: str) -> None:
    client.start(token, "sleep", "1000", session=1)
    client.event("started", token)
    assert token not in client.ask("void", below_session=1)["voided"]
    assert client.entry(token)["state"] == "running"
    client.kill(token)
    client.finish(token)


def test_asked_and_unknown_means_never(keeper: KeeperProcess) -> None:
    client = keeper.start()
    assert client.ask("status", token="job")["state"] == "unknown"
    assert client.start("job", "true", session=9)["code"] == "voided"
    keeper.kill()
    client = keeper.start()
    assert client.start("job", "true", session=9)["code"] == "voided"


def test_status_of_a_known_one_is_its_entry(client: Client, token: str) -> None:
    client.run(token, "sh", "-c", "exit 3")
    answer = client.ask("status", token=token)
    assert (answer["state"], answer["finish"]["exit_code"]) == ("exited", 3)


def test_same_order_twice_runs_once(client: Client, token: str, tmp_path: Path) -> None:
    line = f"echo ran >> {tmp_path}/runs"
    client.shell(token, line)
    assert client.shell(token, line)["code"] == "duplicate"
    client.finish(token)
    answer = client.shell(token, line)
    assert (answer["code"], answer["state"]) == ("duplicate", "exited")
    assert (tmp_path / "runs").read_text() == "ran\n"


@pytest.mark.parametrize(
    "fields",
    [
        {"token": "../evil"},
        {"token": "a/b"},
        {"work": "none"},
        {"work": {"attempt": "42/main/0#1", "argv": []}},
        {"work": {"attempt": "nonsense", "argv": ["true"]}},
        {"work": {"attempt": "42/main/0#1", "argv": ["true"], "stop_signal": "NOPE"}},
        {"work": {"attempt": "42/main/0#1", "argv": ["true"], "files": {"x": "y" * 1_100_000}}},
        {"session": None},
    ],
)
def test_bad_order_is_refused(client: Client, token: str, fields: dict[str, object]) -> None:
    order = {
        "token": token,
        "session": 1,
        "lease_until_boottime_ms": 1 << 60,
        "work": {"attempt": "42/main/0#1", "argv": ["true"]},
    }
    answer = client.ask("start", **(order | fields))
    assert (answer["ok"], answer["code"]) == (False, "bad_order")
    assert client.ask("no-such-request")["code"] == "bad_order"


def test_full_disk_refuses_new_work_and_finishes_the_old(tmp_path: Path) -> None:
    keeper = KeeperProcess(tmp_path, "--limits", "sampled", "--disk-low-bytes", str(1 << 62))
    try:
        client = keeper.start()
        assert client.attached["is_disk_low"]
        assert client.start("job", "true")["code"] == "disk_low"
    finally:
        keeper.end()


def test_forgotten_record_goes_after_its_retention_with_its_output(keeper: KeeperProcess) -> None:
    client = keeper.start()
    client.run("old", "sh", "-c", "echo x; touch left")
    client.run("kept", "echo", "x")
    client.ask("forget", tokens=["old"])
    assert client.entry("old")["is_forgotten"]
    client.ask("settings", log_retention_ms=0)
    client.until(lambda: "old" not in {a["token"] for a in client.ask("list")["attempts"]})
    for place in ("attempts", "work"):
        eventually(lambda: not (keeper.keeper_directory / place / "old").exists())  # noqa: B023
    assert client.entry("kept")["state"] == "exited"


def test_logs_are_deleted_when_asked(shared: KeeperProcess, client: Client, token: str) -> None:
    client.run(token, "echo", "x")
    directory = shared.keeper_directory / "attempts" / token
    assert directory.exists()
    client.ask("delete_logs", tokens=[token])
    eventually(lambda: not directory.exists())
    assert client.entry(token)["state"] == "exited"


def test_many_short_ones_leave_nothing_open(shared: KeeperProcess, client: Client) -> None:
    assert shared.process is not None
    directory = Path(f"/proc/{shared.process.pid}/fd")
    before = len(list(directory.iterdir()))
    tokens = [f"many.{number}" for number in range(200)]
    for token in tokens:
        client.send(
            "start",
            token=token,
            session=1,
            lease_until_boottime_ms=1 << 60,
            work={"attempt": "42/main/0#1", "argv": ["true"]},
        )
    causes = {client.finish(token)["cause"] for token in tokens}
    assert causes == {"exit_zero"}
    # The journal may have opened its next file meanwhile.
    eventually(lambda: len(list(directory.iterdir())) <= before + 2)
    children = Path(f"/proc/{shared.process.pid}/task/{shared.process.pid}/children")
    assert not children.exists() or children.read_text() == ""


@pytest.fixture
def reachable() -> Iterator[KeeperProcess]:
    """A keeper in a directory that other users may pass through."""
    with tempfile.TemporaryDirectory(prefix="keeper-") as name:
        Path(name).chmod(0o711)
        keeper = KeeperProcess(Path(name), "--limits", "sampled")
        yield keeper
        keeper.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as another user")
def test_another_user_s_attempt_has_no_way_back(reachable: KeeperProcess) -> None:
    client = reachable.start()
    line = "id -u; id -g; grep NoNewPrivs /proc/self/status; touch mine; echo x > /dev/stdout; cat"
    client.shell("job", line, user="nobody", files={"in": "input\n"}, stdin="in")
    finish = client.finish("job")
    directory = reachable.keeper_directory / "attempts" / "job"
    lines = read_stream(directory, "stdout", 0, 4096)[1].decode().split("\n")
    nobody = pwd.getpwnam("nobody")
    assert lines[:2] == [str(nobody.pw_uid), str(nobody.pw_gid)]
    assert lines[2].split() == ["NoNewPrivs:", "1"]
    assert lines[3:5] == ["x", "input"]
    assert finish["cause"] == "exit_zero"
    failed = client.run("stdin", "true", user="nobody", stdin="/etc/shadow")
    assert failed["cause"] == "launch_error"
    assert "EACCES" in failed["detail"]
    missing = client.run("missing", "no-such-command", user="nobody")
    assert (missing["cause"], "ENOENT" in missing["detail"]) == ("launch_error", True)
