"""One request being answered, and the table of operations that both the routes and OpenAPI use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from scheduler.http import params
from scheduler.http.auth import Principal
from scheduler.http.params import Param
from scheduler.http.port import AsOf, ServicePort, View
from scheduler.http.problems import Problem, not_found
from scheduler.protocol.ids import BadId, Target

Handler = Callable[["Exchange"], Awaitable[Response]]

#: What every read of the state takes.
READ_PARAMS: Final = (
    params.choice(
        "consistency",
        "`linearizable` (default) sees every write acknowledged before; `stale` answers locally",
        "linearizable",
        "stale",
    ),
    params.integer("min_index", "answer only once this log index is applied here"),
)
REDIRECT: Final = params.flag(
    "redirect", "a follower answers 307 to the leader instead of forwarding"
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path."""

    method: str
    #: Starlette's form; ids are matched percent-encoded, so they may hold `/` and `#`.
    path: str
    handler: Handler
    summary: str
    params: tuple[Param, ...] = ()
    #: Only the leader can do it: a follower forwards it.
    is_leaders: bool = False
    needs_token: bool = True
    #: Names of the schemas in OpenAPI; empty for none.
    body: str = ""
    answer: str = ""
    status: int = 200
    media_type: str = "application/json"

    #: The answer goes on as long as both sides like.
    is_endless: bool = False

    @property
    def all_params(self) -> tuple[Param, ...]:
        return (*self.params, REDIRECT) if self.is_leaders else self.params


@dataclass(slots=True)
class Exchange:
    """What a handler works with. `query` holds only parameters that were given."""

    request: Request
    service: ServicePort
    principal: Principal
    query: Mapping[str, Any] = field(default_factory=dict)

    def segment(self, name: str) -> str:
        """A part of the path, decoded."""
        try:
            return unquote(self.request.path_params[name], errors="strict")
        except UnicodeDecodeError:
            raise not_found("what this path names") from None

    def target(self) -> Target:
        """The job, task, worker or attempt that the path names. Raises Problem 404."""
        text = self.segment("id")
        try:
            return Target.parse(text)
        except BadId as error:
            raise Problem(404, "not_found", str(error)) from None

    async def read(self) -> AsOf:
        """Await this before looking at the state; as the query's consistency wants it."""
        return await self.service.read(
            consistency=self.query.get("consistency", "linearizable"),
            min_index=self.query.get("min_index"),
        )

    async def read_own_write(self, index: int) -> AsOf:
        """The state as it is here once `index` is in it."""
        return await self.service.read(consistency="stale", min_index=index)

    def answer(
        self,
        document: View,
        as_of: AsOf,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """`document` with the point in the log that it shows."""
        body = {**document, "as_of": {"index": as_of.index, "time": rfc3339(as_of.time_ms)}}
        found = {"Pertinax-Index": str(as_of.index), **(headers or {})}
        return Response(msgspec.json.encode(body), status, found, media_type="application/json")


def rfc3339(time_ms: int) -> str:
    """Milliseconds since the epoch as `2026-01-02T03:04:05.678Z`."""
    at = datetime.fromtimestamp(time_ms / 1000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def sparse(views: Iterable[View], fields: tuple[str, ...] | None) -> list[View]:
    """Only `fields` of each view, and always its id; all of it without."""
    if fields is None:
        return list(views)
    wanted = ("id", *(one for one in fields if one != "id"))
    return [{name: view[name] for name in wanted if name in view} for view in views]
