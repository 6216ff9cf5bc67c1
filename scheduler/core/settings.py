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
}
