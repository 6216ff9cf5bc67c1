"""Failures as people and programs see them: what, why, what to do, and the exit code.

Exit codes (specification 6.2): 0 done, 1 failed, 2 usage, 3 not found, 4 refused or conflict,
5 not authenticated or not allowed, 6 no leader, no quorum or unreachable (may be retried),
7 invalid specification, 8 wait timed out, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final


class Exit(IntEnum):
    """Exit codes of every command but `run`, which ends as its job did."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    NOT_ALLOWED = 5
    UNAVAILABLE = 6
    INVALID = 7
    TIMED_OUT = 8
    INTERRUPTED = 130


class Failure(Exception):
    """Ends a command. `what`, `why` and `hint` are one line each."""

    def __init__(
        self,
        what: str,
        *,
        why: str,
        hint: str,
        code: str,
        exit_code: Exit,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        self.code = code
        self.exit_code = exit_code
        self.details = dict(details or {})

    def lines(self) -> str:
        """Three lines for people."""
        return f"error: {self.what}\n  why: {self.why}\n  do:  {self.hint}"

    def document(self) -> dict[str, Any]:
        """The object for programs."""
        details = {"why": self.why, **self.details}
        return {
            "error": {
                "code": self.code,
                "message": self.what,
                "hint": self.hint,
                "details": details,
            }
        }


def usage(what: str, *, why: str, hint: str, code: str = "usage") -> Failure:
    """A command line that cannot be meant."""
    return Failure(what, why=why, hint=hint, code=code, exit_code=Exit.USAGE)


_BY_STATUS: Final[dict[int, Exit]] = {
    400: Exit.USAGE,
    401: Exit.NOT_ALLOWED,
    403: Exit.NOT_ALLOWED,
    404: Exit.NOT_FOUND,
    405: Exit.REFUSED,
    409: Exit.REFUSED,
    412: Exit.REFUSED,
    413: Exit.INVALID,
    415: Exit.INVALID,
    422: Exit.INVALID,
    429: Exit.UNAVAILABLE,
    501: Exit.REFUSED,
    503: Exit.UNAVAILABLE,
    504: Exit.UNAVAILABLE,
}
#: Codes whose meaning is narrower than their HTTP status.
_BY_CODE: Final[dict[str, Exit]] = {
    "invalid_spec": Exit.INVALID,
    "invalid_document": Exit.INVALID,
    "not_supported": Exit.REFUSED,
}
_WHY_BY_EXIT: Final[dict[Exit, str]] = {
    Exit.USAGE: "the cluster does not take the request as it is",
    Exit.NOT_FOUND: "the cluster knows nothing of that name",
    Exit.REFUSED: "the present state does not allow it",
    Exit.NOT_ALLOWED: "the token does not allow it",
    Exit.UNAVAILABLE: "no controller could serve the call in time",
    Exit.INVALID: "the specification is not valid",
    Exit.FAILED: "the cluster answered with an error",
}
_HINT_BY_EXIT: Final[dict[Exit, str]] = {
    Exit.USAGE: "see the command's --help",
    Exit.NOT_FOUND: "`pertinax jobs` and `pertinax nodes` list what there is",
    Exit.REFUSED: "`pertinax job ID` shows the present state",
    Exit.NOT_ALLOWED: "use a token that may: PERTINAX_TOKEN, or the context's token_file",
    Exit.UNAVAILABLE: "try again; `pertinax cluster status` shows the members",
    Exit.INVALID: "correct it; `pertinax validate FILE` checks without submitting",
    Exit.FAILED: "the controllers' log files say more",
}


def failure_of(error: Exception) -> Failure | None:
    """The failure that an exception of the client or of the local cluster stands for."""
    from scheduler.client.errors import ClientError
    from scheduler.local.errors import LocalError
    from scheduler.protocol.errors import InvalidSpec

    if isinstance(error, Failure):
        return error
    if isinstance(error, ClientError):
        return _of_client(error)
    if isinstance(error, InvalidSpec):
        return invalid([vars_of(one) for one in error.mistakes])
    if isinstance(error, LocalError):
        exits = {
            "usage": Exit.USAGE,
            "not_found": Exit.NOT_FOUND,
            "refused": Exit.REFUSED,
            "failed": Exit.FAILED,
            "unavailable": Exit.UNAVAILABLE,
        }
        return Failure(
            error.what,
            why=error.why,
            hint=error.hint,
            code=error.code,
            exit_code=exits[error.kind],
        )
    if isinstance(error, OSError):
        return _of_system(error)
    return None


def _of_system(error: OSError) -> Failure:
    """What this machine refused: a directory that cannot be written, a full disk."""
    reason = error.strerror or str(error) or type(error).__name__
    return Failure(
        f"{error.filename}: {reason}" if error.filename else reason,
        why="this machine does not let the command read or write what it needs",
        hint="see to its permissions and space, or name another place",
        code="os_error",
        exit_code=Exit.FAILED,
        details={"errno": error.errno},
    )


def vars_of(mistake: object) -> dict[str, str]:
    """A mistake as a JSON object."""
    names = ("path", "message", "hint")
    return {name: str(getattr(mistake, name)) for name in names}


def invalid(mistakes: Sequence[Mapping[str, Any]], *, source: str = "") -> Failure:
    """An invalid specification; every mistake on the `why` line, each with its path."""
    told = [_mistake_text(one) for one in mistakes]
    what = "the specification is not valid"
    what += f": {source}" if source else ""
    if len(told) > 1:
        what += f" ({len(told)} mistakes)"
    return Failure(
        what,
        why="; ".join(told) or "the cluster does not say",
        hint=_HINT_BY_EXIT[Exit.INVALID],
        code="invalid_spec",
        exit_code=Exit.INVALID,
        details={"mistakes": [dict(one) for one in mistakes]},
    )


def _mistake_text(mistake: Mapping[str, Any]) -> str:
    path, hint = mistake.get("path"), mistake.get("hint")
    return (
        (f"{path}: " if path else "") + str(mistake.get("message")) + (f" ({hint})" if hint else "")
    )


def _of_client(error: Any) -> Failure:
    from scheduler.client import errors

    exit_code = Exit.FAILED
    if isinstance(error, errors.ApiError):
        if error.mistakes and error.status in (400, 413, 422):
            return invalid(error.mistakes)
        exit_code = _BY_CODE.get(error.code) or _BY_STATUS.get(error.status, Exit.FAILED)
    elif isinstance(error, errors.NotAvailable):
        exit_code = Exit.UNAVAILABLE
    elif isinstance(error, errors.BadKey):
        exit_code = Exit.USAGE
    elif isinstance(error, errors.WaitTimeout):
        exit_code = Exit.TIMED_OUT
    elif isinstance(error, errors.LogLost):
        exit_code = Exit.NOT_FOUND
        if "unreachable" in error.code:
            exit_code = Exit.UNAVAILABLE
    details = dict(error.details)
    why = str(details.pop("why", "") or "") or _WHY_BY_EXIT.get(exit_code, "")
    if isinstance(error, errors.ApiError):
        details["status"] = error.status
    if error.outcome_unknown:
        details["outcome_unknown"] = True
        why = "the change may or may not have happened: the answer was lost"
    return Failure(
        error.message,
        why=why or f"the cluster says {error.code}",
        hint=error.hint or _HINT_BY_EXIT.get(exit_code, _HINT_BY_EXIT[Exit.FAILED]),
        code=error.code,
        exit_code=exit_code,
        details=details,
    )
