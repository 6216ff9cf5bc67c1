"""Reading a document's values strictly: every mistake is collected with its path, none raised.

A reader takes (value, path, mistakes) and returns the value to keep; after a mistake what it
returns is of no use, since the document is refused as a whole. `Field` pairs a reader with its
writer, so that one table serves both directions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.protocol.errors import Mistake
from scheduler.protocol.units import BadQuantity

#: Mistakes kept for one document: past these a document is something else altogether.
MISTAKES_MAX: Final = 100
#: Elements of one list or object.
ELEMENTS_MAX: Final = 10_000
#: Characters of one text.
TEXT_CHARS_MAX: Final = 1_048_576

Mistakes = list[Mistake]
Reader = Callable[[Any, str, Mistakes], Any]
Writer = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a document: the attribute it fills, how to read it and how to write it."""

    attribute: str
    read: Reader
    write: Writer = lambda value: value


def add_mistake(mistakes: Mistakes, path: str, message: str, hint: str = "") -> None:
    """Note one mistake; silently dropped past MISTAKES_MAX."""
    if len(mistakes) < MISTAKES_MAX:
        mistakes.append(Mistake(path, message, hint))


def join(path: str, name: object) -> str:
    """`path.name`, quoting what would be ambiguous."""
    text = name if isinstance(name, str) else shown(name)
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text):
        text = repr(text[:64])
    return f"{path}.{text}" if path else text


def suggestion(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """`did you mean X?`, or what there is when nothing is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"


def read_object(
    value: Any, fields: Mapping[str, Field], path: str, mistakes: Mistakes
) -> dict[str, Any]:
    """Attributes of the fields given; null counts as not given. Unknown fields are mistakes."""
    found: dict[str, Any] = {}
    if not isinstance(value, dict):
        add_mistake(mistakes, path, f"{kind_of(value)} where an object is wanted")
        return found
    for name, given in value.items():
        field = fields.get(name) if isinstance(name, str) else None
        if field is None:
            hint = (
                suggestion(shown(name)[:64], fields)
                if not isinstance(name, str)
                else (suggestion(name[:64], fields))
            )
            add_mistake(mistakes, join(path, name), "no such field", hint)
        elif given is not None:
            found[field.attribute] = field.read(given, join(path, name), mistakes)
    return found


def write_object(
    record: object, fields: Mapping[str, Field], default: object | None = None
) -> dict[str, Any]:
    """The document of `record`; fields equal to those of `default` are left out."""
    document = {}
    for name, field in fields.items():
        value = getattr(record, field.attribute)
        if default is None or value != getattr(default, field.attribute):
            document[name] = None if value is None else field.write(value)
    return document


def text(*, pattern: str | None = None, what: str = "text", chars_max: int = 4096) -> Reader:
    """A reader of text of at most `chars_max` characters without NUL."""
    compiled = re.compile(pattern) if pattern else None

    def read(value: Any, path: str, mistakes: Mistakes) -> str:
        if not isinstance(value, str):
            is_short = isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64)
            hint = f'write "{value}"' if is_short else ""
            add_mistake(mistakes, path, f"{kind_of(value)} where {what} is wanted", hint)
            return ""
        if "\0" in value:
            add_mistake(mistakes, path, "text with a NUL character")
        elif len(value) > chars_max:
            add_mistake(mistakes, path, f"{len(value)} characters, at most {chars_max} are taken")
        elif not is_unicode(value):
            add_mistake(mistakes, path, "text that is no valid Unicode")
        elif compiled is not None and not compiled.fullmatch(value):
            add_mistake(mistakes, path, f"{value[:64]!r} is no {what}")
        return value

    return read


def one_of(*choices: str) -> Reader:
    """A reader of one of a few words."""

    def read(value: Any, path: str, mistakes: Mistakes) -> str:
        if value in choices and isinstance(value, str):
            return value
        hint = suggestion(value, choices) if isinstance(value, str) else ""
        wanted = " or ".join(choices)
        add_mistake(mistakes, path, f"{shown(value)} where {wanted} is wanted", hint)
        return choices[0]

    return read


def integer(low: int, high: int) -> Reader:
    """A reader of a whole number between `low` and `high`."""

    def read(value: Any, path: str, mistakes: Mistakes) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            add_mistake(mistakes, path, f"{kind_of(value)} where a whole number is wanted")
            return low
        if not low <= value <= high:
            add_mistake(mistakes, path, f"{shown(value)} is not between {low} and {high}")
        return value

    return read


def boolean(value: Any, path: str, mistakes: Mistakes) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        add_mistake(mistakes, path, f"{kind_of(value)} where true or false is wanted")
    return value is True


def quantity(parse: Callable[[object], int]) -> Reader:
    """A reader by one of the parsers of `units`."""

    def read(value: Any, path: str, mistakes: Mistakes) -> int:
        try:
            return parse(value)
        except BadQuantity as error:
            add_mistake(mistakes, path, str(error))
            return 0

    return read


def list_of(item: Reader, *, length_min: int = 0) -> Reader:
    """A reader of a list, as a tuple."""

    def read(value: Any, path: str, mistakes: Mistakes) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            add_mistake(mistakes, path, f"{kind_of(value)} where a list is wanted")
            return ()
        if not length_min <= len(value) <= ELEMENTS_MAX:
            add_mistake(
                mistakes, path, f"{len(value)} elements; {length_min} to {ELEMENTS_MAX} are taken"
            )
            return ()
        return tuple(item(one, f"{path}[{at}]", mistakes) for at, one in enumerate(value))

    return read


def map_of(key: Reader, item: Reader) -> Reader:
    """A reader of an object with free names."""

    def read(value: Any, path: str, mistakes: Mistakes) -> dict[Any, Any]:
        if not isinstance(value, dict):
            add_mistake(mistakes, path, f"{kind_of(value)} where an object is wanted")
            return {}
        if len(value) > ELEMENTS_MAX:
            add_mistake(mistakes, path, f"{len(value)} names; at most {ELEMENTS_MAX} are taken")
            return {}
        return {
            key(name, join(path, name), mistakes): item(one, join(path, name), mistakes)
            for name, one in value.items()
        }

    return read


def kind_of(value: object) -> str:
    """What `value` is, in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = ((str, "text"), (int | float, "a number"), (list | tuple, "a list"))
    for types, name in names:
        if isinstance(value, types):
            return name
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def shown(value: object) -> str:
    """`value` for a message, shortened."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) >> 128:
            return "the number"
        return repr(value)[:80]
    return kind_of(value)


def is_unicode(value: str) -> bool:
    """False for text with lone surrogates: it could not be stored as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
