"""Tables and texts for people. No colour library: most calls print a table, and must be fast.

Whatever comes from outside is shown with its control characters made visible: a job's name or
reason cannot move the cursor or change colours.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any, Final

#: Columns of output that is no terminal, and has no COLUMNS.
WIDTH_DEFAULT: Final = 160
#: A flexible column is not cut below this.
FLEX_WIDTH_MIN: Final = 12
GAP: Final = "  "

_COLOURS: Final = {
    "Succeeded": "32", "Ready": "32", "Online": "32",
    "Running": "36", "Pending": "33", "Unknown": "35", "Stopped": "34",
    "Failed": "31", "Killed": "31", "Offline": "31",
}  # fmt: skip


def width() -> int:
    """Columns to fill."""
    return shutil.get_terminal_size((WIDTH_DEFAULT, 24)).columns


def has_colour(stream: IO[str] | None = None) -> bool:
    """Whether colours may be used: on a terminal that has them, unless NO_COLOR is set."""
    stream = stream or sys.stdout
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "") != "dumb"


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    flexible: Sequence[str] = (),
    columns: int | None = None,
    is_coloured: bool | None = None,
) -> str:
    """Aligned columns; those of `flexible` are cut with … when the line would be too long."""
    cells = [[visible(text_of(value)) for value in row] for row in rows]
    widths = [
        max([_cells(header), *(_cells(row[at]) for row in cells)])
        for at, header in enumerate(headers)
    ]
    _shrink(widths, [headers.index(name) for name in flexible], columns or width())
    is_coloured = has_colour() if is_coloured is None else is_coloured
    lines = [_line(headers, widths, is_coloured=False)]
    lines += [_line(row, widths, is_coloured=is_coloured) for row in cells]
    return "\n".join(lines)


def fields(pairs: Iterable[tuple[str, object]]) -> str:
    """`name: value` lines, aligned; those without a value are left out."""
    shown = [(name, visible(text_of(value))) for name, value in pairs if value not in (None, "")]
    indent = max((len(name) for name, _ in shown), default=0) + 2
    return "\n".join(f"{name + ':':<{indent}}{value}" for name, value in shown)


def text_of(value: object) -> str:
    """A cell: nothing for None, yes or no for booleans."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def visible(text: str) -> str:
    """`text` on one line, every control character written out."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def harmless(text: str) -> str:
    """Output of a job for a terminal: lines and tabs stay, every other control is written out."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t\r" else _escape(one) for one in text)


def ago(value: str | None, *, now: datetime | None = None) -> str:
    """An RFC 3339 time as `12s ago`; the text itself when it is no time."""
    when = parse_time(value)
    if when is None:
        return value or ""
    seconds = ((now or current_time()) - when).total_seconds()
    return f"in {span(-seconds)}" if seconds <= -1 else f"{span(max(0.0, seconds))} ago"


def lasted(start: str | None, end: str | None, *, now: datetime | None = None) -> str:
    """How long something ran, or runs already; empty before its start."""
    began = parse_time(start)
    if began is None:
        return ""
    ended = parse_time(end) or now or current_time()
    return span(max(0.0, (ended - began).total_seconds()))


def current_time() -> datetime:
    """Now, in UTC."""
    return datetime.now(UTC)


def parse_time(value: str | None) -> datetime | None:
    """An RFC 3339 time; None for anything else."""
    if not value:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def span(seconds: float) -> str:
    """The two largest units: `1h02m`, `3m04s`, `12s`, `0.4s`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    for unit, name, smaller, small_name in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= unit:
            return f"{whole // unit}{name}{whole % unit // smaller:02}{small_name}"
    raise AssertionError(seconds)


def size(value: object) -> str:
    """Bytes as `1.5 GiB`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    number = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            return (
                f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
            )
        number /= 1024
    raise AssertionError(value)


def phase_of(record: Mapping[str, Any]) -> str:
    """The phase for people: Unknown while nobody hears of what runs (specification 1.2)."""
    unknown = record.get("unknown")
    if isinstance(unknown, Mapping):
        return f"Unknown ({unknown.get('cause')})"
    if isinstance(unknown, int) and unknown and record.get("phase") == "Running":
        return "Unknown"
    ending = record.get("ending")
    if isinstance(ending, Mapping) and ending.get("to"):
        return f"{record.get('phase')} → {ending['to']}"
    return str(record.get("phase"))


def _escape(one: str) -> str:
    code = ord(one)
    if code < 0x20 or code == 0x7F:
        return "^" + chr(code ^ 0x40)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _cells(text: str) -> int:
    """Terminal columns: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) != 0 for one in text)


def _cut(text: str, columns: int) -> str:
    if _cells(text) <= columns:
        return text
    while _cells(text) > columns - 1:
        text = text[:-1]
    return text + "…"


def _shrink(widths: list[int], flexible: Sequence[int], columns: int) -> None:
    while (excess := sum(widths) + len(GAP) * (len(widths) - 1) - columns) > 0:
        at = max(flexible, key=lambda one: widths[one], default=None)
        if at is None or widths[at] <= FLEX_WIDTH_MIN:
            return
        others = [widths[one] for one in flexible if one != at]
        level = max([FLEX_WIDTH_MIN, widths[at] - excess, *others])
        widths[at] = level if level < widths[at] else widths[at] - 1


def _line(row: Sequence[str], widths: Sequence[int], *, is_coloured: bool) -> str:
    parts = []
    for at, (cell, columns) in enumerate(zip(row, widths, strict=True)):
        text = _cut(cell, columns)
        padding = "" if at == len(widths) - 1 else " " * (columns - _cells(text))
        colour = _COLOURS.get(text.split(" ", 1)[0]) if is_coloured else None
        parts.append((f"\x1b[{colour}m{text}\x1b[0m" if colour else text) + padding)
    return GAP.join(parts).rstrip()
