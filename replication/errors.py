"""Errors of proposals and of members. Each says what the caller knows: not applied, or unknown."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Certainty(StrEnum):
    """What a failed proposal proves."""

    NOT_APPLIED = "not_applied"
    OUTCOME_UNKNOWN = "outcome_unknown"


class ReplicationError(Exception):
    """Base of this package's errors. `code` is stable and shown to users."""

    code: ClassVar[str] = "replication_error"


class ProposalError(ReplicationError):
    """A proposal (or read barrier) that was not confirmed."""

    code: ClassVar[str] = "proposal_error"
    certainty: ClassVar[Certainty] = Certainty.OUTCOME_UNKNOWN


class NotLeader(ProposalError):
    """This member does not lead; nothing was appended. `leader` is its name, None while unknown."""

    code: ClassVar[str] = "not_leader"
    certainty: ClassVar[Certainty] = Certainty.NOT_APPLIED

    def __init__(self, leader: str | None) -> None:
        where = f"the leader is {leader}" if leader else "no leader is known"
        super().__init__(f"this controller does not lead; {where}")
        self.leader = leader


class Overloaded(ProposalError):
    """A bounded queue is full; nothing was appended. Try again after `retry_after_s`."""

    code: ClassVar[str] = "overloaded"
    certainty: ClassVar[Certainty] = Certainty.NOT_APPLIED

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        super().__init__(f"{what}; try again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class DiskFull(Overloaded):
    """The disk of the log is full; nothing was appended. What frees work is still taken."""

    code: ClassVar[str] = "disk_full"


class CommandTooLarge(ProposalError):
    """The command exceeds the bound of one entry; nothing was appended."""

    code: ClassVar[str] = "command_too_large"
    certainty: ClassVar[Certainty] = Certainty.NOT_APPLIED


class Discarded(ProposalError):
    """Another entry took the slot: this one is definitely not committed."""

    code: ClassVar[str] = "discarded"
    certainty: ClassVar[Certainty] = Certainty.NOT_APPLIED


class LeadershipLost(ProposalError):
    """The leader changed while the entry was in flight; it may still commit."""

    code: ClassVar[str] = "leadership_lost"


class OutcomeUnknown(ProposalError):
    """The deadline passed or the member closed; the entry may still commit."""

    code: ClassVar[str] = "outcome_unknown"


class ConfigError(ReplicationError):
    """Settings that cannot work together; the message says which and why."""

    code: ClassVar[str] = "config_error"


class StorageMismatch(ReplicationError):
    """The data directory does not fit: another cluster, another member, or a log with a gap."""

    code: ClassVar[str] = "storage_mismatch"


class MemberUnreachable(ReplicationError):
    """No connection to the member, or it ended before the answer came."""

    code: ClassVar[str] = "member_unreachable"

    def __init__(self, member: str) -> None:
        super().__init__(f"controller {member} is not reachable")
        self.member = member


class RequestFailed(ReplicationError):
    """The other member answered a request with an error; the text is its own."""

    code: ClassVar[str] = "request_failed"
