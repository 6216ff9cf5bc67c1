"""Names of things, as text and as values (specification 1.1 and 6.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NewType, Self

from scheduler.protocol.errors import ProtocolError

JobId = NewType("JobId", int)
NodeName = NewType("NodeName", str)
#: `INCARNATION.PLACED_INDEX.ORDINAL`: fixed width, so that comparing texts compares ages.
FencingToken = NewType("FencingToken", str)

#: Hex digits of each part of a token. The incarnation is 8 random ones and 4 that count restores.
_TOKEN: Final = re.compile(r"[0-9a-f]{12}\.[0-9a-f]{16}\.[0-9a-f]{6}")
_WORKER: Final = re.compile(
    r"(?P<job>[1-9][0-9]{0,17})"
    r"(?:/(?P<task>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})(?:/(?P<index>0|[1-9][0-9]{0,8}))?)?"
    r"(?:#(?P<number>[1-9][0-9]{0,8}))?"
)
#: A name of a node, task, queue or addon.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class BadId(ProtocolError):
    """A text that names nothing of ours."""

    code = "bad_id"


def make_token(incarnation: str, placed_index: int, ordinal: int) -> FencingToken:
    """The token of the `ordinal`-th placement of the entry at `placed_index`."""
    return FencingToken(f"{incarnation}.{placed_index:016x}.{ordinal:06x}")


def parse_token(text: str) -> FencingToken:
    """`text` as a token. Raises BadId."""
    if not _TOKEN.fullmatch(text):
        raise BadId(f"{text!r} is no fencing token")
    return FencingToken(text)


def first_incarnation(random_bits: int) -> str:
    """The incarnation of a new cluster: 32 random bits, then the number of restores."""
    return f"{random_bits & 0xFFFFFFFF:08x}0000"


def next_incarnation(incarnation: str) -> str:
    """The incarnation after a restore: the same cluster bits, one restore more."""
    return f"{incarnation[:8]}{int(incarnation[8:], 16) + 1:04x}"


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """One replica of a task."""

    job: int
    task: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}/{self.task}/{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One execution of a worker; `number` counts from 1."""

    job: int
    task: str
    index: int
    number: int

    @property
    def worker(self) -> WorkerId:
        return WorkerId(self.job, self.task, self.index)

    def __str__(self) -> str:
        return f"{self.job}/{self.task}/{self.index}#{self.number}"


@dataclass(frozen=True, slots=True)
class Target:
    """What a user named: a job, or something inside it. Missing parts are None."""

    job: int
    task: str | None = None
    index: int | None = None
    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`42`, `42/main`, `42/main/0`, `42/main/0#1` or `42#1`. Raises BadId."""
        found = _WORKER.fullmatch(text)
        if found is None:
            raise BadId(f"{text!r} is no job, task, worker or attempt; such as 42 or 42/main/0#1")
        index, number = found["index"], found["number"]
        return cls(
            job=int(found["job"]),
            task=found["task"],
            index=None if index is None else int(index),
            number=None if number is None else int(number),
        )

    def __str__(self) -> str:
        text = str(self.job)
        if self.task is not None:
            text += f"/{self.task}"
        if self.index is not None:
            text += f"/{self.index}"
        return text + (f"#{self.number}" if self.number is not None else "")
