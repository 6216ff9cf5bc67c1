"""Success checks on files, as a program of its own: `file_checks.py SPEC` with SPEC in JSON.

Run by the keeper as the attempt's user in the attempt's directory, because a path may hang, a file
may be huge and a regular expression may take for ever. Standard library only and no import of ours:
it is started by its path. Exit 0: all hold; 1: the first line printed says which does not.
"""

from __future__ import annotations

import json
import mmap
import re
import sys
from pathlib import Path


def failed_check(nonempty: list[str], matches: dict[str, str]) -> str | None:
    """The first check that does not hold, in words; None when all do."""
    for name in nonempty:
        try:
            if Path(name).stat().st_size == 0:
                return f"output_nonempty: {name} is empty"
        except OSError as error:
            return f"output_nonempty: {name}: {error.strerror}"
    for name, pattern in matches.items():
        try:
            if not _matches(Path(name), pattern):
                return f"output_matches: {name} does not match {pattern!r}"
        except OSError as error:
            return f"output_matches: {name}: {error.strerror}"
        except re.error as error:
            return f"output_matches: no pattern: {pattern!r}: {error}"
    return None


def _matches(path: Path, pattern: str) -> bool:
    expression = re.compile(pattern.encode("utf-8", "surrogateescape"), re.MULTILINE)
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return expression.search(b"") is not None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return expression.search(data) is not None


def main() -> int:
    spec = json.loads(sys.argv[1])
    failed = failed_check(spec["nonempty"], spec["matches"])
    if failed is None:
        return 0
    sys.stdout.buffer.write(failed.encode(errors="replace") + b"\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
