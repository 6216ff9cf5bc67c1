"""What `apply` returns: an outcome as a value, never an exception (specification 2.5)."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.protocol.messages import Verdict


@dataclass(frozen=True, slots=True)
class Rejected:
    """The entry changed nothing; `code` is stable, `hint` says what would work."""

    code: str
    message: str
    hint: str = ""
    #: 404-like (`not_found`), 409-like (`conflict`), 412 (`version`), 422 (`invalid`).
    kind: str = "conflict"


@dataclass(frozen=True, slots=True)
class Submitted:
    """Answer to SubmitJobs. `is_known`: the key had been used before for the same body."""

    job_ids: tuple[int, ...]
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class KillAnswer:
    """Answer to KillRequested. `is_done`: nothing is left to end."""

    job: int
    is_done: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class PlacedAnswer:
    """Answer to Placed: attempt id -> token of those placed, and (attempt, why) of those not."""

    tokens: dict[str, str]
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """Answer to one report: committed | registry_full | wrong_node."""

    sequence: int
    token: str
    answer: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Answer to NodeJoined: the session is the entry's index."""

    session: int


@dataclass(frozen=True, slots=True)
class Rejoined:
    """Answer to NodeInventory."""

    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Anything else that was taken. `remaining` counts what is still due (DeadlinesPassed)."""

    remaining: int = 0
