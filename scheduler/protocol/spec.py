"""What the user asked for: the job specification as frozen values (specification 6.2).

Durations are integers in milliseconds and sizes integers in bytes here; the texts that people write
(`10s`, `4GiB`) become these in `scheduler.protocol.specfile`, which also reports every mistake of
a document at once. Defaults are left out when encoded, so a new field changes no stored byte.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Milliseconds in a day.
DAY_MS: Final = 86_400_000


class Struct(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Base of the values here."""


class Resources(Struct, frozen=True):
    """What one worker reserves on its node."""

    cpu_millis: int = 1000
    memory_bytes: int = 0
    gpu: int = 0
    disk_bytes: int = 0
    custom: dict[str, int] = {}


class Backoff(Struct, frozen=True):
    """Wait before the n-th retry: first × factor^(n-1), at most max."""

    first_ms: int = 1000
    factor_millis: int = 2000
    max_ms: int = 300_000


class Retry(Struct, frozen=True):
    """Budgets by who is to blame (specification 1.4)."""

    limit: int = 0
    node_limit: int = 3
    on: tuple[str, ...] = ()
    not_on: tuple[str, ...] = ()
    backoff: Backoff = Backoff()


class Success(Struct, frozen=True):
    """Checks after exit 0, relative to the working directory."""

    output_nonempty: tuple[str, ...] = ()
    output_matches: dict[str, str] = {}
    check: str | tuple[str, ...] | None = None


class TaskSpec(Struct, frozen=True):
    """One role in a job. Exactly one of `command` and `shell` is set."""

    command: tuple[str, ...] = ()
    shell: str | None = None
    kind: str = "run"
    replicas: int = 1
    array: str | None = None
    gang: bool | None = None
    resources: Resources = Resources()
    constraints: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    spread: str | None = None
    requires: tuple[str, ...] = ()
    env: dict[str, str] = {}
    #: "none", "agent" or a list of names.
    env_mode: str | tuple[str, ...] = "none"
    cwd: str | None = None
    user: str | None = None
    umask: int | None = None
    files: dict[str, str] = {}
    stdin: str | None = None
    timeout_ms: int | None = None
    pending_timeout_ms: int | None = None
    stall_timeout_ms: int | None = None
    grace_ms: int = 10_000
    stop_signal: str = "TERM"
    on_lease_end: str | None = None
    on_disconnect: str | None = None
    retry: Retry = Retry()
    #: Exit code -> "success" | "retry" | "fail_job".
    exit_codes: dict[int, str] = {}
    success: Success = Success()
    ready_check: str | tuple[str, ...] | None = None
    log_limit_bytes: int = 64 * 1024 * 1024


class JobSpec(Struct, frozen=True):
    """One job."""

    tasks: dict[str, TaskSpec]
    name: str = ""
    queue: str = "default"
    priority: int = 0
    labels: dict[str, str] = {}
    fail_fast: bool | None = None
    retention_ms: int = 7 * DAY_MS
    #: Each `ID` or `ID:condition`.
    after: tuple[str, ...] = ()
    #: Name of the only node it may run on (`--node`).
    node: str | None = None
    wait_for_capacity: bool = False
    stopped: bool = False
