"""From an attempt to its processes: the main one, and the helpers that check it."""

from __future__ import annotations

import os

from agent.keeper.attempt import Attempt
from agent.keeper.context import Context
from agent.keeper.environment import (
    Account,
    Place,
    build_environment,
    resolve_account,
    to_bytes,
)
from agent.keeper.errors import LaunchFailure
from agent.keeper.launcher import Launch, failure_of, launch, prepare_directory
from agent.keeper.output import STREAMS, Capture
from agent.keeper.remover import PROGRESS_NAME


def start_main(context: Context, attempt: Attempt) -> int:
    """Start the attempt's main process with its pipes, directory and limits; returns the pid.

    Raises LaunchFailure; what was made for it then is left to `close_unlaunched`.
    """
    work = attempt.work
    attempt.account = account = resolve_account(work.user)
    env = _environment(context, attempt, account)
    prepare_directory(attempt.workdir, account)
    _write_files(attempt, account)
    writers: dict[str, int] = {}
    try:
        attempt.group = context.cgroups.create(
            attempt.token, memory_bytes=work.memory_bytes, cpu_millis=work.cpu_millis
        )
        for stream in STREAMS:
            capture = Capture(attempt.directory, stream, work.log_limit_bytes)
            attempt.captures[stream] = capture
            writers[stream] = capture.open_pipe(_owner(account))
        return launch(
            Launch(
                argv=command(work.argv, is_shell=work.is_shell),
                env=env,
                cwd=working_directory(attempt),
                account=account,
                stdout=writers["stdout"],
                stderr=writers["stderr"],
                umask=work.umask,
                stdin=None if work.stdin is None else to_bytes(work.stdin),
                cgroup_fds=() if attempt.group is None else attempt.group.open_join(),
                files_max=context.files_max,
            )
        )
    except OSError as error:
        raise failure_of(error, error.filename or "pipe") from None
    finally:
        for fd in writers.values():
            os.close(fd)
        if attempt.group is not None:
            attempt.group.close_join()


def start_helper(
    context: Context, attempt: Attempt, argv: tuple[bytes, ...], *, output: int
) -> int:
    """Start a check as the attempt's user, in its directory and group; returns the pid.

    What it prints goes to `output`. Raises LaunchFailure.
    """
    account = attempt.account or resolve_account(attempt.work.user)
    try:
        return launch(
            Launch(
                argv=argv,
                env=_environment(context, attempt, account),
                cwd=working_directory(attempt),
                account=account,
                stdout=output,
                stderr=output,
                umask=attempt.work.umask,
                cgroup_fds=() if attempt.group is None else attempt.group.open_join(),
                files_max=context.files_max,
            )
        )
    except OSError as error:
        raise failure_of(error, error.filename or "check") from None
    finally:
        if attempt.group is not None:
            attempt.group.close_join()


def command(argv: tuple[str | bytes, ...], *, is_shell: bool) -> tuple[bytes, ...]:
    """The argument vector to execute."""
    items = tuple(to_bytes(item) for item in argv)
    return (b"/bin/sh", b"-c", *items) if is_shell else items


def check_command(check: str | tuple[str, ...]) -> tuple[bytes, ...]:
    """A check's argument vector: a text is a shell line."""
    if isinstance(check, str):
        return command((check,), is_shell=True)
    return command(check, is_shell=False)


def working_directory(attempt: Attempt) -> bytes:
    """Where the attempt runs: its order's cwd, else its own directory."""
    own = os.fsencode(attempt.workdir)
    cwd = attempt.work.cwd
    return own if cwd is None else os.path.join(own, to_bytes(cwd))  # noqa: PTH118


def _environment(context: Context, attempt: Attempt, account: Account) -> dict[bytes, bytes]:
    place = Place(
        token=attempt.token,
        cluster_id=attempt.cluster_id,
        node=attempt.node,
        workdir=os.fsencode(attempt.workdir),
        progress=os.fsencode(attempt.workdir / PROGRESS_NAME),
    )
    return build_environment(attempt.work, place, account, context.inherited)


def _owner(account: Account) -> tuple[int, int] | None:
    return (account.uid, account.gid) if account.is_other else None


def _write_files(attempt: Attempt, account: Account) -> None:
    """The order's files into the attempt's own directory; names are relative and stay inside."""
    root = os.fsencode(attempt.workdir)
    for name, content in attempt.work.files.items():
        relative = to_bytes(name)
        parts = relative.split(b"/")
        if not all(parts) or b".." in parts or b"\0" in relative:
            raise LaunchFailure(
                "launch_error", f"EINVAL: file outside the work directory: {name!r}"
            )
        try:
            _write_file(root, parts, to_bytes(content), account)
        except OSError as error:
            raise failure_of(error, relative) from None


def _write_file(root: bytes, parts: list[bytes], content: bytes, account: Account) -> None:
    path = root
    for part in parts[:-1]:
        path = os.path.join(path, part)  # noqa: PTH118
        if not os.path.isdir(path):  # noqa: PTH112
            os.mkdir(path, 0o755)  # noqa: PTH102
            if account.is_other:
                os.chown(path, account.uid, account.gid)
    path = os.path.join(path, parts[-1])  # noqa: PTH118
    # Executable, too: such files are scripts as often as settings.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o700)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        if account.is_other:
            os.fchown(fd, account.uid, account.gid)
