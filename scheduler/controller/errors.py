"""What a call to the service can end with, beside its answer."""

from __future__ import annotations

from typing import Final, Literal

from replication.errors import (
    Certainty,
    CommandTooLarge,
    DiskFull,
    NotLeader,
    Overloaded,
    ProposalError,
)
from scheduler.core.results import Rejected

Kind = Literal["not_found", "conflict", "version", "invalid", "unavailable", "overloaded"]

#: When a client may ask again while there is no leader, in seconds: about one election.
RETRY_AFTER_S: Final = 0.5
#: The same for a full disk, which somebody has to look after.
DISK_RETRY_AFTER_S: Final = 5.0


class ServiceError(Exception):
    """A call that was refused or not confirmed; `code` is stable, `hint` says what would work."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str = "",
        kind: Kind = "conflict",
        retry_after_s: float | None = None,
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.kind: Kind = kind
        #: Seconds after which trying again makes sense; None: trying again cannot help.
        self.retry_after_s = retry_after_s
        #: True when the write may still commit: repeat only with the same idempotency key.
        self.outcome_unknown = outcome_unknown


class NotLeaderHere(ServiceError):
    """This controller does not lead: `leader` and its base URL `http`, None while unknown."""

    def __init__(self, leader: str | None, http: str | None) -> None:
        super().__init__(
            "not_leader" if leader else "no_leader",
            f"controller {leader} leads" if leader else "no controller leads at present",
            hint="try again in a moment",
            kind="unavailable",
            retry_after_s=RETRY_AFTER_S,
        )
        self.leader = leader
        self.http = http


class Lagged(Exception):
    """A watcher fell behind what is kept in memory; it may go on at `resume_index`."""

    def __init__(self, resume_index: int) -> None:
        super().__init__(f"events before index {resume_index} are no longer at hand")
        self.resume_index = resume_index


def from_rejection(rejected: Rejected) -> ServiceError:
    """The error for an entry that apply refused."""
    kinds: dict[str, Kind] = {
        "not_found": "not_found",
        "conflict": "conflict",
        "version": "version",
        "invalid": "invalid",
        "overloaded": "overloaded",
    }
    kind = kinds.get(rejected.kind, "conflict")
    return ServiceError(rejected.code, rejected.message, hint=rejected.hint, kind=kind)


def from_proposal(error: ProposalError, *, leader_http: str | None) -> ServiceError:
    """The error for a proposal or barrier that was not confirmed."""
    if isinstance(error, NotLeader):
        return NotLeaderHere(error.leader, leader_http)
    if isinstance(error, CommandTooLarge):
        return ServiceError(
            "too_large",
            f"this is too much for one change: {error}",
            hint="split it: fewer jobs in one request, or smaller specifications",
            kind="invalid",
        )
    if isinstance(error, DiskFull):
        return ServiceError(
            error.code,
            f"nothing was changed: {error}",
            hint="free space on that controller's disk; what runs goes on, and its ends are kept",
            kind="unavailable",
            retry_after_s=DISK_RETRY_AFTER_S,
        )
    if isinstance(error, Overloaded):
        return ServiceError(
            error.code, str(error), kind="overloaded", retry_after_s=error.retry_after_s
        )
    return ServiceError(
        error.code,
        str(error),
        hint="repeat it with the same idempotency key",
        kind="unavailable",
        retry_after_s=RETRY_AFTER_S,
        outcome_unknown=error.certainty is Certainty.OUTCOME_UNKNOWN,
    )
