"""What a call of the API can raise. Every error says whether the change may still happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: A JSON object of the API, with the fields of the specification, 6.3.
Document = dict[str, Any]


class ClientError(Exception):
    """Base. `code` is stable; `message` says what, `hint` what to do; `details` is the rest."""

    code = "client_error"
    #: True when a change was asked for and may still happen, or have happened.
    outcome_unknown = False

    def __init__(
        self, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: Document = dict(details or {})


class ApiError(ClientError):
    """A controller answered with an error. `status` is the HTTP status.

    `mistakes` lists what is wrong in a specification, each `{"path", "message", "hint"}`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        hint: str = "",
        details: Mapping[str, Any] | None = None,
        outcome_unknown: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.status = status
        self.code = code
        self.outcome_unknown = outcome_unknown
        self.retry_after_s = retry_after_s
        #: An earlier try of the same change broke off: what is refused now may be its own doing.
        self.is_repeated = False

    @property
    def mistakes(self) -> list[Document]:
        return list(self.details.get("mistakes", ()))


class NotAvailable(ClientError):
    """Base of: no controller could serve the call before the deadline. May be tried again."""

    code = "unavailable"

    def __init__(
        self,
        message: str,
        *,
        outcome_unknown: bool = False,
        hint: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.outcome_unknown = outcome_unknown


class NoLeader(NotAvailable):
    """Controllers answered, but none leads or can reach a quorum. `code` is the last answer's."""

    def __init__(self, message: str, *, code: str, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.code = code


class Unreachable(NotAvailable):
    """No controller answered at all."""

    code = "unreachable"


class BadAnswer(ClientError):
    """What answered does not speak this API."""

    code = "bad_answer"


class BadKey(ClientError):
    """An idempotency key that no request can carry; nothing was sent."""

    code = "bad_key"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="use 1 to 255 printable ASCII characters")


class WaitTimeout(ClientError):
    """`wait` ran out of time; `jobs` are the jobs as last seen, in the order asked for."""

    code = "wait_timeout"

    def __init__(self, message: str, jobs: Sequence[Document]) -> None:
        super().__init__(message)
        self.jobs = list(jobs)


class LogLost(ClientError):
    """A log, or the rest of it, cannot be had: `code` says why (missing, gone, unreachable)."""

    def __init__(self, message: str, *, code: str, offset: int) -> None:
        super().__init__(message)
        self.code = code
        self.offset = offset
