"""What `pertinax test` runs: everything quick in parallel, then whole clusters one at a time.

    python -m tests.run [--ci | --long] [pytest arguments …]

With a path among the arguments pytest gets them as they are. Tests of whole clusters that fail are
run once more, alone (docs/decisions/0005): failing again fails the run, passing makes them
unsteady, which is said loudly.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: pytest's exit status when nothing matched the selection.
NOTHING_COLLECTED = 5
#: More failures than this are no bad luck; repeating them would only take time.
REPEATED_MAX = 4


def pytest_call(*args: str) -> int:
    """Run pytest; 0 for success or for an empty selection."""
    code = subprocess.call([sys.executable, "-m", "pytest", "-q", *args], cwd=ROOT)
    return 0 if code == NOTHING_COLLECTED else code


def repeat_failed(volume: list[str], report: Path) -> int:
    """Run the failed tests of `report` (one id a line) once more, alone."""
    failed = [line for line in report.read_text().splitlines() if line] if report.exists() else []
    if not 0 < len(failed) <= REPEATED_MAX:
        return 1
    print(f"repeating alone: {', '.join(failed)}", flush=True)
    code = pytest_call("-n", "0", "-p", "no:randomly", *volume, *failed)
    if code == 0:
        print(f"UNSTEADY, passed only when repeated: {', '.join(failed)}", flush=True)
    return code


def run_all(volume: list[str], rest: list[str]) -> int:
    """Both phases; the first that fails ends the run."""
    code = pytest_call("-m", "not cluster", "-n", "auto", *volume, *rest)
    if code:
        return code
    report = ROOT / ".pytest_cache" / "failed-clusters.txt"
    report.unlink(missing_ok=True)
    os.environ["PERTINAX_TEST_FAILED_FILE"] = str(report)
    code = pytest_call("-m", "cluster", "-n", "0", *volume, *rest)
    return repeat_failed(volume, report) if code else 0


def main(argv: list[str]) -> int:
    began = time.monotonic()
    volume = [arg for arg in argv if arg in ("--ci", "--long")]
    rest = [arg for arg in argv if arg not in ("--ci", "--long")]
    if any(Path(arg.partition("::")[0]).exists() for arg in rest):
        return pytest_call(*volume, *rest)
    code = run_all(volume, rest)
    print(f"{'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
