"""Installing a snapshot: read in a worker beside the present state, then put in place at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replication.config import ReplicationConfig
from replication.snapshot import Prepared, SnapshotEngine, prepare_restore
from tests.unit.replication.members import Ledger
from wal.errors import OutOfSpace
from wal.snapshots import SnapshotInfo, SnapshotStore

INDEX, TERM = 9, 2


class Slow(Ledger):
    """Reads when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.commands = [b"old"]
        self.is_reading = threading.Event()
        self.may_read = threading.Event()
        self.discarded: list[list[bytes]] = []

    def prepare_restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> Prepared:
        self.is_reading.set()
        assert self.may_read.wait(30)
        read = b"".join(chunks).split(b"\n")
        if read == [b"bad"]:
            raise ValueError("no snapshot")

        def adopt() -> Any:
            old, self.commands = self.commands, read
            return lambda: self.discarded.append(old)

        return Prepared(adopt, lambda: self.discarded.append(read))


class Rig:
    """An engine whose log, pump and transport only note what is asked of them."""

    def __init__(self, directory: Path, body: bytes) -> None:
        self.store = SnapshotStore(directory / "snapshots")
        self.store.open()
        with self.store.writer(INDEX, TERM) as writer:
            writer.write(body)
            self.info: SnapshotInfo = writer.commit()
        self.machine = Slow()
        self.calls: list[str] = []
        self.held = False
        note = self.calls.append
        storage = SimpleNamespace(
            reset=lambda index, term: note(f"reset {index} {term}"), sync=lambda: note("sync")
        )
        journal = SimpleNamespace(holds=lambda *_: self.held, storage=storage, base_index=INDEX)
        self.pump = SimpleNamespace(
            is_stopped=False,
            applied_index=1,
            applied_bytes=0,
            note_committed=lambda index: note(f"committed {index}"),
            note_installed=lambda index, term: note(f"installed {index} {term}"),
        )
        config = ReplicationConfig(
            name="a",
            cluster_id="test",
            incarnation=1,
            members={"a": ("127.0.0.1", 1)},
            listen=("127.0.0.1", 1),
            data_dir=directory,
            tls=None,
        )
        core: Any = SimpleNamespace(journal=journal, snapshot_point=(0, 0))
        pump: Any = self.pump
        transport: Any = SimpleNamespace(on_request=lambda *_: None)
        self.engine = SnapshotEngine(
            config,
            self.store,
            self.machine,
            core=core,
            pump=pump,
            transport=transport,
            newest=None,
        )

    async def begin(self) -> asyncio.Task[None]:
        """Start the installation; returns while the worker reads."""
        task = asyncio.create_task(self.engine._install(self.info))
        await asyncio.to_thread(self.machine.is_reading.wait, 30)
        return task


async def test_the_present_state_serves_until_the_new_one_is_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, b"x\ny")
    task = await rig.begin()
    assert (rig.machine.commands, rig.calls) == ([b"old"], [])
    rig.machine.may_read.set()
    await task
    assert rig.machine.commands == [b"x", b"y"]
    assert rig.calls == [f"reset {INDEX} {TERM}", "sync", f"installed {INDEX} {TERM}"]
    assert rig.machine.discarded == [[b"old"]]
    assert rig.engine.newest_index == INDEX
    await rig.engine.close()


async def test_a_snapshot_that_finds_no_room_is_not_tried_with_every_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, b"x")
    tried: list[int] = []

    def no_room(*args: object) -> None:
        tried.append(1)
        raise OutOfSpace("no space left", path=tmp_path)

    monkeypatch.setattr("replication.snapshot.write_snapshot", no_room)
    rig.pump.applied_index, rig.pump.applied_term = 10**9, TERM
    await rig.engine.begin()
    for _ in range(5):
        rig.engine.note_applied()
        await asyncio.sleep(0)
    assert (len(tried), rig.calls) == (1, [])
    monkeypatch.setattr("replication.snapshot.TAKE_PAUSE_S", -1.0)
    await rig.engine.begin()
    rig.engine.note_applied()
    assert rig.engine._taking is not None
    await rig.engine._taking
    assert len(tried) == 3
    await rig.engine.close()


async def test_a_refused_snapshot_leaves_log_and_state_as_they_were(tmp_path: Path) -> None:
    rig = Rig(tmp_path, b"bad")
    rig.machine.may_read.set()
    with pytest.raises(ValueError, match="no snapshot"):
        await rig.engine._install(rig.info)
    assert (rig.machine.commands, rig.calls) == ([b"old"], [])
    await rig.engine.close()


async def test_entries_that_arrive_while_it_is_read_make_it_needless(tmp_path: Path) -> None:
    rig = Rig(tmp_path, b"x")
    task = await rig.begin()
    rig.held = True
    rig.machine.may_read.set()
    await task
    assert (rig.machine.commands, rig.calls) == ([b"old"], [f"committed {INDEX}"])
    assert rig.machine.discarded == [[b"x"]]
    await rig.engine.close()


async def test_a_member_that_passed_it_while_it_was_read_keeps_its_state(tmp_path: Path) -> None:
    rig = Rig(tmp_path, b"x")
    task = await rig.begin()
    rig.pump.applied_index = INDEX + 1
    rig.machine.may_read.set()
    await task
    assert (rig.machine.commands, rig.calls) == ([b"old"], [])
    assert rig.machine.discarded == [[b"x"]]
    await rig.engine.close()


async def test_closing_ends_the_reading(tmp_path: Path) -> None:
    rig = Rig(tmp_path, b"x")
    task = await rig.begin()
    closing = asyncio.create_task(rig.engine.close())
    await asyncio.sleep(0)
    rig.machine.may_read.set()
    await closing
    with pytest.raises(Exception, match="this member stops"):
        await task
    assert (rig.machine.commands, rig.calls) == ([b"old"], [])


def test_a_machine_without_such_a_worker_is_restored_when_adopted() -> None:
    ledger = Ledger()
    prepared = prepare_restore(ledger, [b"a\n", b"b"], index=1, term=1)
    assert ledger.commands == []
    prepared.adopt()()
    assert ledger.commands == [b"a", b"b"]
