"""What /proc and the kernel's log say, and that a reused pid is never hit."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from agent.keeper import processes
from agent.keeper.kernel_log import find_kill
from agent.keeper.processes import (
    TICKS_PER_SECOND,
    Identity,
    boot_id,
    is_alive,
    read_marker,
    read_process,
    send_signal,
)
from agent.keeper.watch import read_progress


def test_own_process_is_read() -> None:
    info = read_process(os.getpid())
    assert info is not None
    assert (info.ppid, info.session) == (os.getppid(), os.getsid(0))
    assert info.rss_bytes > 1_000_000
    assert not info.is_zombie


def test_process_that_is_gone_is_none() -> None:
    assert read_process(2**22 + 1) is None
    assert read_marker(2**22 + 1) is None


def test_failed_look_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str, flags: int) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(processes.os, "open", fail)
    with pytest.raises(OSError):
        read_process(os.getpid())


@pytest.mark.parametrize("name", ["plain", "with ) 1 2 (", "a\nb"])
def test_names_of_programs_do_not_confuse(name: str, tmp_path: Path) -> None:
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "1000"])
    try:
        info = read_process(process.pid)
        assert info is not None
        assert info.ppid == os.getpid()
    finally:
        process.kill()
        process.wait()


def test_only_that_very_process_is_signalled() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        info = read_process(process.pid)
        assert info is not None
        assert not send_signal(process.pid, info.start_ticks + 1, signal.SIGKILL)
        assert process.poll() is None
        assert send_signal(process.pid, info.start_ticks, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not send_signal(process.pid, info.start_ticks, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()


def test_identity_needs_the_boot() -> None:
    info = read_process(os.getpid())
    assert info is not None
    identity = Identity(info.pid, info.start_ticks, boot_id())
    assert is_alive(identity, current_boot_id=boot_id())
    assert not is_alive(identity, current_boot_id="another")


def test_marker_is_found_anywhere_and_only_as_a_whole_name() -> None:
    env = {"XPERTINAX_ATTEMPT": "no", "PERTINAX_ATTEMPT": "a.1.0", "PERTINAX_CLUSTER_ID": "c"}
    process = subprocess.Popen(["/bin/sleep", "1000"], env=env)
    other = subprocess.Popen(["/bin/sleep", "1000"], env={"XPERTINAX_ATTEMPT": "a.1.0"})
    try:
        assert read_marker(process.pid) == ("a.1.0", "c")
        assert read_marker(other.pid) is None
    finally:
        for one in (process, other):
            one.kill()
            one.wait()


def test_kernel_s_record_names_the_process_and_its_time() -> None:
    victim = Identity(4242, 100 * TICKS_PER_SECOND, "boot")
    text = b"Out of memory: Killed process 4242 (python) total-vm:1kB"
    assert find_kill(b"3,7,101000000,-;" + text, victim)
    assert find_kill(
        b"3,7,101000000,-;Memory cgroup out of memory: Killed process 4242 (x)", victim
    )
    assert not find_kill(b"3,7,50000000,-;" + text, victim)  # before it began: another's pid
    assert not find_kill(b"3,7,101000000,-;Killed process 42421 (x)", victim)
    assert not find_kill(b"3,7,101000000,-;oom-kill:constraint=NONE,pid=4242", victim)
    assert not find_kill(b"", victim)


def test_progress_is_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"1 10 a\n2 10 b\xff\n\n")
    seen, text = read_progress(os.fsencode(path))
    assert text == "2 10 b\ufffd"
    assert seen[1] == len(path.read_bytes())


def test_progress_that_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name in ("fifo", "link", "none"):
        assert read_progress(os.fsencode(tmp_path / name)) == ((0, 0), "")
