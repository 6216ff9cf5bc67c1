"""`python -m benchmarks [NAME [ARGUMENTS]]`: run one benchmark, or list them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def names() -> list[str]:
    """The modules of this package that have a `main(argv)`."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if "\ndef main(argv" in path.read_text() and not path.stem.startswith("_"):
            found.append(path.stem)
    return found


def main(argv: list[str]) -> int:
    if not argv or argv[0] in {"-h", "--help"}:
        for name in names():
            question = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").split("\n")[0]
            print(f"{name:24} {question}")
        return 0
    if argv[0] not in names():
        print(f"no benchmark {argv[0]!r}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"benchmarks.{argv[0]}").main(argv[1:]) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
