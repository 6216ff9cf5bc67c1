"""A founded log on a disk in memory."""

from __future__ import annotations

import pytest

from tests.crash.disk import MemoryDisk
from tests.crash.workload import found, open_log
from wal import WriteAheadLog


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk(seed=7)
    found(disk)
    return disk


@pytest.fixture
def log(disk: MemoryDisk) -> WriteAheadLog:
    return open_log(disk)
