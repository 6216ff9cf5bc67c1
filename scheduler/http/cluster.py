"""/v1/cluster: status and the cluster-wide settings."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from scheduler.http.bodies import read_body, read_object
from scheduler.http.exchange import READ_PARAMS, Exchange, Operation
from scheduler.http.problems import of_mistakes
from scheduler.protocol.errors import Mistake


async def show_status(exchange: Exchange) -> Response:
    """GET /v1/cluster: answered from what this controller knows, also without a quorum."""
    as_of = await exchange.service.read(consistency="stale", min_index=None)
    return exchange.answer(exchange.service.cluster_status(), as_of)


async def show_config(exchange: Exchange) -> Response:
    """GET /v1/cluster/config"""
    as_of = await exchange.read()
    return exchange.answer({"settings": dict(exchange.service.settings())}, as_of)


async def change_config(exchange: Exchange) -> Response:
    """PATCH /v1/cluster/config: {name: value}, all or nothing."""
    changes = read_object(await read_body(exchange.request))
    if not changes:
        raise of_mistakes((Mistake("", "names no setting", 'such as {"rejoin_grace": "30s"}'),))
    mistakes = [
        Mistake(name[:64], "wants a number or a text")
        for name, value in changes.items()
        if isinstance(value, bool) or not isinstance(value, (int, str))
    ]
    if mistakes:
        raise of_mistakes(mistakes)
    index = await exchange.service.configure(changes, user=exchange.principal.user)
    as_of = await exchange.read_own_write(index)
    return exchange.answer({"settings": dict(exchange.service.settings())}, as_of)


OPERATIONS: Final = (
    Operation(
        "GET",
        "/v1/cluster",
        show_status,
        "The cluster as this controller sees it; `quorum` is false when it knows of none.",
        answer="ClusterStatus",
    ),
    Operation(
        "GET",
        "/v1/cluster/config",
        show_config,
        "Cluster-wide settings; durations in milliseconds.",
        READ_PARAMS,
        answer="Settings",
    ),
    Operation(
        "PATCH",
        "/v1/cluster/config",
        change_config,
        "Change cluster-wide settings; durations as `30s` or in milliseconds.",
        is_leaders=True,
        body="SettingsChange",
        answer="Settings",
    ),
)
