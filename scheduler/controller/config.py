"""The configuration of one controller: a TOML file, checked whole, every mistake at once.

Cluster-wide settings (heartbeat_timeout …) are replicated state; `[settings]` here only seeds them
when the cluster is founded. Durations are texts such as `500ms`, in milliseconds once read.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scheduler.controller.leases import margin_ms
from scheduler.core.settings import SETTINGS
from scheduler.protocol.ids import NAME
from scheduler.protocol.units import (
    BadQuantity,
    format_duration,
    parse_duration_ms,
    parse_size_bytes,
)

ELECTION_TIMEOUT: Final = "500ms-1s"
SNAPSHOT_ENTRIES: Final = 100_000
SEGMENT_BYTES: Final = 64 * 1024 * 1024
#: More than this is no log segment any more, but a mistake in the unit.
SEGMENT_BYTES_MAX: Final = 1024 * 1024 * 1024
SEGMENT_BYTES_MIN: Final = 1024 * 1024
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
#: A settings file of ours is a page; this bounds what is read.
CONFIG_BYTES_MAX: Final = 1024 * 1024

Address = tuple[str, int]
Table = dict[str, Any]


class ConfigMistakes(ValueError):
    """A configuration that cannot be used; `mistakes` says where, what and what to do."""

    def __init__(self, path: Path, mistakes: list[str]) -> None:
        super().__init__("\n".join(f"{path}{mistake}" for mistake in mistakes))
        self.path = path
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True, slots=True)
class Member:
    """Where one controller is reached."""

    name: str
    raft: Address
    agents: Address
    #: Base URL of its HTTP API, without trailing slash.
    http: str

    @property
    def http_address(self) -> Address:
        """Host and port of `http`."""
        return _split_address(self.http.split("://", 1)[1])


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files: the cluster's CA, this member's certificate and its key."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """One controller, as configured."""

    path: Path
    name: str
    data_dir: Path
    #: Empty: taken from the data directory's founding record.
    cluster_id: str
    members: dict[str, Member]
    #: None only when `insecure = true` was said aloud.
    tls: TlsConfig | None
    admin_token_file: Path | None
    election_timeout_min_ms: int
    election_timeout_max_ms: int
    snapshot_entries: int
    segment_bytes: int
    log_level: str
    log_file: Path | None
    settings: dict[str, int | str] = field(default_factory=dict)

    @property
    def member(self) -> Member:
        """This controller itself."""
        return self.members[self.name]


def load_config(path: Path) -> ControllerConfig:
    """The configuration in `path`. Raises ConfigMistakes with all mistakes, and OSError."""
    if path.stat().st_size > CONFIG_BYTES_MAX:
        raise ConfigMistakes(
            path, [f": is above {CONFIG_BYTES_MAX} bytes; that is no settings file"]
        )
    return parse_config(path.read_text(encoding="utf-8"), path)


def parse_config(text: str, path: Path) -> ControllerConfig:
    """As `load_config`, of a text; relative paths in it are relative to `path`'s directory."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigMistakes(path, [f": is no TOML: {error}"]) from None
    reader = _Reader(text, path)
    config = _read_document(reader, document)
    if config is None or reader.mistakes:
        raise ConfigMistakes(path, reader.mistakes)
    return config


def parse_setting(name: str, value: object) -> int | str:
    """A cluster-wide setting as the state keeps it: durations in ms, given so or as text.

    Raises ValueError with what would be right.
    """
    known = SETTINGS.get(name)
    if known is None:
        raise ValueError(f"there is no setting {name!r}{_suggest(name, SETTINGS)}")
    kind = known[0]
    if kind == "ms" and isinstance(value, str):
        return parse_duration_ms(value)
    if kind in {"ms", "int"}:
        if (
            kind == "int"
            and isinstance(value, str)
            and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII)
        ):
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} is a number, such as {known[1]}, and not {value!r}")
        return value
    choices = kind.partition(":")[2].split("|")
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(choices)}, and not {value!r}")
    return str(value)


def settings_mistakes(settings: Mapping[str, int | str]) -> list[str]:
    """What does not go together among all cluster-wide settings (specification 7.1)."""
    interval, timeout, transient = (
        int(settings[name])
        for name in ("heartbeat_interval", "heartbeat_timeout", "transient_timeout")
    )
    mistakes = []
    if interval <= 0:
        mistakes.append("heartbeat_interval must be above 0")
    if timeout < 3 * interval:
        mistakes.append(
            f"heartbeat_timeout ({format_duration(timeout)}) must be at least three times"
            f" heartbeat_interval ({format_duration(interval)}): a lost beat is no lost node"
        )
    needed = timeout + margin_ms(transient)
    if transient <= needed:
        mistakes.append(
            f"transient_timeout ({format_duration(transient)}) must exceed heartbeat_timeout and"
            f" the lease's margin, {format_duration(needed)} together: else leases end before"
            " silence is noticed"
        )
    return mistakes


def default_settings() -> dict[str, int | str]:
    """Every cluster-wide setting at its default."""
    return {name: default for name, (_, default) in SETTINGS.items()}


def _read_document(reader: _Reader, document: Table) -> ControllerConfig | None:
    tables = ("members", "tls", "auth", "replication", "log", "settings")
    reader.refuse_unknown(document, ("name", "data_dir", "cluster_id", "insecure", *tables))
    name = reader.text(document, "name", matches=NAME)
    data_dir = reader.file(document, "data_dir")
    cluster_id = reader.text(document, "cluster_id", default="")
    is_insecure = document.get("insecure", False)
    if not isinstance(is_insecure, bool):
        reader.mistake("insecure", "must be true or false")
    members = _read_members(reader, document, name)
    if is_insecure is True and not all(_is_loopback(member) for member in members.values()):
        reader.mistake("insecure", "is for loopback addresses alone; give [tls] its files instead")
    tls = None
    if is_insecure is not True or "tls" in document:
        tls = _read_tls(reader, reader.table(document, "tls"))
    auth = reader.table(document, "auth")
    reader.refuse_unknown(auth, ("admin_token_file",), "auth")
    token_file = reader.file(auth, "admin_token_file", "auth", default=None)
    election = _read_replication(reader, reader.table(document, "replication"))
    log = reader.table(document, "log")
    reader.refuse_unknown(log, ("level", "file"), "log")
    level = reader.text(log, "level", "log", default="info")
    if level not in LOG_LEVELS:
        reader.mistake("log.level", f"is one of {', '.join(LOG_LEVELS)}")
    log_file = reader.file(log, "file", "log", default=None)
    settings = _read_settings(reader, reader.table(document, "settings"))
    if reader.mistakes or data_dir is None:
        return None
    return ControllerConfig(
        path=reader.path,
        name=name,
        data_dir=data_dir,
        cluster_id=cluster_id,
        members=members,
        tls=tls,
        admin_token_file=token_file,
        election_timeout_min_ms=election[0],
        election_timeout_max_ms=election[1],
        snapshot_entries=election[2],
        segment_bytes=election[3],
        log_level=level,
        log_file=log_file,
        settings=settings,
    )


def _read_members(reader: _Reader, document: Table, name: str) -> dict[str, Member]:
    table = reader.table(document, "members")
    members: dict[str, Member] = {}
    for member, given in sorted(table.items()):
        place = f"members.{member}"
        if not NAME.fullmatch(member) or not isinstance(given, dict):
            reader.mistake(place, "must be a table [members.NAME] with raft, agents and http")
            continue
        reader.refuse_unknown(given, ("raft", "agents", "http"), place)
        raft = reader.address(given, "raft", place)
        agents = reader.address(given, "agents", place)
        http = reader.text(
            given, "http", place, matches=re.compile(r"https?://[^/\s]+:[0-9]{1,5}/?")
        )
        members[member] = Member(member, raft, agents, http.rstrip("/"))
    if len(members) not in {1, 3, 5} and not reader.mistakes:
        reader.mistake("members", f"has {len(members)} members; a cluster has 1, 3 or 5")
    if name and name not in members and not reader.mistakes:
        reader.mistake("name", f"{name!r} is not among [members.…]: {', '.join(sorted(members))}")
    return members


def _read_tls(reader: _Reader, table: Table) -> TlsConfig | None:
    reader.refuse_unknown(table, ("ca", "cert", "key"), "tls")
    ca, cert, key = (reader.file(table, one, "tls") for one in ("ca", "cert", "key"))
    return TlsConfig(ca, cert, key) if ca and cert and key else None


def _read_replication(reader: _Reader, table: Table) -> tuple[int, int, int, int]:
    known = ("election_timeout", "snapshot_entries", "segment_size")
    reader.refuse_unknown(table, known, "replication")
    low, high = 0, 0
    text = reader.text(table, "election_timeout", "replication", default=ELECTION_TIMEOUT)
    first, dash, second = text.partition("-")
    try:
        low, high = parse_duration_ms(first.strip()), parse_duration_ms(second.strip())
    except BadQuantity as error:
        reader.mistake("replication.election_timeout", f'{error}; write "{ELECTION_TIMEOUT}"')
    else:
        if not dash or not 0 < low < high:
            reader.mistake(
                "replication.election_timeout", f'must be a range such as "{ELECTION_TIMEOUT}"'
            )
    entries = table.get("snapshot_entries", SNAPSHOT_ENTRIES)
    if isinstance(entries, bool) or not isinstance(entries, int) or entries < 1:
        reader.mistake(
            "replication.snapshot_entries", f"must be a number such as {SNAPSHOT_ENTRIES}"
        )
        entries = SNAPSHOT_ENTRIES
    segment_bytes = SEGMENT_BYTES
    try:
        segment_bytes = parse_size_bytes(table.get("segment_size", SEGMENT_BYTES))
    except BadQuantity as error:
        reader.mistake("replication.segment_size", str(error))
    if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
        reader.mistake("replication.segment_size", "must be between 1MiB and 1GiB")
    return low, high, entries, segment_bytes


def _read_settings(reader: _Reader, table: Table) -> dict[str, int | str]:
    settings: dict[str, int | str] = {}
    for name, value in table.items():
        try:
            settings[name] = parse_setting(name, value)
            if SETTINGS[name][0] == "ms" and not isinstance(value, str):
                raise ValueError(f'write the duration as text: "{format_duration(value)}"')
        except ValueError as error:
            reader.mistake(f"settings.{name}", str(error))
    if not reader.mistakes:
        for mistake in settings_mistakes({**default_settings(), **settings}):
            reader.mistake("settings", mistake)
    return settings


def _is_loopback(member: Member) -> bool:
    hosts = (member.raft[0], member.agents[0], member.http_address[0])
    return all(host in {"localhost", "::1"} or host.startswith("127.") for host in hosts)


def _suggest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _split_address(text: str) -> Address:
    """`host:port` (`[::1]:7000` for IPv6). Raises ValueError."""
    host, colon, port = text.rstrip("/").rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII):
        raise ValueError(text)
    if not 0 < int(port) < 65_536:
        raise ValueError(text)
    return host.strip("[]"), int(port)


class _Reader:
    """Takes values out of the document and collects what is wrong with them."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        self.mistakes: list[str] = []
        self._lines = text.splitlines()

    def mistake(self, key: str, message: str) -> None:
        line = self._line_of(key)
        self.mistakes.append(f"{f':{line}' if line else ''}: {key}: {message}")

    def table(self, table: Table, key: str) -> Table:
        value = table.get(key, {})
        if isinstance(value, dict):
            return value
        self.mistake(key, f"must be a table: [{key}]")
        return {}

    def refuse_unknown(self, table: Table, known: tuple[str, ...], where: str = "") -> None:
        for key in table:
            if key not in known:
                hint = _suggest(key, known) or f"; known are {', '.join(known)}"
                self.mistake(_join(where, key), f"is no key of this file{hint}")

    def text(
        self,
        table: Table,
        key: str,
        where: str = "",
        *,
        default: str | None = None,
        matches: re.Pattern[str] | None = None,
    ) -> str:
        value = table.get(key, default)
        place = _join(where, key)
        if value is None:
            self.mistake(place, f'is missing; add {key} = "…"')
        elif not isinstance(value, str):
            self.mistake(place, "must be a text in quotes")
        elif matches is not None and not matches.fullmatch(value):
            self.mistake(place, f"{value!r} is not of the form {matches.pattern}")
        else:
            return value
        return ""

    def file(
        self, table: Table, key: str, where: str = "", *, default: str | None = ""
    ) -> Path | None:
        if default is None and key not in table:
            return None
        value = self.text(table, key, where)
        return (self.path.parent / Path(value).expanduser()).absolute() if value else None

    def address(self, table: Table, key: str, where: str) -> Address:
        value = self.text(table, key, where)
        try:
            return _split_address(value)
        except ValueError:
            if value:
                self.mistake(_join(where, key), f'{value!r} is no address; write "host:port"')
        return "", 0

    def _line_of(self, key: str) -> int | None:
        """The line where `key` is set, found by its table's header and its last part."""
        where, _, last = key.rpartition(".")
        current = ""
        for number, line in enumerate(self._lines, 1):
            header = re.match(r"\s*\[([^\]]+)\]", line)
            if header:
                current = header[1].strip()
                if current == key:
                    return number
            elif current == where and re.match(rf"\s*[\"']?{re.escape(last)}[\"']?\s*[.=]", line):
                return number
        return None


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
