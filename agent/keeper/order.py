"""What an agent ordered to run: `Work` checked and typed, and the names derived from it.

The keys are the field names of `scheduler.protocol.messages.Work`; unknown keys are ignored, so
that a newer agent can talk to an older keeper.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, fields
from typing import Any, Final

from agent.keeper.errors import BAD_ORDER, Refused

Text = str | bytes

#: Tokens become directory names and environment values, so their alphabet is closed.
TOKEN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_ATTEMPT: Final = re.compile(r"(?P<worker>(?P<job>[^/#]+)/(?P<task>[^/#]+)/(?P<index>[^/#]+))#\d+")
_LEASE_ENDS: Final = ("freeze", "kill", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All that is needed to run one attempt; see the protocol's message for the fields' meaning."""

    attempt: str
    argv: tuple[Text, ...]
    is_shell: bool = False
    env: dict[Text, Text]
    env_mode: str | tuple[str, ...] = "none"
    cwd: Text | None = None
    user: str | None = None
    umask: int | None = None
    stdin: Text | None = None
    files: dict[Text, Text]
    cpu_millis: int = 0
    memory_bytes: int = 0
    gpu_indices: tuple[int, ...] = ()
    timeout_ms: int | None = None
    stall_timeout_ms: int | None = None
    grace_ms: int = 10_000
    stop_signal: str = "TERM"
    on_lease_end: str = "freeze"
    log_limit_bytes: int = 64 * 1024 * 1024
    accept_exit: tuple[int, ...] = ()
    output_nonempty: tuple[str, ...] = ()
    output_matches: dict[str, str]
    check: str | tuple[str, ...] | None = None
    ready_check: str | tuple[str, ...] | None = None
    owner: str = ""
    check_timeout_ms: int = 60_000
    replicas: int = 1

    @property
    def worker(self) -> str:
        """`42/main/0` of `42/main/0#1`."""
        return self.attempt.rpartition("#")[0]

    @property
    def names(self) -> tuple[str, str, str]:
        """Job, task and index."""
        match = _ATTEMPT.fullmatch(self.attempt)
        assert match is not None
        return match["job"], match["task"], match["index"]

    @property
    def has_file_checks(self) -> bool:
        return bool(self.output_nonempty or self.output_matches)


_KNOWN: Final = frozenset(field.name for field in fields(Work))
_SEQUENCES: Final = ("argv", "gpu_indices", "accept_exit", "output_nonempty")
_MAPS: Final = ("env", "files", "output_matches")


def parse_token(value: object) -> str:
    """`value` as a token. Raises Refused."""
    if not isinstance(value, str) or TOKEN.fullmatch(value) is None:
        raise Refused(BAD_ORDER, f"no token: {value!r:.80}")
    return value


def parse_work(raw: object) -> Work:
    """The order's work. Raises Refused (bad_order) naming the first wrong field."""
    if not isinstance(raw, dict):
        raise Refused(BAD_ORDER, "work is a map")
    values: dict[str, Any] = {key: value for key, value in raw.items() if key in _KNOWN}
    for name in _SEQUENCES:
        values[name] = _sequence(values.get(name) or (), name)
    for name in _MAPS:
        values[name] = values.get(name) or {}
        if not isinstance(values[name], dict):
            raise Refused(BAD_ORDER, f"{name} is a map")
    for name in ("env_mode", "check", "ready_check"):
        if isinstance(values.get(name), list):
            values[name] = tuple(values[name])
    if not isinstance(values.get("attempt"), str):
        raise Refused(BAD_ORDER, "attempt is missing")
    work = Work(**values)
    _validate(work)
    return work


def signal_number(name: str) -> int:
    """The number of `TERM`, `SIGTERM` or `15`; Refused for no signal."""
    text = name.upper()
    if text.isdigit() and int(text) in {int(number) for number in signal.valid_signals()}:
        return int(text)
    try:
        return int(signal.Signals["SIG" + text.removeprefix("SIG")])
    except KeyError:
        raise Refused(BAD_ORDER, f"no signal: {name!r:.40}") from None


def _sequence(value: object, name: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise Refused(BAD_ORDER, f"{name} is a list")
    return tuple(value)


def _validate(work: Work) -> None:
    if _ATTEMPT.fullmatch(work.attempt) is None:
        raise Refused(BAD_ORDER, f"no attempt: {work.attempt!r:.80}")
    if not work.argv or not all(isinstance(item, (str, bytes)) for item in work.argv):
        raise Refused(BAD_ORDER, "argv is a list of text with at least a command")
    pairs = [*work.env.items(), *work.files.items()]
    if not all(isinstance(key, (str, bytes)) and isinstance(v, (str, bytes)) for key, v in pairs):
        raise Refused(BAD_ORDER, "env and files map text to text")
    if work.on_lease_end not in _LEASE_ENDS:
        raise Refused(BAD_ORDER, f"on_lease_end is one of {', '.join(_LEASE_ENDS)}")
    for name in ("grace_ms", "log_limit_bytes", "memory_bytes", "cpu_millis", "check_timeout_ms"):
        value = getattr(work, name)
        if not isinstance(value, int) or value < 0:
            raise Refused(BAD_ORDER, f"{name} is a number of at least 0")
    for name in ("timeout_ms", "stall_timeout_ms", "umask"):
        value = getattr(work, name)
        if value is not None and (not isinstance(value, int) or value < 0):
            raise Refused(BAD_ORDER, f"{name} is a number of at least 0, or nothing")
    signal_number(work.stop_signal)
