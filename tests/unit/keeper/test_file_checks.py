"""The checks on files that decide over a success."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.keeper.file_checks import failed_check


@pytest.fixture
def written(tmp_path: Path) -> str:
    path = tmp_path / "log"
    path.write_bytes(b"start\nepoch 37 \xff done\n")
    return str(path)


@pytest.mark.parametrize("pattern", ["epoch [0-9]+", "^epoch", "done$", "start\nepoch"])
def test_pattern_found_anywhere_matches(written: str, pattern: str) -> None:
    assert failed_check([written], {written: pattern}) is None


@pytest.mark.parametrize(
    ("pattern", "words"), [("^done", "does not match"), ("epoch (", "no pattern")]
)
def test_pattern_that_fails_is_named(written: str, pattern: str, words: str) -> None:
    failed = failed_check([], {written: pattern})
    assert failed is not None
    assert words in failed
    assert repr(pattern) in failed


def test_empty_and_missing_files_fail(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert "is empty" in (failed_check([str(tmp_path / "empty")], {}) or "")
    assert "No such file" in (failed_check([str(tmp_path / "none")], {}) or "")
    assert "No such file" in (failed_check([], {str(tmp_path / "none"): "x"}) or "")
    assert failed_check([], {str(tmp_path / "empty"): "^$"}) is None
