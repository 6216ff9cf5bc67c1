"""The configuration files of a local cluster's members, written anew at each start of theirs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from scheduler.local.files import Layout, Plan
from scheduler.local.ports import HOST

#: What a local agent advertises, so that small machines show scheduling, too.
AGENT_CPU: Final = 8
#: Share of the machine's memory that one local agent advertises, in bytes when it is unknown.
AGENT_MEMORY_BYTES: Final = 8 * 1024**3
#: Keys of a controller's own `[replication]` table: `--set` puts them there, not into the
#: replicated settings.
CONTROLLER_KEYS: Final = ("election_timeout", "snapshot_entries", "segment_size")
#: Smaller than by default: a cluster for trying out should not take gigabytes.
LOCAL_SEGMENT_SIZE: Final = "16MiB"
#: `down` ends the jobs, so its SIGTERM has to be an orderly leave.
ON_SIGTERM: Final = "leave"
#: Longest that a leave waits for ends and their commits; below the patience of `down`.
LEAVE_TIMEOUT: Final = "18s"


def controller_toml(layout: Layout, plan: Plan, name: str) -> str:
    """The configuration of controller `name`."""
    replication: dict[str, Any] = {"segment_size": LOCAL_SEGMENT_SIZE}
    for key, value in plan.controller_settings.items():
        replication[key] = int(value) if value.isdigit() else value
    return to_toml(
        {
            "name": name,
            "data_dir": str(layout.data_dir("controller", name)),
            "cluster_id": plan.cluster_id,
            "members": {
                one.name: {
                    "raft": f"{HOST}:{one.raft_port}",
                    "agents": f"{HOST}:{one.agents_port}",
                    "http": http_url(one.http_port),
                }
                for one in plan.controllers
            },
            "tls": _tls(layout, f"controller-{name}"),
            "auth": {"admin_token_file": str(layout.token_file)},
            "replication": replication,
        }
    )


def agent_toml(layout: Layout, plan: Plan, name: str) -> str:
    """The configuration of agent `name`; `--agent-set` may name any key of it, dotted."""
    document: dict[str, Any] = {
        "name": name,
        "data_dir": str(layout.data_dir("agent", name)),
        "cluster_id": plan.cluster_id,
        "on_sigterm": ON_SIGTERM,
        "leave_timeout": LEAVE_TIMEOUT,
        "controllers": [
            {"name": one.name, "address": f"{HOST}:{one.agents_port}"} for one in plan.controllers
        ],
        "tls": _tls(layout, f"agent-{name}"),
        "capacity": {"cpu": AGENT_CPU, "memory": _memory_bytes()},
    }
    for key, value in plan.agent_settings.items():
        *tables, last = key.split(".")
        table = document
        for part in tables:
            table = table.setdefault(part, {})
        table[last] = _plain(value)
    return to_toml(document)


def http_url(port: int) -> str:
    """Base URL of a controller, without trailing slash."""
    return f"https://{HOST}:{port}"


def to_toml(document: dict[str, Any]) -> str:
    """`document` as TOML: texts, numbers, booleans, tables and lists of tables or texts."""
    lines: list[str] = []
    _write_table(document, (), lines)
    return "\n".join(lines) + "\n"


def write_private(path: Path, text: str) -> None:
    """Replace `path`, readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    aside.replace(path)


def _write_table(table: dict[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    nested = {}
    for key, value in table.items():
        if isinstance(value, dict) or (
            isinstance(value, list) and value and isinstance(value[0], dict)
        ):
            nested[key] = value
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in nested.items():
        name = ".".join(_key(part) for part in (*path, key))
        for one in value if isinstance(value, list) else [value]:
            lines += ["", f"[[{name}]]" if isinstance(value, list) else f"[{name}]"]
            _write_table(one, (*path, key), lines)


def _key(key: str) -> str:
    is_bare = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
    return key if is_bare else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    assert isinstance(value, int | float), value
    return str(value)


def _plain(text: str) -> Any:
    """`8`, `0.5`, `true` as such values, everything else as text."""
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _tls(layout: Layout, file_name: str) -> dict[str, str]:
    return {
        "ca": str(layout.ca_file),
        "cert": str(layout.tls / f"{file_name}.pem"),
        "key": str(layout.tls / f"{file_name}.key"),
    }


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return AGENT_MEMORY_BYTES
