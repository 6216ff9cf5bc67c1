"""Keepers for tests: one shared by a module, or one of its own for tests that kill it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keeper.harness import Client, KeeperProcess


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[KeeperProcess]:
    """A keeper of its own, not started; limits by sampling, as most machines' tests must do."""
    keeper = KeeperProcess(tmp_path, "--limits", "sampled")
    yield keeper
    keeper.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeeperProcess]:
    """A running keeper for all tests of a module; each uses tokens of its own."""
    keeper = KeeperProcess(tmp_path_factory.mktemp("keeper"), "--limits", "sampled")
    keeper.start()
    yield keeper
    keeper.end()


@pytest.fixture
def client(shared: KeeperProcess, request: pytest.FixtureRequest) -> Client:
    """The attached client of the shared keeper."""
    assert shared.client is not None
    return shared.client


@pytest.fixture
def token(request: pytest.FixtureRequest) -> str:
    """A token that is this test's own."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:120]
