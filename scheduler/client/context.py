"""Where a cluster is and how to talk to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Seconds to connect, TLS included, before the next controller is tried.
CONNECT_TIMEOUT_S: Final = 2.0
#: Seconds one call may take over all controllers and repetitions.
DEADLINE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster as its clients know it."""

    #: Base URLs of all controllers, without a trailing slash; the likely leader first.
    urls: tuple[str, ...]
    token: str = ""
    #: PEM file with the cluster's CA; None trusts what the system trusts.
    ca_file: str | None = None
    #: Name to act under, for tokens that may choose one (the admin's).
    user: str = ""
    #: Seconds one call may take, repetitions included; no limit on streams.
    deadline_s: float = DEADLINE_S
    connect_timeout_s: float = CONNECT_TIMEOUT_S
