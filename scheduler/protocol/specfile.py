"""Job documents (TOML, YAML, JSON) to `JobSpec` and back (specification 6.2).

One table per object says for each field which attribute it fills, how it is read and how it is
written, so the two directions cannot drift apart. A document's mistakes are all reported at once.
Texts become dictionaries in `spectext`; what this release cannot do yet is refused by `supported`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any, Final

from scheduler.protocol.errors import InvalidSpec
from scheduler.protocol.ids import NAME
from scheduler.protocol.spec import Backoff, JobSpec, Resources, Retry, Success, TaskSpec
from scheduler.protocol.specread import (
    TEXT_CHARS_MAX,
    Field,
    Mistakes,
    Reader,
    add_mistake,
    boolean,
    integer,
    is_unicode,
    join,
    kind_of,
    list_of,
    map_of,
    one_of,
    quantity,
    read_object,
    shown,
    suggestion,
    text,
    write_object,
)
from scheduler.protocol.supported import unsupported_features, unsupported_kind
from scheduler.protocol.units import (
    cpu_number,
    format_duration,
    format_size,
    parse_cpu_millis,
    parse_duration_ms,
    parse_size_bytes,
)

#: Tasks of one job.
TASKS_MAX: Final = 100
#: Replicas of one task.
REPLICAS_MAX: Final = 1_000_000
#: Attempts a retry budget can add.
RETRIES_MAX: Final = 1_000_000
PRIORITY_MAX: Final = 1_000_000_000
#: The task of a one-command job.
DEFAULT_TASK: Final = "main"
KINDS: Final = ("job", "workflow", "addon", "schedule", "queue")
#: What `retry.on` and `retry.not_on` may name besides exit codes.
RETRY_CAUSES: Final = (
    "exit_nonzero", "signal", "oom", "timeout", "stalled", "output_check", "launch_error",
    "launch_failed", "status_lost", "node_disconnected", "node_lost", "node_rebooted",
    "lease_expired", "resource_overuse",
)  # fmt: skip
_SIGNALS: Final = tuple(one.name.removeprefix("SIG") for one in signal.Signals)
_ARRAY: Final = r"[0-9]{1,9}(?:-[0-9]{1,9})?(?:%[1-9][0-9]{0,8})?"
_AFTER: Final = r"[1-9][0-9]{0,17}(?::(?:succeeded|failed|finished))?"


def job_from_document(document: object, *, allow_unsupported: bool = False) -> JobSpec:
    """The job that `document` describes. Raises InvalidSpec with every mistake and its path.

    What this release cannot do yet is a mistake, too, and named as such, unless
    `allow_unsupported`.
    """
    mistakes: Mistakes = []
    if isinstance(document, dict):
        kind = document.get("kind", "job")
        if kind != "job":
            raise InvalidSpec((unsupported_kind(kind, KINDS),))
        document = {name: value for name, value in document.items() if name != "kind"}
    values = read_object(document, _JOB, "", mistakes)
    if "tasks" not in values and isinstance(document, dict):
        hint = 'such as {"main": {"command": ["echo", "hello"]}}'
        if {"command", "shell"} & set(document):
            hint = 'write them inside {"tasks": {"main": {…}}}'
        add_mistake(mistakes, "tasks", "missing", hint)
    if mistakes:
        raise InvalidSpec(tuple(mistakes))
    spec = JobSpec(**values)
    if not allow_unsupported and (missing := unsupported_features(spec)):
        raise InvalidSpec(missing)
    return spec


def document_from_job(spec: JobSpec, *, full: bool = True) -> dict[str, Any]:
    """`spec` as a user would write it: durations and sizes as texts, cpus as a number.

    `full` shows defaults, too; without, only what differs from them, and the tasks.
    """
    default = None if full else _JOB_DEFAULT
    document = {"kind": "job", **write_object(spec, _JOB, default)}
    document["tasks"] = {
        name: _write_task(task, full=full) for name, task in sorted(spec.tasks.items())
    }
    return document


def _read_tasks(value: Any, path: str, mistakes: Mistakes) -> dict[str, TaskSpec]:
    if not isinstance(value, dict):
        add_mistake(mistakes, path, f"{kind_of(value)} where an object is wanted")
        return {}
    if not 1 <= len(value) <= TASKS_MAX:
        add_mistake(mistakes, path, f"{len(value)} tasks; 1 to {TASKS_MAX} are taken")
        return {}
    for name in value:
        _TASK_NAME(name, join(path, name), mistakes)
    return {name: _read_task(task, join(path, name), mistakes) for name, task in value.items()}


def _read_task(value: Any, path: str, mistakes: Mistakes) -> TaskSpec:
    values = read_object(value, _TASK, path, mistakes)
    if isinstance(value, dict):
        given = [name for name in ("command", "shell") if value.get(name) is not None]
        if not given:
            add_mistake(mistakes, path, "neither command nor shell is given")
        elif len(given) == 2:
            add_mistake(mistakes, path, "command and shell exclude each other")
        if value.get("array") is not None and value.get("replicas") is not None:
            add_mistake(mistakes, path, "replicas and array exclude each other")
    return TaskSpec(**values)


def _write_task(task: TaskSpec, *, full: bool) -> dict[str, Any]:
    document = write_object(task, _TASK, None if full else _TASK_DEFAULT)
    # Exactly one of each pair is given: the other would be refused when read back.
    for absent in ("command", "shell"):
        if not document.get(absent):
            document.pop(absent, None)
    if task.array is not None:
        document.pop("replicas", None)
    else:
        document.pop("array", None)
    return document


def _nested(kind: type, fields: Mapping[str, Field]) -> Field:
    def read(value: Any, path: str, mistakes: Mistakes) -> Any:
        return kind(**read_object(value, fields, path, mistakes))

    return Field("", read, lambda record: write_object(record, fields))


def _as(attribute: str, field: Field) -> Field:
    return Field(attribute, field.read, field.write)


def _read_command(value: Any, path: str, mistakes: Mistakes) -> tuple[str, ...]:
    if isinstance(value, str):
        hint = f"write a list of words, or use shell: {value[:40]!r}"
        add_mistake(mistakes, path, "text where a list is wanted", hint)
        return ()
    words: tuple[str, ...] = _WORDS(value, path, mistakes)
    if words and not words[0]:
        add_mistake(mistakes, f"{path}[0]", "an empty program name")
    return words


def _read_check(value: Any, path: str, mistakes: Mistakes) -> str | tuple[str, ...]:
    found: str | tuple[str, ...]
    found = (
        _TEXT(value, path, mistakes) if isinstance(value, str) else _WORDS(value, path, mistakes)
    )
    return found


def _read_env_mode(value: Any, path: str, mistakes: Mistakes) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple):
        names: tuple[str, ...] = list_of(_ENV_NAME)(value, path, mistakes)
        return names
    mode: str = one_of("none", "agent")(value, path, mistakes)
    return mode


def _read_signal(value: Any, path: str, mistakes: Mistakes) -> str:
    name = value.upper().removeprefix("SIG") if isinstance(value, str) else ""
    if name not in _SIGNALS:
        hint = suggestion(name, _SIGNALS) if name else "such as TERM, INT or USR1"
        add_mistake(mistakes, path, f"{shown(value)} is no signal", hint)
    return name


def _read_retried(value: Any, path: str, mistakes: Mistakes) -> str:
    found = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    is_code = isinstance(found, str) and re.fullmatch(r"[0-9]{1,3}", found, re.ASCII)
    if is_code and 1 <= int(found) <= 255:
        return str(int(found))
    if found not in RETRY_CAUSES:
        hint = suggestion(found, RETRY_CAUSES) if isinstance(found, str) else ""
        add_mistake(mistakes, path, f"{shown(value)} is no cause or exit code", hint)
    return str(found)


def _read_exit_code(value: Any, path: str, mistakes: Mistakes) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,3}", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        add_mistake(mistakes, path, f"{shown(value)} is no exit code between 0 and 255")
        return 0
    return value


def _read_factor(value: Any, path: str, mistakes: Mistakes) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1000:
        add_mistake(mistakes, path, f"{shown(value)} is no factor between 1 and 1000")
        return 1000
    return round(value * 1000)


def _read_umask(value: Any, path: str, mistakes: Mistakes) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value, re.ASCII):
        add_mistake(mistakes, path, f"{shown(value)} is no file mode mask", 'such as "022"')
        return 0
    return int(value, 8)


def _read_after(value: Any, path: str, mistakes: Mistakes) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        value = str(value) if value < 10**18 else ""
    found: str = text(pattern=_AFTER, what="job and condition such as 41 or 41:finished")(
        value, path, mistakes
    )
    return found


def _read_env_value(value: Any, path: str, mistakes: Mistakes) -> str:
    found: str = text(chars_max=TEXT_CHARS_MAX)(value, path, mistakes)
    return found


def _read_pattern(value: Any, path: str, mistakes: Mistakes) -> str:
    found: str = _TEXT(value, path, mistakes)
    try:
        re.compile(found)
    except (re.error, RecursionError, OverflowError) as error:
        add_mistake(mistakes, path, f"no regular expression: {error}")
    return found


def _read_name(value: Any, path: str, mistakes: Mistakes) -> str:
    found: str = text(chars_max=200)(value, path, mistakes)
    if is_unicode(found) and not found.isprintable():
        add_mistake(mistakes, path, "a name with control characters")
    return found


_TEXT: Final = text(chars_max=TEXT_CHARS_MAX)
_SHORT: Final = text()
_WORDS: Final = list_of(_TEXT, length_min=1)
_TEXTS: Final = list_of(_SHORT)
_TASK_NAME: Final = text(pattern=NAME.pattern, what="task name (letters, digits, . _ -)")
_OBJECT_NAME: Final = text(pattern=NAME.pattern, what="name (letters, digits, . _ -)")
_ENV_NAME: Final = text(pattern=r"[^=\0]+", what="name of an environment variable")
_FILE_NAME: Final = text(pattern=r"(?!\.{1,2}$)[^/\0]{1,200}", what="file name without a slash")
_CUSTOM: Final = map_of(_OBJECT_NAME, integer(0, 1 << 40))


def _duration(attribute: str) -> Field:
    return Field(attribute, quantity(parse_duration_ms), format_duration)


def _size(attribute: str) -> Field:
    return Field(attribute, quantity(parse_size_bytes), format_size)


def _texts(attribute: str, read: Reader = _TEXTS) -> Field:
    return Field(attribute, read, list)


def _command_or_list(value: str | tuple[str, ...]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)


_RESOURCES: Final[dict[str, Field]] = {
    "cpu": Field("cpu_millis", quantity(parse_cpu_millis), cpu_number),
    "memory": _size("memory_bytes"),
    "gpu": Field("gpu", integer(0, 1024)),
    "disk": _size("disk_bytes"),
    "custom": Field("custom", _CUSTOM, dict),
}
_BACKOFF: Final[dict[str, Field]] = {
    "first": _duration("first_ms"),
    "factor": Field("factor_millis", _read_factor, cpu_number),
    "max": _duration("max_ms"),
}
_RETRY: Final[dict[str, Field]] = {
    "limit": Field("limit", integer(0, RETRIES_MAX)),
    "node_limit": Field("node_limit", integer(0, RETRIES_MAX)),
    "on": _texts("on", list_of(_read_retried)),
    "not_on": _texts("not_on", list_of(_read_retried)),
    "backoff": _as("backoff", _nested(Backoff, _BACKOFF)),
}
_SUCCESS: Final[dict[str, Field]] = {
    "output_nonempty": _texts("output_nonempty"),
    "output_matches": Field("output_matches", map_of(_SHORT, _read_pattern), dict),
    "check": Field("check", _read_check, _command_or_list),
}
_TASK: Final[dict[str, Field]] = {
    "command": Field("command", _read_command, list),
    "shell": Field("shell", _TEXT),
    "kind": Field("kind", one_of("run", "service")),
    "replicas": Field("replicas", integer(0, REPLICAS_MAX)),
    "array": Field("array", text(pattern=_ARRAY, what="array range such as 0-99%10")),
    "gang": Field("gang", boolean),
    "resources": _as("resources", _nested(Resources, _RESOURCES)),
    "constraints": _texts("constraints"),
    "prefer": _texts("prefer"),
    "spread": Field("spread", _SHORT),
    "requires": _texts("requires"),
    "env": Field("env", map_of(_ENV_NAME, _read_env_value), dict),
    "env_mode": Field("env_mode", _read_env_mode, _command_or_list),
    "cwd": Field("cwd", _SHORT),
    "user": Field("user", text(pattern=r"[^\s:]{1,64}", what="user name")),
    "umask": Field("umask", _read_umask, lambda mask: f"{mask:03o}"),
    "files": Field("files", map_of(_FILE_NAME, _TEXT), dict),
    "stdin": Field("stdin", _TEXT),
    "timeout": _duration("timeout_ms"),
    "pending_timeout": _duration("pending_timeout_ms"),
    "stall_timeout": _duration("stall_timeout_ms"),
    "grace": _duration("grace_ms"),
    "stop_signal": Field("stop_signal", _read_signal),
    "on_lease_end": Field("on_lease_end", one_of("freeze", "kill", "run")),
    "on_disconnect": Field("on_disconnect", one_of("fail", "unknown")),
    "retry": _as("retry", _nested(Retry, _RETRY)),
    "exit_codes": Field(
        "exit_codes",
        map_of(_read_exit_code, one_of("success", "retry", "fail_job")),
        lambda codes: {str(code): meaning for code, meaning in sorted(codes.items())},
    ),
    "success": _as("success", _nested(Success, _SUCCESS)),
    "ready_check": Field("ready_check", _read_check, _command_or_list),
    "log_limit": _size("log_limit_bytes"),
}
_JOB: Final[dict[str, Field]] = {
    "name": Field("name", _read_name),
    "queue": Field("queue", _OBJECT_NAME),
    "priority": Field("priority", integer(-PRIORITY_MAX, PRIORITY_MAX)),
    "labels": Field("labels", map_of(_SHORT, _SHORT), dict),
    "fail_fast": Field("fail_fast", boolean),
    "retention": _duration("retention_ms"),
    "tasks": Field("tasks", _read_tasks, dict),
    "after": _texts("after", list_of(_read_after)),
    "node": Field("node", _OBJECT_NAME),
    "wait_for_capacity": Field("wait_for_capacity", boolean),
    "stopped": Field("stopped", boolean),
}
_JOB_DEFAULT: Final = JobSpec(tasks={})
_TASK_DEFAULT: Final = TaskSpec()
