"""The clients of the HTTP API: `Client` blocks, `AsyncClient` awaits. No server code is imported.

Importing this loads neither: the command line must start fast, and `AsyncClient` needs an extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.client.context import Context
from scheduler.client.errors import (
    ApiError,
    BadAnswer,
    BadKey,
    ClientError,
    Document,
    LogLost,
    NoLeader,
    NotAvailable,
    Unreachable,
    WaitTimeout,
)

if TYPE_CHECKING:
    from scheduler.client.async_client import AsyncClient
    from scheduler.client.client import Client
    from scheduler.client.follow import LogChunk

__all__ = [
    "ApiError",
    "AsyncClient",
    "BadAnswer",
    "BadKey",
    "Client",
    "ClientError",
    "Context",
    "Document",
    "LogChunk",
    "LogLost",
    "NoLeader",
    "NotAvailable",
    "Unreachable",
    "WaitTimeout",
]

_LATE = {
    "AsyncClient": "scheduler.client.async_client",
    "Client": "scheduler.client.client",
    "LogChunk": "scheduler.client.follow",
}


def __getattr__(name: str) -> object:
    if name in _LATE:
        from importlib import import_module

        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
