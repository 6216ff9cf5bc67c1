"""Group commit: told only after the sync, in order, with few syncs."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from agent.keeper.ledger import Ledger, pack, read_contents, unpack
from agent.keeper.loop import Loop
from wal import OutOfSpace


class MemoryStore:
    """Counts syncs; a sync can be held up, a put refused for a full disk."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.durable: dict[bytes, bytes] = {}
        self.syncs = 0
        self.full = 0
        self.gate = Event()
        self.gate.set()

    def get(self, key: bytes) -> bytes | None:
        return self.records.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        if self.full:
            self.full -= 1
            raise OutOfSpace("full")
        self.records[key] = value

    def delete(self, key: bytes) -> None:
        self.records.pop(key, None)

    def sync(self) -> None:
        assert self.gate.wait(60)
        self.syncs += 1
        self.durable = dict(self.records)

    def close(self) -> None:
        self.gate.set()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def ledger(store: MemoryStore, loop: Loop) -> Iterator[Ledger]:
    ledger = Ledger(store, loop)
    yield ledger
    store.gate.set()
    ledger.close()


def turn_until_idle(loop: Loop, ledger: Ledger) -> None:
    for _ in range(1_000):
        if ledger.is_idle:
            return
        loop.turn()
    raise AssertionError("never idle")


def test_nobody_is_told_before_the_sync(store: MemoryStore, loop: Loop, ledger: Ledger) -> None:
    told: list[dict[bytes, bytes]] = []
    store.gate.clear()
    ledger.write("t", "intent", {"a": 1}, lambda: told.append(dict(store.durable)))
    loop.turn(sleep_ms_max=1)
    loop.turn(sleep_ms_max=1)
    assert told == []
    store.gate.set()
    turn_until_idle(loop, ledger)
    assert told == [{b"t/intent": pack({"a": 1})}]


def test_a_thousand_records_cost_few_syncs(store: MemoryStore, loop: Loop, ledger: Ledger) -> None:
    order: list[int] = []
    for number in range(1_000):
        ledger.write(f"t{number}", "exited", {}, lambda number=number: order.append(number))
        if number % 100 == 99:
            loop.turn(sleep_ms_max=0)
    turn_until_idle(loop, ledger)
    assert order == list(range(1_000))
    assert store.syncs <= 11
    assert len(store.durable) == 1_000


def test_callback_without_a_record_waits_for_those_before_it(
    store: MemoryStore, loop: Loop, ledger: Ledger
) -> None:
    seen: list[int] = []
    ledger.write("t", "order", {})
    ledger.after(lambda: seen.append(len(store.durable)))
    turn_until_idle(loop, ledger)
    assert seen == [1]


def test_drop_removes_what_was_written_before(
    store: MemoryStore, loop: Loop, ledger: Ledger
) -> None:
    ledger.write("t", "intent", {})
    ledger.write("t", "exited", {"x": 1})
    ledger.drop("t", ("intent",))
    turn_until_idle(loop, ledger)
    assert store.durable == {b"t/exited": pack({"x": 1})}
    assert ledger.read("t", "exited") == {"x": 1}
    assert ledger.read("t", "intent") is None


def test_full_disk_delays_and_loses_nothing(
    store: MemoryStore, loop: Loop, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.keeper.ledger.FULL_DISK_WAIT_S", 0.001)
    store.full = 3
    told: list[str] = []
    ledger.write("t", "exited", {"x": 1}, lambda: told.append("t"))
    turn_until_idle(loop, ledger)
    assert told == ["t"]
    assert store.durable == {b"t/exited": pack({"x": 1})}


def test_contents_are_sorted_by_attempt_and_damage_is_quarantined() -> None:
    contents = read_contents(
        [(b"a.1/intent", pack({"x": "\udcff"})), (b"b/intent", b"\xc1"), (b"a.1/order", pack({}))],
        [(b"c/started", "segment 1 at 99"), (None, "segment 2 at 5")],
    )
    assert contents.records == {"a.1": {"intent": {"x": "\udcff"}, "order": {}}}
    assert contents.damaged == {"b", "c"}
    assert any("segment 2 at 5" in note for note in contents.notes)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", b"\x81", b"\x80\x80"])
def test_bytes_that_are_no_record_raise_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data)
