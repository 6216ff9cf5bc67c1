"""Durations, sizes and cpu shares: the texts people write and the integers we compute with.

Durations become milliseconds, sizes bytes, cpu thousandths of a core. `K M G T` are powers of 1024
with or without `i` and `iB`, as for Slurm and systemd; only `KB MB GB TB` are powers of 1000.
Standard library only and cheap to import: the command line needs it at every start.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

#: Longest duration taken, in ms (100 years): keeps sums of times far below 2^63.
DURATION_MS_MAX: Final = 100 * 365 * 86_400_000
#: Largest size taken, in bytes (1 EiB).
SIZE_BYTES_MAX: Final = 1 << 60
#: Most cpu one worker can ask for, in thousandths of a core.
CPU_MILLIS_MAX: Final = 1_000_000_000

_DURATION_UNITS: Final = {
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[wdhms]))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[wdhms])", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGTPE]?)(i?B?)", re.ASCII | re.IGNORECASE)
_PREFIXES: Final = "KMGTPE"
#: Longest text looked at: numbers beyond it could only be out of range.
_TEXT_MAX: Final = 64


class BadQuantity(ValueError):
    """A text or number that is no such quantity; the message says what would be."""


def parse_duration_ms(value: object) -> int:
    """`10s`, `1h30m`, `250ms`, or a number of seconds, in milliseconds. Raises BadQuantity."""
    if _is_number(value):
        milliseconds = _decimal(value) * 1000
    elif isinstance(value, str) and len(value) <= _TEXT_MAX:
        milliseconds = _duration_of_text(value.strip())
    else:
        raise BadQuantity(f"{_shown(value)} is no duration; write one as 10s, 5m or 1h30m")
    if not 0 <= milliseconds <= DURATION_MS_MAX:
        raise BadQuantity(f"{_shown(value)} is not between 0 and 100 years")
    return _whole(milliseconds, value, "one millisecond")


def format_duration(milliseconds: int) -> str:
    """The shortest text that parses back to `milliseconds`: `1h30m`, `250ms`, `0s`."""
    if milliseconds == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, milliseconds = divmod(milliseconds, _DURATION_UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size_bytes(value: object) -> int:
    """`4GiB`, `512M`, `100` or a number of bytes. Raises BadQuantity."""
    if _is_number(value):
        size = _decimal(value)
    else:
        found = None
        if isinstance(value, str) and len(value) <= _TEXT_MAX:
            found = _SIZE.fullmatch(value.strip())
        if found is None:
            raise BadQuantity(f"{_shown(value)} is no size; write one as 512MiB, 4GiB or 4G")
        number, prefix, rest = found[1], found[2].upper(), found[3]
        base = 1000 if prefix and rest.upper() == "B" else 1024
        size = Decimal(number) * base ** (_PREFIXES.index(prefix) + 1 if prefix else 0)
    if not 0 <= size <= SIZE_BYTES_MAX:
        raise BadQuantity(f"{_shown(value)} is not between 0 and 1 EiB")
    return _whole(size, value, "one byte")


def format_size(size_bytes: int) -> str:
    """The shortest text that parses back to `size_bytes`: `4GiB`, `1500B`."""
    power = 0
    while size_bytes and size_bytes % 1024 == 0 and power < len(_PREFIXES):
        size_bytes //= 1024
        power += 1
    return f"{size_bytes}{_PREFIXES[power - 1]}iB" if power else f"{size_bytes}B"


def parse_cpu_millis(value: object) -> int:
    """`2`, `0.5`, `"0.5"` or `"500m"` in thousandths of a core. Raises BadQuantity."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}m", value.strip(), re.ASCII):
        millis = Decimal(value.strip()[:-1])
    elif isinstance(value, str) and re.fullmatch(
        r"[0-9]{1,12}(?:\.[0-9]{1,12})?", value.strip(), re.ASCII
    ):
        millis = Decimal(value.strip()) * 1000
    elif _is_number(value):
        millis = _decimal(value) * 1000
    else:
        raise BadQuantity(f"{_shown(value)} is no number of cpus; write 2 or 0.5")
    if not 0 <= millis <= CPU_MILLIS_MAX:
        raise BadQuantity(f"{_shown(value)} is not between 0 and {CPU_MILLIS_MAX // 1000} cpus")
    return _whole(millis, value, "a thousandth of a cpu")


def cpu_number(millis: int) -> int | float:
    """`millis` as people write it: 2 or 0.5."""
    return millis // 1000 if millis % 1000 == 0 else millis / 1000


def _duration_of_text(text: str) -> Decimal:
    if not _DURATION.fullmatch(text):
        hint = f"; did you mean {text}s?" if re.fullmatch(r"[0-9.]+", text) else ""
        raise BadQuantity(f"{text!r} is no duration; write one as 10s, 5m or 1h30m{hint}")
    parts = _DURATION_PART.findall(text)
    units = [unit for _, unit in parts]
    order = list(_DURATION_UNITS)
    if sorted(set(units), key=order.index) != units:
        raise BadQuantity(f"{text!r} repeats or mixes up its units; write 1h30m, largest first")
    return sum((Decimal(number) * _DURATION_UNITS[unit] for number, unit in parts), Decimal(0))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _decimal(value: object) -> Decimal:
    try:
        number = Decimal(str(value))  # by the text: 0.1 is a tenth, not its binary neighbour
    except (InvalidOperation, ValueError):
        raise BadQuantity(f"{_shown(value)} is no number") from None
    if not number.is_finite():
        raise BadQuantity(f"{_shown(value)} is no number")
    return number


def _whole(amount: Decimal, value: object, smallest: str) -> int:
    if amount != int(amount):
        raise BadQuantity(f"{_shown(value)} is finer than {smallest}")
    return int(amount)


def _shown(value: object) -> str:
    # Python refuses to print integers of thousands of digits, and JSON may hold one.
    text = "the number" if isinstance(value, int) and abs(value) >> 128 else repr(value)
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
