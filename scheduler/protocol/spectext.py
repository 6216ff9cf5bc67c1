"""Texts of specification files to plain documents: TOML, YAML and JSON alike.

YAML is read by the 1.2 core rules: `on`, `yes` and `12:30` are texts, as everybody expects who
writes `retry: {on: [oom]}`. Duplicate names are mistakes in all three.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from scheduler.protocol.errors import InvalidSpec, Mistake

#: Largest text of one file, in bytes (a bulk submit is 32 MiB at most).
TEXT_BYTES_MAX: Final = 32 * 1024 * 1024
#: Values in all documents of one file; YAML aliases multiply without growing the file.
VALUES_MAX: Final = 1_000_000
#: Objects and lists inside each other.
DEPTH_MAX: Final = 32
FORMATS: Final = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def documents_from_text(text: str, form: str) -> list[Any]:
    """The documents in `text`, written in `form` (toml, yaml or json). Raises InvalidSpec.

    Several documents are: YAML's `---`, JSON values after each other or in a list, and in all
    three an object with nothing but `jobs`, a list.
    """
    readers = {"toml": _read_toml, "yaml": _read_yaml, "json": _read_json}
    try:
        documents = readers[form](text)
    except RecursionError:
        refuse(f"more than {DEPTH_MAX} levels of nesting")
    found: list[Any] = []
    for document in documents:
        if isinstance(document, list):
            found.extend(document)
        elif isinstance(document, dict) and set(document) == {"jobs"}:
            jobs = document["jobs"]
            found.extend(jobs if isinstance(jobs, list) else [jobs])
        else:
            found.append(document)
    _check_bounds(found)
    if not found:
        refuse("no document in it", "start with tasks: {main: {command: [echo, hello]}}")
    return found


def refuse(message: str, hint: str = "") -> NoReturn:
    """Raise InvalidSpec for the text as a whole."""
    raise InvalidSpec((Mistake("", message, hint),))


def _read_toml(text: str) -> list[Any]:
    import tomllib

    try:
        return [tomllib.loads(text)]
    except tomllib.TOMLDecodeError as error:
        refuse(f"not TOML: {error}")


def _read_json(text: str) -> list[Any]:
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
    documents, at = [], 0
    try:
        while (at := _skip_blanks(text, at)) < len(text):
            document, at = decoder.raw_decode(text, at)
            documents.append(document)
    except json.JSONDecodeError as error:
        refuse(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except ValueError as error:  # an integer of more digits than Python converts
        refuse(f"not usable JSON: {error}")
    return documents


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        refuse(f"the name {twice[:64]!r} is given twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    refuse(f"{name} is no number here")


def _read_yaml(text: str) -> list[Any]:
    import yaml

    from scheduler.protocol.specyaml import CoreLoader

    try:
        return [document for document in yaml.load_all(text, CoreLoader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        refuse(f"not YAML: {error.problem}{where}")
    except (yaml.YAMLError, ValueError) as error:
        refuse(f"not YAML: {str(error).splitlines()[0]}")


def _check_bounds(documents: list[Any]) -> None:
    """Count values as if aliases were written out; depth first, without recursion."""
    count, waiting = 0, [(document, 1) for document in documents]
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > VALUES_MAX or depth > DEPTH_MAX:
            refuse(f"more than {VALUES_MAX} values or {DEPTH_MAX} levels of nesting")
        if isinstance(value, dict):
            waiting.extend((one, depth + 1) for one in value.values())
        elif isinstance(value, list):
            waiting.extend((one, depth + 1) for one in value)
