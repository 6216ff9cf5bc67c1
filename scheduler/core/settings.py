"""Cluster-wide settings: replicated state, so every leader decides alike."""

from __future__ import annotations

from typing import Final

#: name -> (kind, default). Kinds: ms (duration), int, choice:a|b. Durations are in milliseconds.
SETTINGS: Final[dict[str, tuple[str, int | str]]] = {
    "heartbeat_interval": ("ms", 10_000),
    "heartbeat_timeout": ("ms", 30_000),
    "transient_timeout": ("ms", 300_000),
    "rejoin_grace": ("ms", 60_000),
    "disconnect_settle": ("ms", 1_000),
    "on_disconnect": ("choice:fail|unknown", "fail"),
    "start_timeout": ("ms", 30_000),
    "ack_timeout": ("ms", 2_000),
    "unknown_report_ttl": ("ms", 60_000),
    "unknown_report_max": ("int", 100_000),
    "unknown_report_max_per_node": ("int", 1_000),
    "late_truth": ("choice:adopt|record", "adopt"),
    "idempotency_retention": ("ms", 604_800_000),
    "log_retention": ("ms", 86_400_000),
    "snapshot_entries": ("int", 50_000),
    "tombstone_retention": ("ms", 2_592_000_000),
    "kill_limit": ("ms", 60_000),
}

#: Durations that may be zero; all others are at least 1 ms.
_MAY_BE_ZERO: Final = frozenset({"disconnect_settle", "rejoin_grace"})


def check_setting(name: str, value: int | str) -> str:
    """What is wrong with a setting; empty when it is good."""
    known = SETTINGS.get(name)
    if known is None:
        return f"there is no setting {name!r}"
    kind = known[0]
    if kind.startswith("choice:"):
        choices = kind.removeprefix("choice:").split("|")
        if value in choices:
            return ""
        return f"{name} must be one of {', '.join(choices)}, not {value!r}"
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{name} must be a whole number, not {value!r}"
    if value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
        return f"{name} must be positive, not {value}"
    return ""
