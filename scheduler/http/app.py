"""The ASGI application: from a request to one operation, and every error to a problem document.

Routing is by the path as sent, still percent-encoded, so that ids with `/` and `#` are one segment.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler.controller.errors import ServiceError
from scheduler.http import cluster, events, health, jobs, logs, nodes, openapi, problems
from scheduler.http.auth import USER_HEADER, Authenticator, Principal, principal_of
from scheduler.http.exchange import Exchange, Operation
from scheduler.http.forward import HOP_HEADER, Forwarder, LeaderLost
from scheduler.http.params import read_query
from scheduler.http.port import ServicePort
from scheduler.http.problems import Problem

_LOG: Final = logging.getLogger("pertinax.http")
#: Who asks where no token is needed.
_ANYONE: Final = Principal("", "anyone")

OPERATIONS: Final[tuple[Operation, ...]] = (
    *jobs.OPERATIONS,
    *logs.OPERATIONS,
    *nodes.OPERATIONS,
    *cluster.OPERATIONS,
    *events.OPERATIONS,
    *health.OPERATIONS,
    *openapi.OPERATIONS,
)


def make_app(service: ServicePort, auth: Authenticator, *, forwarder: Forwarder) -> ASGIApp:
    """The API of one controller. `forwarder` carries what only the leader can do."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    # `{id}:kill` before `{id}`, which would take it for an id.
    paths = sorted(by_path, key=lambda path: "}:" not in path)
    routes = [Route(path, _Endpoint(service, auth, forwarder, by_path[path])) for path in paths]
    router = Router(routes, redirect_slashes=False, default=_unknown_path)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
            await router(scope, receive, send)

    return app


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    problem = Problem(
        404, "unknown_path", f"{scope['path'][:200]} is no path of this API", hint="/openapi.json"
    )
    await problem.response()(scope, receive, send)


class _Endpoint:
    """All operations on one path."""

    def __init__(
        self,
        service: ServicePort,
        auth: Authenticator,
        forwarder: Forwarder,
        operations: Mapping[str, Operation],
    ) -> None:
        self._service = service
        self._auth = auth
        self._forwarder = forwarder
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        is_change = scope["method"] not in ("GET", "HEAD")
        response: Response | None
        try:
            operation = self._operation(scope["method"])
            response = await self._answer(operation, request, send)
        except Problem as problem:
            response = problem.response()
        except ServiceError as error:
            response = problems.of_service(error).response()
        except LeaderLost as lost:
            # The leader's answer broke off in the middle: so does ours, unfinished.
            _LOG.info("stream_broken path=%s reason=%s", scope["path"][:200], lost)
            return
        except Exception:  # noqa: BLE001
            # The outermost frame of this request: it ends here, the controller goes on.
            _LOG.exception("request_failed method=%s path=%s", scope["method"], scope["path"][:200])
            response = problems.internal(outcome_unknown=is_change).response()
        if response is not None:
            await self._send(response, scope, receive, send)

    async def _send(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await response(scope, receive, send)
        except ServiceError as error:
            # In the middle of a body: left unfinished, which ends the connection.
            _LOG.info("stream_broken path=%s code=%s", scope["path"][:200], error.code)

    def _operation(self, method: str) -> Operation:
        found = self._operations.get("GET" if method == "HEAD" else method)
        if found is None or (method == "HEAD" and found.is_endless):
            allowed = sorted(self._operations)
            raise Problem(
                405,
                "method_not_allowed",
                f"{method[:20]} is not possible here",
                hint=f"possible: {', '.join(allowed)}",
                headers={"Allow": ", ".join(allowed)},
            )
        return found

    async def _answer(self, operation: Operation, request: Request, send: Send) -> Response | None:
        """The response; None when the leader's was passed on."""
        principal = self._principal(request) if operation.needs_token else _ANYONE
        query = read_query(request.scope["query_string"], operation.all_params)
        if operation.is_leaders and not await self._is_for_here():
            return await self._by_leader(request, send, is_redirect=query.get("redirect", False))
        response = await operation.handler(Exchange(request, self._service, principal, query))
        if operation.needs_token:
            await self._add_position(response)
        return response

    def _principal(self, request: Request) -> Principal:
        return principal_of(
            self._auth,
            authorization=request.headers.get("authorization"),
            claimed_user=request.headers.get(USER_HEADER),
        )

    async def _is_for_here(self) -> bool:
        """Leads, or was just elected: then the service itself waits for its takeover."""
        if self._service.is_leader:
            return True
        as_of = await self._service.read(consistency="stale", min_index=None)
        return as_of.leader == self._forwarder.name

    async def _by_leader(
        self, request: Request, send: Send, *, is_redirect: bool
    ) -> Response | None:
        url = self._service.leader_http()
        if url is None or HOP_HEADER in request.headers:
            # Whoever passed it on believed that this member leads: an election is going on.
            raise problems.no_leader()
        if is_redirect:
            query = request.scope["query_string"].decode("latin-1")
            location = url + request.scope["path"] + (f"?{query}" if query else "")
            return Response(status_code=307, headers={"Location": location})
        await self._forwarder.forward(url, request.scope, request.receive, send)
        return None

    async def _add_position(self, response: Response) -> None:
        as_of = await self._service.read(consistency="stale", min_index=None)
        response.headers.setdefault("Pertinax-Index", str(as_of.index))
        if as_of.leader is not None:
            response.headers["Pertinax-Leader"] = as_of.leader
        url = self._service.leader_http()
        if url is not None:
            response.headers["Pertinax-Leader-Url"] = url
        response.headers.setdefault("Cache-Control", "no-store")
