"""Who the node is across restarts; one agent per directory; where things lie."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path

import pytest

from agent.errors import AlreadyRunning
from agent.node import DirectoryLock, NodeCell, running_agent
from agent.places import SOCKET_PATH_BYTES_MAX, Places, make_passable
from scheduler.protocol.messages import Seen
from wal.cell import Cell
from wal.errors import Corrupt


def test_the_uuid_stays_and_each_start_counts(tmp_path: Path) -> None:
    first = NodeCell.open(tmp_path).record
    second = NodeCell.open(tmp_path).record
    assert second.node_uuid == first.node_uuid
    assert (first.start_number, second.start_number) == (1, 2)


def test_what_was_seen_is_remembered(tmp_path: Path) -> None:
    seen = Seen(incarnation="i", term=3, index=9)
    NodeCell.open(tmp_path).save_seen(seen)
    assert NodeCell.open(tmp_path).record.seen == seen


def test_a_damaged_record_is_not_replaced_by_another_identity(tmp_path: Path) -> None:
    NodeCell.open(tmp_path)
    path = tmp_path / "node.cell"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Corrupt):
        NodeCell.open(tmp_path)


def test_a_full_disk_does_not_keep_the_agent_from_coming_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    NodeCell.open(tmp_path)
    assert (tmp_path / "reserve").stat().st_size > 0
    write = Cell.write

    def full_unless_the_reserve_is_gone(cell: Cell, value: bytes) -> None:
        if (tmp_path / "reserve").exists():
            raise OSError(errno.ENOSPC, "full")
        write(cell, value)

    monkeypatch.setattr(Cell, "write", full_unless_the_reserve_is_gone)
    assert NodeCell.open(tmp_path).record.start_number == 2


def test_another_error_of_the_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_cell: Cell, _value: bytes) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(Cell, "write", broken)
    with pytest.raises(OSError, match="broken"):
        NodeCell.open(tmp_path)


def test_one_agent_per_directory(tmp_path: Path) -> None:
    assert running_agent(tmp_path) is None
    lock = DirectoryLock.take(tmp_path)
    assert running_agent(tmp_path) == os.getpid()
    with pytest.raises(AlreadyRunning, match=str(os.getpid())):
        DirectoryLock.take(tmp_path)
    lock.release()
    assert running_agent(tmp_path) is None
    DirectoryLock.take(tmp_path).release()


def test_an_agent_waits_for_a_predecessor_that_is_ending(tmp_path: Path) -> None:
    lock = DirectoryLock.take(tmp_path)
    release = threading.Timer(0.1, lock.release)
    release.start()
    DirectoryLock.take(tmp_path, wait_s=60).release()
    release.join()


@pytest.mark.parametrize(("is_root", "mode"), [(True, 0o711), (False, 0o700)])
def test_only_root_lets_the_users_of_jobs_through(
    tmp_path: Path, *, is_root: bool, mode: int
) -> None:
    made, found = tmp_path / "made", tmp_path / "found"
    found.mkdir(mode=0o700)
    for path in (made, found):
        make_passable(path, is_root=is_root)
        assert path.stat().st_mode & 0o777 == mode


def test_the_socket_lies_in_the_data_directory(tmp_path: Path) -> None:
    root = Path("/short")
    assert Places(root).socket() == root / "keeper.sock"


def test_a_long_name_gets_a_socket_that_can_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as shelter:
        monkeypatch.setattr("tempfile.gettempdir", lambda: shelter)
        one = Places(Path("/" + "d" * 200)).socket()
        other = Places(Path("/" + "e" * 200)).socket()
        assert len(os.fsencode(one)) <= SOCKET_PATH_BYTES_MAX
        assert one != other
        assert one == Places(Path("/" + "d" * 200)).socket()


def test_a_shelter_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / f"pertinax-{os.getuid()}").mkdir()
    (tmp_path / f"pertinax-{os.getuid()}").chmod(0o777)
    with pytest.raises(PermissionError):
        Places(Path("/" + "d" * 200)).socket()
