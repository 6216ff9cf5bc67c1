"""The options of `submit` and `run`, and the job document they make (specification 6.2).

Quantities are handed on as the texts that were written: the cluster reads them, and names every
mistake at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from scheduler.cli.base import Document
from scheduler.cli.failure import Exit, Failure, usage

F = TypeVar("F", bound=Callable[..., Any])

#: Longest environment file, in bytes.
ENV_FILE_BYTES_MAX: Final = 1024 * 1024

_JOB: Final = "job"
_TASK: Final = "task"
#: option -> (where it goes, path of the field, click's arguments)
_OPTIONS: Final[dict[str, tuple[str, tuple[str, ...], dict[str, Any]]]] = {
    "--name": (_JOB, ("name",), {"help": "A name, for lists and `name:X`."}),
    "--cpu": (_TASK, ("resources", "cpu"), {"help": "Cores, such as 2 or 0.5."}),
    "--memory": (_TASK, ("resources", "memory"), {"help": "Such as 512MiB or 4GiB."}),
    "--gpu": (_TASK, ("resources", "gpu"), {"type": int, "help": "Whole devices."}),
    "--resource": (_TASK, ("resources", "custom"), {
        "metavar": "K=V", "multiple": True, "help": "A custom resource."}),
    "--constraint": (_TASK, ("constraints",), {
        "metavar": "EXPR", "multiple": True, "help": "Only on nodes like that."}),
    "--requires": (_TASK, ("requires",), {
        "metavar": "SPEC", "multiple": True, "help": "An addon, such as toolkit>=12."}),
    "--node": (_JOB, ("node",), {"metavar": "NAME", "help": "Only on this node."}),
    "--queue": (_JOB, ("queue",), {"metavar": "NAME", "help": "The queue to wait in."}),
    "--priority": (_JOB, ("priority",), {"type": int, "help": "Higher goes first; 0."}),
    "--timeout": (_TASK, ("timeout",), {"metavar": "D", "help": "Longest run time, as 1h30m."}),
    "--pending-timeout": (_TASK, ("pending_timeout",), {
        "metavar": "D", "help": "Longest wait before it runs."}),
    "--stall-timeout": (_TASK, ("stall_timeout",), {
        "metavar": "D", "help": "Longest time without output or progress."}),
    "--retries": (_TASK, ("retry", "limit"), {
        "type": int, "metavar": "N", "help": "Retries of the job's own failures; 0."}),
    "--node-retries": (_TASK, ("retry", "node_limit"), {
        "type": int, "metavar": "N", "help": "Retries of failures of nodes; 3."}),
    "--retry-on": (_TASK, ("retry", "on"), {
        "metavar": "CAUSES", "help": "Causes or exit codes, by commas, that are retried."}),
    "--array": (_TASK, ("array",), {
        "metavar": "RANGE[%LIMIT]", "help": "One worker for each index, as 0-99%10."}),
    "--after": (_JOB, ("after",), {
        "metavar": "ID[:COND]", "multiple": True, "help": "Only after another job."}),
    "--env": (_TASK, ("env",), {
        "metavar": "K=V", "multiple": True, "help": "K alone takes the value from here."}),
    "--env-file": (_TASK, ("env",), {
        "metavar": "FILE", "multiple": True, "help": "Lines of K=V; --env wins."}),
    "--cwd": (_TASK, ("cwd",), {"metavar": "DIR", "help": "Working directory on the node."}),
    "--user": (_TASK, ("user",), {"metavar": "NAME", "help": "Account on the node."}),
    "--check": (_TASK, ("success", "check"), {
        "metavar": "CMD", "help": "Succeeds only if this command does, too."}),
    "--expect-output": (_TASK, ("success", "output_nonempty"), {
        "metavar": "PATH", "multiple": True, "help": "Succeeds only if this is not empty."}),
    "--accept-exit": (_TASK, ("exit_codes",), {
        "metavar": "CODES", "help": "Exit codes, by commas, that are a success."}),
    "--grace": (_TASK, ("grace",), {
        "metavar": "D", "help": "From the stop signal to SIGKILL; 10s."}),
    "--stop-signal": (_TASK, ("stop_signal",), {"metavar": "NAME", "help": "TERM unless told."}),
    "--on-disconnect": (_TASK, ("on_disconnect",), {
        "metavar": "fail|unknown", "help": "What a closed connection of its node means."}),
    "--on-lease-end": (_TASK, ("on_lease_end",), {
        "metavar": "freeze|kill|run", "help": "What a node that is cut off does with it."}),
    "--label": (_JOB, ("labels",), {
        "metavar": "K=V", "multiple": True, "help": "A label, for lists."}),
    "--env-secret": ("", (), {"metavar": "NAME", "multiple": True, "hidden": True}),
    "--notify": ("", (), {"metavar": "URL", "multiple": True, "hidden": True}),
}  # fmt: skip


def job_options(function: F) -> F:
    """All of them, collected by `job_document`."""
    for option, (_, _, settings) in reversed(_OPTIONS.items()):
        function = click.option(option, _parameter(option), default=None, **settings)(function)
    function = click.option(
        "--wait-for-capacity", is_flag=True, help="Wait although no known node is large enough."
    )(function)
    function = click.option(
        "--key", metavar="KEY", help="Idempotency key: the same again is the same job."
    )(function)
    return click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] CMD...")(
        function
    )


def given_options(values: Mapping[str, Any]) -> list[str]:
    """The options among `values` that were used, as written on the command line."""
    used = [option for option in _OPTIONS if values.get(_parameter(option)) not in (None, ())]
    return used + (["--wait-for-capacity"] if values.get("wait_for_capacity") else [])


def job_document(command: Sequence[str], values: Mapping[str, Any]) -> Document:
    """The specification that a command and its options mean. Raises Failure."""
    refuse_unsupported(values)
    if not command:
        raise usage(
            "there is no command to run",
            why="a job needs a program and its arguments",
            hint="write it after --, as in `pertinax submit --name x -- ./work.sh 1`; -f takes a"
            " file",
            code="no_command",
        )
    _check_unicode(command)
    task: Document = {"command": list(command)}
    job: Document = {"kind": "job"}
    for option, (place, path, _) in _OPTIONS.items():
        value = values.get(_parameter(option))
        if place and value not in (None, ()) and option not in ("--env", "--env-file"):
            _put(job if place == _JOB else task, path, _read(option, value))
    if environment := _environment(values):
        task["env"] = environment
    if values.get("wait_for_capacity"):
        job["wait_for_capacity"] = True
    job["tasks"] = {"main": task}
    return job


def refuse_unsupported(values: Mapping[str, Any]) -> None:
    """Refuse options that fill no field yet. Raises Failure."""
    for option in ("--env-secret", "--notify"):
        if values.get(_parameter(option)) not in (None, ()):
            from scheduler.protocol.supported import unsupported_option

            raise Failure(
                str(unsupported_option(option)),
                why="it belongs to the specified options, and is not built yet",
                hint=f"submit without {option}",
                code="not_supported",
                exit_code=Exit.REFUSED,
            )


def _parameter(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _put(document: Document, path: Sequence[str], value: object) -> None:
    for name in path[:-1]:
        document = document.setdefault(name, {})
    document[path[-1]] = value


def _read(option: str, value: Any) -> Any:
    match option:
        case "--label":
            return dict(_pair(option, one) for one in value)
        case "--resource":
            return {
                name: _count(option, count) for name, count in (_pair(option, v) for v in value)
            }
        case "--retry-on":
            return [one.strip() for one in value.split(",") if one.strip()]
        case "--accept-exit":
            return {one.strip(): "success" for one in value.split(",") if one.strip()}
        case "--cwd":
            # As a shell means it: relative to where the command is given.
            return str(Path(value).expanduser().absolute())
        case _:
            return list(value) if isinstance(value, tuple) else value


def _pair(option: str, text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise usage(
            f"{option} {text} cannot be read",
            why="it has no `=` between a name and a value",
            hint=f"write {option} NAME=VALUE",
            code="bad_option",
        )
    return name, value


def _count(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise usage(
            f"{option} {text} cannot be read",
            why=f"{text!r} is no count",
            hint=f"write {option} NAME=2",
            code="bad_option",
        )
    return int(text)


def _environment(values: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in values.get("env_file") or ():
        found.update(_read_env_file(Path(file)))
    for text in values.get("env") or ():
        if "=" not in text and text:
            if text not in os.environ:
                raise usage(
                    f"--env {text} has no value",
                    why=f"{text} is not set in this environment",
                    hint=f"write --env {text}=VALUE",
                    code="bad_option",
                )
            found[text] = os.environ[text]
        else:
            name, value = _pair("--env", text)
            found[name] = value
    _check_unicode([*found, *found.values()])
    return found


def _read_env_file(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_size > ENV_FILE_BYTES_MAX:
            raise ValueError(f"larger than {ENV_FILE_BYTES_MAX} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise usage(
            f"--env-file {path} cannot be read",
            why=str(error),
            hint="give a UTF-8 file with lines of NAME=VALUE",
            code="bad_file",
        ) from None
    pairs = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return dict(_pair("--env-file", pair) for pair in pairs)


def _check_unicode(words: Sequence[str]) -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode("utf-8", "backslashreplace").decode()
            raise usage(
                f"{shown!r} cannot be submitted",
                why="it is no valid UTF-8, and a specification is JSON",
                hint="put it into a script, and submit that",
                code="bad_text",
            ) from None
