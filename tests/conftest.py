"""Shared by all tests: which volumes run, and determinism of the generated ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Derandomized: a run on another machine tries the same examples; fresh ones are tried by --long.
settings.register_profile(
    "quick",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("long", parent=settings.get_profile("quick"), derandomize=False)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ci", action="store_true", help="run the volumes of the CI, and only them")
    parser.addoption("--long", action="store_true", help="run the long forms, and only them")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        settings.load_profile("long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without an option: the quick tests. With one: its volumes alone."""
    volume = next((name for name in ("ci", "long") if config.getoption(f"--{name}")), None)
    selected, deselected = [], []
    for item in items:
        marks = {name for name in ("ci", "long") if item.get_closest_marker(name)}
        is_wanted = volume in marks if volume else not marks
        (selected if is_wanted else deselected).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = selected


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note each failed test for `tests.run`, which may repeat those of whole clusters."""
    name = os.environ.get("PERTINAX_TEST_FAILED_FILE")
    if name and report.failed:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.read_text().splitlines() if path.exists() else []
        if report.nodeid not in known:
            path.write_text("\n".join([*known, report.nodeid]) + "\n")
