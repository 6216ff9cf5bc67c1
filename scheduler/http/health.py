"""What probes, scrapers and browsers ask without a token."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from starlette.responses import Response

from scheduler.http.exchange import Exchange, Operation
from scheduler.http.problems import Problem

_PAGE_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def livez(exchange: Exchange) -> Response:
    """GET /livez: the event loop turns. Says nothing of the cluster, so restarts cure nothing."""
    del exchange
    return Response("ok\n", media_type="text/plain")


async def readyz(exchange: Exchange) -> Response:
    """GET /readyz: this controller can serve."""
    if not exchange.service.is_ready():
        raise Problem(503, "not_ready", "this controller cannot serve yet", retry_after_s=1.0)
    return Response("ok\n", media_type="text/plain")


async def metrics(exchange: Exchange) -> Response:
    """GET /metrics, for Prometheus."""
    text = exchange.service.metrics_text()
    return Response(text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def page(exchange: Exchange) -> Response:
    """GET /: a page for people who open the address in a browser."""
    del exchange
    return Response(_static("index.html"), media_type="text/html", headers=_PAGE_HEADERS)


async def style(exchange: Exchange) -> Response:
    """GET /static/style.css"""
    del exchange
    return Response(_static("style.css"), media_type="text/css", headers=_PAGE_HEADERS)


@cache
def _static(name: str) -> bytes:
    return (files("scheduler.http") / "static" / name).read_bytes()


OPERATIONS: Final = (
    Operation(
        "GET", "/livez", livez, "The process runs.", needs_token=False, media_type="text/plain"
    ),
    Operation(
        "GET", "/readyz", readyz, "It can serve.", needs_token=False, media_type="text/plain"
    ),
    Operation(
        "GET",
        "/metrics",
        metrics,
        "Prometheus metrics.",
        needs_token=False,
        media_type="text/plain",
    ),
    Operation("GET", "/", page, "A page for people.", needs_token=False, media_type="text/html"),
    Operation(
        "GET",
        "/static/style.css",
        style,
        "Its style sheet.",
        needs_token=False,
        media_type="text/css",
    ),
)
