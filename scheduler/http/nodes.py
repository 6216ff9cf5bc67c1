"""/v1/nodes: look at, cordon, uncordon."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from scheduler.http.bodies import read_body, read_why
from scheduler.http.exchange import READ_PARAMS, Exchange, Operation
from scheduler.http.port import AsOf, View
from scheduler.http.problems import not_found


async def list_nodes(exchange: Exchange) -> Response:
    """GET /v1/nodes"""
    as_of = await exchange.read()
    return exchange.answer({"nodes": exchange.service.nodes()}, as_of)


async def show_node(exchange: Exchange) -> Response:
    """GET /v1/nodes/{name}"""
    return _shown(exchange, await exchange.read())


async def cordon(exchange: Exchange) -> Response:
    """POST /v1/nodes/{name}:cordon"""
    return await _change(exchange, is_unschedulable=True)


async def uncordon(exchange: Exchange) -> Response:
    """POST /v1/nodes/{name}:uncordon"""
    return await _change(exchange, is_unschedulable=False)


async def _change(exchange: Exchange, *, is_unschedulable: bool) -> Response:
    why = read_why(await read_body(exchange.request))
    index = await exchange.service.change_node(
        exchange.segment("name"),
        unschedulable=is_unschedulable,
        why=why,
        user=exchange.principal.user,
    )
    return _shown(exchange, await exchange.read_own_write(index))


def _shown(exchange: Exchange, as_of: AsOf) -> Response:
    name = exchange.segment("name")
    view: View | None = exchange.service.node(name)
    if view is None:
        raise not_found(f"node {name[:64]}", hint="`pertinax nodes` lists them")
    return exchange.answer(view, as_of)


OPERATIONS: Final = (
    Operation("GET", "/v1/nodes", list_nodes, "Nodes, by name.", READ_PARAMS, answer="Nodes"),
    Operation("GET", "/v1/nodes/{name}", show_node, "One node.", READ_PARAMS, answer="Node"),
    Operation(
        "POST",
        "/v1/nodes/{name}:cordon",
        cordon,
        "Place nothing more there.",
        is_leaders=True,
        body="Why",
        answer="Node",
    ),
    Operation(
        "POST",
        "/v1/nodes/{name}:uncordon",
        uncordon,
        "Let it receive work again.",
        is_leaders=True,
        body="Why",
        answer="Node",
    ),
)
