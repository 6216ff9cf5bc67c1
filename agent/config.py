"""The agent's settings: one TOML file, overridden by the environment and by `--set KEY=VALUE`.

    name = "a1"                      # the node's name in the cluster
    data_dir = "/var/lib/pertinax"   # ledger, outbox, output; relative to the file
    cluster_id = "…"
    controllers = [{ name = "c1", address = "10.0.0.1:7101" }, …]
    on_sigterm = "restart"           # or "leave": end every job first
    leave_timeout = "60s"            # longest that a leave waits for ends and their commits
    addresses = []                   # told to jobs of a gang; default: what the host has
    log_file = ""                    # default: stderr
    log_format = "console"           # or "json"
    disk_low = "256MiB"              # below it no new work is taken
    [tls]                            # ca, cert, key; needed unless all controllers are on loopback
    [capacity]                       # cpu, memory, gpu, disk, custom.NAME; default: the host's
    [labels]                         # free keys

An `[agent]` table may hold any of these, too, and wins over the same key outside it: tools that
make files append one. `--set` takes dotted keys (`capacity.cpu=8`), the environment keys without a
dot (`PERTINAX_AGENT_ON_SIGTERM`). Every mistake is reported at once, with its line and a remedy.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.errors import ConfigError
from scheduler.protocol.ids import NAME
from scheduler.protocol.units import (
    BadQuantity,
    parse_cpu_millis,
    parse_duration_ms,
    parse_size_bytes,
)

ENVIRONMENT_PREFIX: Final = "PERTINAX_AGENT_"
ON_SIGTERM: Final = ("restart", "leave")
LOG_FORMATS: Final = ("console", "json")


@dataclass(frozen=True, slots=True)
class ControllerAddress:
    """Where one controller's agent port is."""

    name: str
    host: str
    port: int

    @property
    def text(self) -> str:
        return join_address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the cluster's CA and of this agent (`agent:NAME`)."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredCapacity:
    """What is offered to jobs; None means what the host has."""

    cpu_millis: int | None = None
    memory_bytes: int | None = None
    gpu_count: int | None = None
    disk_bytes: int | None = None
    custom: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Validated settings. Times in ms, sizes in bytes."""

    name: str
    data_dir: Path
    cluster_id: str
    controllers: tuple[ControllerAddress, ...]
    tls: TlsFiles | None = None
    capacity: DeclaredCapacity = DeclaredCapacity()
    labels: dict[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    on_sigterm: str = "restart"
    leave_timeout_ms: int = 60_000
    log_file: Path | None = None
    log_format: str = "console"
    disk_low_bytes: int = 256 * 1024 * 1024


def load_config(
    path: Path, *, overrides: Iterable[str] = (), environment: Mapping[str, str] = os.environ
) -> AgentConfig:
    """The settings of `path` with `overrides` (`KEY=VALUE`). Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: no TOML: {error}"]) from None
    reader = _Reader(path, text, _merged(document))
    reader.override(environment, overrides)
    return reader.config()


def split_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is no host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The text that `split_address` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether nothing but this machine is behind `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _merged(document: dict[str, Any]) -> dict[str, Any]:
    own = document.pop("agent", None)
    if isinstance(own, dict):
        for key, value in own.items():
            known = document.get(key)
            if isinstance(known, dict) and isinstance(value, dict):
                document[key] = {**known, **value}
            else:
                document[key] = value
    elif own is not None:
        document["agent"] = own  # reported as unknown
    return document


Parser = Callable[[object], Any]


class _Reader:
    """Takes settings out of a document and collects what is wrong with it."""

    def __init__(self, path: Path, text: str, document: dict[str, Any]) -> None:
        self._path = path
        self._lines = text.splitlines()
        self._document = document
        #: Where a key comes from, when not from the file.
        self._sources: dict[str, str] = {}
        self._mistakes: list[str] = []

    def override(self, environment: Mapping[str, str], overrides: Iterable[str]) -> None:
        for name, text in sorted(environment.items()):
            if name.startswith(ENVIRONMENT_PREFIX):
                key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
                self._override(key, text, source=f"environment {name}")
        for item in overrides:
            key, separator, text = item.partition("=")
            if not separator:
                self._mistakes.append(f"--set {item}: write it as KEY=VALUE")
                continue
            self._override(key.strip(), text, source=f"--set {key.strip()}")

    def config(self) -> AgentConfig:
        config = self._build()
        if self._mistakes:
            raise ConfigError(self._mistakes)
        return config

    def _build(self) -> AgentConfig:
        self._check_keys("", self._document, _KEYS)
        base = self._path.absolute().parent
        tls = self._tls(base)
        controllers = self._controllers()
        if tls is None and not all(is_loopback(controller.host) for controller in controllers):
            self._mistake("tls", "is needed, since controllers are on other machines")
        log_file = self._take("log_file", _text, "")
        return AgentConfig(
            name=self._take("name", _name),
            data_dir=base / self._take("data_dir", _text),
            cluster_id=self._take("cluster_id", _name),
            controllers=controllers,
            tls=tls,
            capacity=self._capacity(),
            labels=self._take("labels", _labels, {}),
            addresses=self._take("addresses", _texts, ()),
            on_sigterm=self._take("on_sigterm", _one_of(ON_SIGTERM), "restart"),
            leave_timeout_ms=self._take("leave_timeout", parse_duration_ms, 60_000),
            log_file=base / log_file if log_file else None,
            log_format=self._take("log_format", _one_of(LOG_FORMATS), "console"),
            disk_low_bytes=self._take("disk_low", parse_size_bytes, 256 * 1024 * 1024),
        )

    def _tls(self, base: Path) -> TlsFiles | None:
        if "tls" not in self._document:
            return None
        table = self._table("tls", _TLS_KEYS)
        paths = {}
        for key in _TLS_KEYS:
            text = self._take(f"tls.{key}", _text, None, table=table)
            paths[key] = base / (text or "missing")
            if text and not paths[key].is_file():
                self._mistake(f"tls.{key}", f"{paths[key]} is no file")
            elif not text:
                self._mistake(f"tls.{key}", "is missing")
        return TlsFiles(**paths)

    def _controllers(self) -> tuple[ControllerAddress, ...]:
        found = self._document.get("controllers")
        if not isinstance(found, list) or not found:
            self._mistake("controllers", 'is missing: [{ name = "c1", address = "host:port" }, …]')
            return ()
        controllers = []
        for item in found:
            if not isinstance(item, dict) or set(item) != {"name", "address"}:
                self._mistake("controllers", f'{item!r}: each is {{ name = "…", address = "…" }}')
                continue
            try:
                host, port = split_address(str(item["address"]))
                controllers.append(ControllerAddress(_name(item["name"]), host, port))
            except ValueError as error:
                self._mistake("controllers", str(error))
        return tuple(controllers)

    def _capacity(self) -> DeclaredCapacity:
        table = self._table("capacity", _CAPACITY_KEYS)
        return DeclaredCapacity(
            cpu_millis=self._take("capacity.cpu", parse_cpu_millis, None, table=table),
            memory_bytes=self._take("capacity.memory", parse_size_bytes, None, table=table),
            gpu_count=self._take("capacity.gpu", _count, None, table=table),
            disk_bytes=self._take("capacity.disk", parse_size_bytes, None, table=table),
            custom=self._take("capacity.custom", _counts, {}, table=table),
        )

    def _table(self, name: str, keys: Iterable[str]) -> dict[str, Any]:
        table = self._document.get(name, {})
        if not isinstance(table, dict):
            self._mistake(name, "is a table")
            return {}
        self._check_keys(f"{name}.", table, keys)
        return table

    def _take(
        self, key: str, parse: Parser, *default: Any, table: dict[str, Any] | None = None
    ) -> Any:
        source = self._document if table is None else table
        name = key.rpartition(".")[2]
        if name not in source:
            if not default:
                self._mistake(key, "is missing")
            return default[0] if default else "missing"
        try:
            return parse(source[name])
        except (BadQuantity, ValueError) as error:
            self._mistake(key, str(error))
            return default[0] if default else "missing"

    def _check_keys(self, prefix: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
        keys = list(known)
        for key in table:
            if key not in keys:
                close = difflib.get_close_matches(key, keys, n=1)
                hint = f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(keys)}"
                self._mistake(f"{prefix}{key}", f"is no setting; {hint}")

    def _override(self, key: str, text: str, *, source: str) -> None:
        first, _, rest = key.partition(".")
        table, name = self._document, first
        if rest:
            inner = self._document.setdefault(first, {})
            if not isinstance(inner, dict):
                self._mistakes.append(f"{source}: {first} is no table")
                return
            table, name = inner, rest
            if first == "capacity" and rest.startswith("custom."):
                table, name = inner.setdefault("custom", {}), rest.removeprefix("custom.")
        self._sources[key] = source
        table[name] = _value(text)

    def _mistake(self, key: str, message: str) -> None:
        place = self._sources.get(key) or f"{self._path}:{self._line_of(key)}"
        self._mistakes.append(f"{place}: {key} {message}")

    def _line_of(self, key: str) -> int:
        table, _, name = key.rpartition(".")
        current = ""
        for number, line in enumerate(self._lines, start=1):
            if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
                current = header[1].removeprefix("agent.").removeprefix("agent")
                if current == key:
                    return number
            elif current == table and re.match(rf'\s*"?{re.escape(name)}"?\s*[.=]', line):
                return number
        return 1


_KEYS: Final = (
    "name",
    "data_dir",
    "cluster_id",
    "controllers",
    "tls",
    "capacity",
    "labels",
    "addresses",
    "on_sigterm",
    "leave_timeout",
    "log_file",
    "log_format",
    "disk_low",
)
_TLS_KEYS: Final = ("ca", "cert", "key")
_CAPACITY_KEYS: Final = ("cpu", "memory", "gpu", "disk", "custom")


def _value(text: str) -> Any:
    """`text` of an override: JSON where it is such, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _name(value: object) -> str:
    # An override such as `name=7` arrives as a number.
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)
    if not NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no name: letters, digits, . _ -, at most 64")
    return text


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list of texts")
    return tuple(_text(item) for item in value)


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("is a table of texts")
    return {
        _name(key): text if isinstance(text, str) else json.dumps(text)
        for key, text in value.items()
    }


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} is no count")
    return value


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError("is a table of counts")
    return {_name(key): _count(count) for key, count in value.items()}


def _one_of(choices: tuple[str, ...]) -> Parser:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is not one of {', '.join(choices)}")
        return str(value)

    return parse
