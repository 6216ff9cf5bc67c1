"""Whom a certificate of the cluster's CA speaks for, by its common name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Begins the common name of agents' certificates; controllers' begin with `controller:`.
AGENT_PREFIX: Final = "agent:"


def is_agent(certificate: Mapping[str, Any] | None) -> bool:
    """Whether what `getpeercert()` returned belongs to an agent.

    Agents' certificates are of the same CA and may hold the same host names. One that answers in
    a controller's place must not be handed a token.
    """
    return any(
        name == "commonName" and str(value).startswith(AGENT_PREFIX)
        for part in (certificate or {}).get("subject", ())
        for name, value in part
    )
