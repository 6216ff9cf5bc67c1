"""Starting one process: about as cheap as `posix_spawn`, and truthful about why it failed.

`subprocess` runs the vfork and the exec in C and brings errno back over a pipe that exec closes
(measured here: 960 starts/s). What needs code between fork and exec (another user, a cgroup) takes
an ordinary fork (360/s) and has a second such pipe for the stage that failed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.keeper.environment import Account
from agent.keeper.errors import LaunchFailure

#: Errors that are the node's fault and heal with time; every other one is the attempt's own.
NODE_ERRNOS: Final = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.EAGAIN,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EIO,
        errno.EDQUOT,
        errno.EROFS,
        errno.ENOBUFS,
    }
)
_PR_SET_NO_NEW_PRIVS: Final = 38
_FAILURE: Final = struct.Struct("=BI")
_STAGES: Final = ("join its cgroup", "change user", "enter its directory", "open its stdin")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process to start. Descriptors stay the caller's."""

    argv: tuple[bytes, ...]
    env: dict[bytes, bytes]
    cwd: bytes
    account: Account
    stdout: int
    stderr: int
    umask: int | None = None
    #: Opened as the attempt's user; /dev/null for None. A relative path is relative to `cwd`.
    stdin: bytes | None = None
    #: Open cgroup.procs files to join before the exec.
    cgroup_fds: tuple[int, ...] = ()
    #: Soft limit of open files the process gets (the keeper raises its own).
    files_max: tuple[int, int] | None = None


def cause_of_errno(number: int | None) -> str:
    """launch_failed when the node is to blame, else launch_error."""
    return "launch_failed" if number in NODE_ERRNOS else "launch_error"


def failure_of(error: OSError, subject: bytes | str) -> LaunchFailure:
    """The failure that `error` means; `subject` is the path it is about."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    text = os.fsdecode(subject)
    return LaunchFailure(cause_of_errno(error.errno), f"{name}: {text}: {error.strerror}")


def launch(request: Launch) -> int:
    """Start the process in its own session and return its pid.

    Raises LaunchFailure; then no process is left. Blocks until the exec. Loop thread only.
    """
    if request.account.is_other or request.cgroup_fds:
        return _launch_prepared(request)
    stdin = _open_stdin(request)
    try:
        return _spawn(request, stdin, cwd=request.cwd, prepare=None)
    finally:
        os.close(stdin)


def _spawn(
    request: Launch, stdin: int, *, cwd: bytes | None, prepare: Callable[[], None] | None
) -> int:
    try:
        process = subprocess.Popen(
            request.argv,
            env=request.env,
            cwd=cwd,
            stdin=stdin,
            stdout=request.stdout,
            stderr=request.stderr,
            close_fds=True,
            start_new_session=True,
            umask=-1 if request.umask is None else request.umask,
            preexec_fn=prepare,  # noqa: PLW1509  one thread forks; the other only syncs
        )
    except OSError as error:
        subject = error.filename if error.filename is not None else request.argv[0]
        raise failure_of(error, subject) from None
    except ValueError as error:
        raise LaunchFailure("launch_error", f"EINVAL: {error}") from None
    # The keeper reaps all its children by itself; without a return code the object would complain.
    process.returncode = 0
    if request.files_max is not None:
        _limit_files(process.pid, request.files_max)
    return process.pid


def _limit_files(pid: int, limits: tuple[int, int]) -> None:
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    except (ProcessLookupError, PermissionError):
        return  # gone already, or of another user: it keeps the keeper's higher limit


def _open_stdin(request: Launch) -> int:
    path = b"/dev/null" if request.stdin is None else os.path.join(request.cwd, request.stdin)  # noqa: PTH118
    try:
        # Without O_NONBLOCK opening a FIFO would stop the keeper.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise failure_of(error, path) from None
    except ValueError as error:
        raise LaunchFailure("launch_error", f"EINVAL: stdin: {error}") from None
    os.set_blocking(fd, True)
    return fd


def _launch_prepared(request: Launch) -> int:
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = _spawn(request, null, cwd=None, prepare=lambda: _prepare(request, writer))
        os.close(writer)
        writer = -1
        # Empty when the exec happened: it closed the pipe.
        report = os.read(reader, _FAILURE.size)
    finally:
        os.close(null)
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if len(report) < _FAILURE.size:
        return pid
    os.waitpid(pid, 0)
    stage, number = _FAILURE.unpack(report)
    subjects = (b"cgroup", request.account.name.encode(), request.cwd, request.stdin or b"")
    failure = failure_of(OSError(number, os.strerror(number)), subjects[stage])
    raise LaunchFailure(failure.cause, f"{failure.detail} (could not {_STAGES[stage]})")


def _prepare(request: Launch, writer: int) -> None:
    """Between fork and exec; a failure is told over `writer` and ends the child."""
    stage = 0
    try:
        for fd in request.cgroup_fds:
            os.write(fd, b"0")
        stage = 1
        if request.account.is_other:
            _change_user(request.account)
        stage = 2
        os.chdir(request.cwd)
        stage = 3
        if request.stdin is not None:
            fd = os.open(request.stdin, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            os.set_blocking(fd, True)
            os.dup2(fd, 0)
            os.close(fd)
    except OSError as error:
        os.write(writer, _FAILURE.pack(stage, error.errno or errno.EINVAL))
        os._exit(127)


def _change_user(account: Account) -> None:
    os.setgroups(account.groups)
    os.setgid(account.gid)
    os.setuid(account.uid)
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    # A drop that can be undone is none.
    try:
        os.setuid(0)
    except PermissionError:
        return
    raise OSError(errno.EPERM, "root could be regained")


def prepare_directory(path: Path, account: Account) -> None:
    """Make `path`, owned by the attempt's user. Raises LaunchFailure."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        if account.is_other:
            os.chown(path, account.uid, account.gid)
    except OSError as error:
        raise failure_of(error, os.fsencode(path)) from None
