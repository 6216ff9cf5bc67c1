"""Strict query parameters: unknown names and bad values are errors, all told at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

from scheduler.http.problems import Problem, bad_request

#: Pairs read of one query string.
PAIRS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Param:
    """One query parameter. `read` raises ValueError with what is wrong; `schema` is OpenAPI's."""

    name: str
    doc: str
    read: Callable[[str], Any]
    schema: Mapping[str, Any] = field(default_factory=dict)


def text(name: str, doc: str, *, chars_max: int = 256) -> Param:
    def read(value: str) -> str:
        if not value or len(value) > chars_max:
            raise ValueError(f"wants 1 to {chars_max} characters")
        return value

    return Param(name, doc, read, {"type": "string", "maxLength": chars_max})


def integer(name: str, doc: str, *, low: int = 0, high: int = 2**62) -> Param:
    def read(value: str) -> int:
        # Not int(): it takes `1_0`, blanks and other alphabets' digits.
        if not (value.isascii() and value.isdigit()) or len(value) > 19:
            raise ValueError("wants a whole number")
        if not low <= int(value) <= high:
            raise ValueError(f"wants a number from {low} to {high}")
        return int(value)

    return Param(name, doc, read, {"type": "integer", "minimum": low, "maximum": high})


def flag(name: str, doc: str) -> Param:
    def read(value: str) -> bool:
        if value not in ("", "true", "false", "1", "0"):
            raise ValueError("wants true or false")
        return value in ("", "true", "1")

    return Param(name, doc, read, {"type": "boolean"})


def choice(name: str, doc: str, *choices: str) -> Param:
    def read(value: str) -> str:
        if value not in choices:
            raise ValueError(f"wants one of {', '.join(choices)}{suggestion(value, choices)}")
        return value

    return Param(name, doc, read, {"type": "string", "enum": list(choices)})


def names(name: str, doc: str, *choices: str) -> Param:
    """A list of names, separated by commas; any of `choices`, or any at all without."""

    def read(value: str) -> tuple[str, ...]:
        found = tuple(one.strip() for one in value.split(","))
        for one in found:
            if not one:
                raise ValueError("has an empty name in its list")
            if choices and one not in choices:
                raise ValueError(
                    f"knows no {one[:64]!r}{suggestion(one, choices)}: {', '.join(choices)}"
                )
        return found

    item: dict[str, Any] = {"type": "string"}
    if choices:
        item["enum"] = list(choices)
    schema = {"type": "array", "items": item, "x-separator": ","}
    return Param(name, doc, read, schema)


def read_query(query: bytes, params: Sequence[Param]) -> dict[str, Any]:
    """The values of a query string, by name. Raises Problem 400 with every mistake."""
    known = {param.name: param for param in params}
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for name, value in _pairs(query):
        param = known.get(name)
        if param is None:
            mistakes.append(f"unknown parameter {name[:64]!r}{suggestion(name, tuple(known))}")
        elif name in values:
            mistakes.append(f"{name} is given twice")
        else:
            try:
                values[name] = param.read(value)
            except ValueError as error:
                mistakes.append(f"{name} {error}")
    if mistakes:
        raise Problem(
            400,
            "bad_query",
            "; ".join(mistakes[:10]),
            hint=f"known here: {', '.join(sorted(known))}" if known else "this call has none",
            mistakes=[{"path": "", "message": one, "hint": ""} for one in mistakes],
        )
    return values


def suggestion(name: str, known: Sequence[str]) -> str:
    """` (did you mean 'x'?)` when something known is close to `name`."""
    close = difflib.get_close_matches(name[:64], known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _pairs(query: bytes) -> list[tuple[str, str]]:
    if not query:
        return []
    try:
        return parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=PAIRS_MAX,
        )
    except ValueError as error:
        raise bad_request(f"the query string cannot be read: {error}", code="bad_query") from None
