"""What can go wrong in the keeper, split by who must act."""

from __future__ import annotations

from typing import Final

#: Refusals of a request; the agent decides by `code`.
NO_LEASE: Final = "no_lease"
VOIDED: Final = "voided"
DUPLICATE: Final = "duplicate"
DISK_LOW: Final = "disk_low"
BAD_ORDER: Final = "bad_order"
#: The answer does not fit a frame; for `list` there are pages.
TOO_LARGE: Final = "too_large"


class KeeperError(Exception):
    """Base of the keeper's errors."""


class Refused(KeeperError):
    """A request that is not obeyed; `code` goes into the answer."""

    def __init__(self, code: str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


class LaunchFailure(KeeperError):
    """The attempt could not be started; `cause` says whose fault it is (specification 1.3)."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class AlreadyRunning(KeeperError):
    """Another keeper holds this directory's lock."""
