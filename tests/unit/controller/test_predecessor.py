"""A successor waits for what its killed predecessor still holds, and for nobody else for long."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from pathlib import Path

import pytest

from scheduler.controller.predecessor import wait_for_predecessor


def hold_port() -> socket.socket:
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.listen()
    return held


def hold_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_nothing_held_is_no_wait(tmp_path: Path) -> None:
    assert wait_for_predecessor([("127.0.0.1", 0)], tmp_path / "lock", timeout_s=0)


@pytest.mark.parametrize("what", ["port", "lock"])
def test_it_goes_on_when_the_predecessor_let_go(tmp_path: Path, what: str) -> None:
    lock = tmp_path / "lock"
    held, descriptor = hold_port(), hold_lock(lock)
    address = held.getsockname()
    if what == "port":
        os.close(descriptor)
        release = threading.Timer(0.1, held.close)
    else:
        held.close()
        release = threading.Timer(0.1, os.close, [descriptor])
    release.start()
    try:
        assert wait_for_predecessor([address], lock, timeout_s=60)
    finally:
        release.join()


def test_somebody_alive_is_not_waited_for_long(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with hold_port() as held:
        assert not wait_for_predecessor([held.getsockname()], lock, timeout_s=0)
    descriptor = hold_lock(lock)
    try:
        assert not wait_for_predecessor([], lock, timeout_s=0)
    finally:
        os.close(descriptor)
