"""Errors as `application/problem+json`, each with a stable `code` (specification 6.4).

Members beside RFC 9457's: `code`, `hint` (what would work), `outcome_unknown` (a change may still
commit) and, by code, `mistakes`. A 429 or 503 carries Retry-After exactly when repeating can help.
"""

from __future__ import annotations

import http
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response

from scheduler.controller.errors import NotLeaderHere, ServiceError
from scheduler.protocol.errors import Mistake

MEDIA_TYPE: Final = "application/problem+json"
#: Mistakes shown of one request; the rest are counted.
MISTAKES_MAX: Final = 100

_STATUS: Final = {
    "not_found": 404,
    "conflict": 409,
    "version": 412,
    "invalid": 422,
    "overloaded": 429,
    "unavailable": 503,
}


class Problem(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str = "",
        retry_after_s: float | None = None,
        outcome_unknown: bool = False,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.retry_after_s = retry_after_s
        self.outcome_unknown = outcome_unknown
        self.headers = dict(headers or {})
        self.members = members

    def document(self) -> dict[str, Any]:
        """The members of the answer's body."""
        found: dict[str, Any] = {
            "type": f"urn:pertinax:problem:{self.code}",
            "title": http.HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.hint:
            found["hint"] = self.hint
        if self.outcome_unknown:
            found["outcome_unknown"] = True
        return found | self.members

    def response(self) -> Response:
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = f"{self.retry_after_s:g}"
        body = msgspec.json.encode(self.document())
        return Response(body, self.status, headers, media_type=MEDIA_TYPE)


def of_service(error: ServiceError) -> Problem:
    """The answer for a call that the service refused or could not confirm."""
    members: dict[str, Any] = {}
    if isinstance(error, NotLeaderHere):
        members["leader"] = error.leader
    return Problem(
        _STATUS[error.kind],
        error.code,
        error.message,
        hint=error.hint,
        retry_after_s=error.retry_after_s,
        outcome_unknown=error.outcome_unknown,
        **members,
    )


def of_mistakes(mistakes: Sequence[Mistake]) -> Problem:
    """422 with every mistake and its path."""
    shown = [
        {"path": one.path, "message": one.message, "hint": one.hint}
        for one in mistakes[:MISTAKES_MAX]
    ]
    more = len(mistakes) - len(shown)
    detail = "; ".join(str(one) for one in mistakes[:3])
    if len(mistakes) > 3:
        detail += f"; and {len(mistakes) - 3} more"
    return Problem(422, "invalid_spec", detail, mistakes=shown, mistakes_not_shown=more)


def bad_request(detail: str, *, hint: str = "", code: str = "bad_request") -> Problem:
    return Problem(400, code, detail, hint=hint)


def not_found(what: str, *, hint: str = "", code: str = "not_found") -> Problem:
    return Problem(404, code, f"{what} does not exist", hint=hint)


def internal(*, outcome_unknown: bool) -> Problem:
    """500: a fault of ours."""
    return Problem(
        500,
        "internal",
        "the controller failed to answer; its log says why",
        outcome_unknown=outcome_unknown,
    )


def no_leader() -> Problem:
    """503: nobody leads; nothing was changed."""
    return Problem(
        503,
        "no_leader",
        "no controller leads at present",
        hint="an election takes about a second; try again",
        retry_after_s=0.5,
    )
