"""The launcher script, with a scripted interpreter in place of a real environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).parents[3] / "pertinax"

#: Notes each call, and does what `-m venv` and `-m pip` would leave behind.
PYTHON = """#!/usr/bin/env bash
printf '%s\\n' "python $*" >> "$CALLS"
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    *"-m pip install"*)
        [[ -n ${FAIL_PIP-} ]] && { echo "pip: no such release" >&2; exit 1; }
        sleep "${PIP_SECONDS-0}"
        printf '#!/usr/bin/env bash\\nprintf "<%%s>" pertinax "$@"\\n' > .venv/bin/pertinax
        chmod +x .venv/bin/pertinax ;;
esac
"""


class Checkout:
    """A directory with the launcher and a pyproject.toml."""

    def __init__(self, root: Path) -> None:
        self.root = root / "check out"
        self.root.mkdir()
        shutil.copy(LAUNCHER, self.root / "pertinax")
        (self.root / "pyproject.toml").write_text("[project]\n")
        self.calls = root / "calls"
        python = root / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PERTINAX_PYTHON": str(python),
            "CALLS": str(self.calls),
        }

    def command(self, *args: str) -> list[str]:
        return [str(self.root / "pertinax"), *args]

    def call(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args),
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )

    def seen(self, part: str) -> int:
        return self.calls.read_text().count(part) if self.calls.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_first_call_installs_and_says_so_on_stderr_only(checkout: Checkout) -> None:
    done = checkout.call("jobs", "a b", "", "*")
    assert (done.returncode, done.stdout) == (0, "<pertinax><jobs><a b><><*>")
    assert "first call" in done.stderr
    assert (checkout.seen("-m venv"), checkout.seen("-m pip")) == (1, 1)


def test_later_calls_start_nothing_else(checkout: Checkout) -> None:
    checkout.call("jobs")
    checkout.calls.unlink()
    done = checkout.call("jobs")
    assert (done.stdout, done.stderr) == ("<pertinax><jobs>", "")
    assert not checkout.calls.exists()


def test_a_changed_pyproject_is_installed_again(checkout: Checkout) -> None:
    checkout.call("jobs")
    (checkout.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    checkout.call("jobs")
    assert (checkout.seen("-m venv"), checkout.seen("-m pip")) == (1, 2)


def test_python_and_test_go_to_the_interpreter(checkout: Checkout) -> None:
    checkout.call("python", "-c", "x")
    assert checkout.seen("python -c x") == 1
    checkout.call("test", "--ci", "tests/unit")
    checkout.call("test")
    assert checkout.seen("[dev]") == 1
    assert checkout.seen("-m tests.run --ci tests/unit") == 1
    assert checkout.call("test", "--install-only").returncode == 0
    assert checkout.seen("-m tests.run") == 2


def test_first_calls_at_once_install_once(checkout: Checkout) -> None:
    environment = checkout.environment | {"PIP_SECONDS": "0.2"}
    running = [
        subprocess.Popen(
            checkout.command("jobs", str(number)),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for number in range(4)
    ]
    outputs = [process.communicate()[0].decode() for process in running]
    assert outputs == [f"<pertinax><jobs><{number}>" for number in range(4)]
    assert checkout.seen("-m pip") == 1


def test_a_failed_installation_says_why_and_is_tried_again(checkout: Checkout) -> None:
    done = checkout.call("jobs", FAIL_PIP="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip: no such release" in done.stderr
    assert "the installation failed" in done.stderr
    assert checkout.call("jobs").stdout == "<pertinax><jobs>"


def test_a_symbolic_link_finds_its_checkout(checkout: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "bin" / "pertinax"
    link.parent.mkdir()
    link.symlink_to(os.path.relpath(checkout.root / "pertinax", link.parent))
    done = subprocess.run(
        [str(link), "jobs"], env=checkout.environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "<pertinax><jobs>"
