"""Tables, deadlines, snapshots, views; and the bytes that must never change."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from scheduler.core import queries, tables
from scheduler.core.commands import (
    AnyEntry,
    Audit,
    DeadlinesPassed,
    UnknownEntry,
    decode_entry,
    encode_entry,
)
from scheduler.core.due import KINDS, DueIndex
from scheduler.core.records import STATE_VERSION, Stamp, Tombstone
from scheduler.core.snapshot import BadSnapshot, NewerSnapshot, restore_state, snapshot_chunks
from scheduler.core.tables import Table, encode_record
from scheduler.protocol.spec import Retry
from tests.unit.core.harness import Core

GOLDEN = Path(__file__).parents[2] / "golden" / "core"


def stone(token: str, phase: str = "Failed") -> Tombstone:
    at = Stamp(index=1, log_ms=2, wall_ms=3)
    return Tombstone(token=token, attempt="1/main/0#1", node="a", phase=phase, cause="c", at=at)


# ---- tables ------------------------------------------------------------------------------------


def test_a_tables_digest_is_that_of_its_rows_whatever_led_there() -> None:
    random = Random(3)
    table: Table[str, Tombstone] = Table("tombstones")
    rows: dict[str, Tombstone] = {}
    for _ in range(2000):
        token = str(random.randrange(50))
        if token in rows and random.random() < 0.4:
            table.delete(token)
            del rows[token]
        else:
            rows[token] = stone(token, random.choice(("Failed", "Killed")))
            table.put(token, rows[token])
    fresh: Table[str, Tombstone] = Table("tombstones")
    for token in sorted(rows):
        fresh.put(token, rows[token])
    assert (table.digest, len(table)) == (fresh.digest, len(rows))
    assert list(table.sorted_rows()) == [rows[token] for token in sorted(rows)]


def test_a_large_tables_keys_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(4)
    numbers = [random.randrange(10**9) for _ in range(3_000)]
    table: Table[str, Tombstone] = Table("tombstones")
    for number in numbers:
        table.put(str(number), stone(str(number)))
    monkeypatch.setattr(tables, "SORTED_AT_ONCE_MAX", len(set(numbers)) - 1)
    assert table.sorted_keys() == sorted({str(number) for number in numbers})
    assert table.view().sorted_keys() == table.sorted_keys()


def test_a_view_keeps_what_it_saw() -> None:
    table: Table[str, Tombstone] = Table("tombstones")
    table.put("a", stone("a"))
    view = table.view()
    table.put("a", stone("a", "Killed"))
    table.put("b", stone("b"))
    second = table.view()
    table.delete("a")
    assert [row.phase for row in view.sorted_rows()] == ["Failed"]
    assert second.sorted_keys() == ["a", "b"]
    assert table.sorted_keys() == ["b"]


# ---- deadlines -----------------------------------------------------------------------------------


def test_the_order_of_deadlines_is_the_true_one_whatever_hints_are_held() -> None:
    random = Random(5)
    true: dict[str, int | None] = {}

    def due_at(_kind: str, key: Any) -> int | None:
        return true.get(key)

    kind = KINDS[0]
    index = DueIndex(due_at)
    for _ in range(2000):
        key = str(random.randrange(20))
        known = true.get(key)
        choice = random.random()
        if choice < 0.5 or known is None:
            true[key] = random.randrange(100)
            index.note(kind, key)
        elif choice < 0.8:
            true[key] = known + random.randrange(10)  # Later: nobody tells the index.
        else:
            true[key] = None
        now = random.randrange(120)
        due = sorted((at, name) for name, at in true.items() if at is not None and at <= now)
        assert index.first(kind, now) == (due[0][1] if due else None)
        times = [at for at in true.values() if at is not None]
        assert index.next_ms() == min(times, default=None)


def test_deadlines_are_worked_off_in_pieces_and_say_what_is_left() -> None:
    core = Core()
    for _ in range(5):
        core.submit(pending_timeout_ms=10)
    core.pass_ms(10)
    assert core.deadlines(limit=3).remaining > 0
    assert core.state.jobs_by_phase["Killed"] == 3
    assert core.deadlines(limit=3).remaining == 0
    assert core.state.jobs_by_phase["Killed"] == 5
    assert core.state.due.next_ms() is not None  # Their retention.


def test_log_time_never_goes_back() -> None:
    core = Core()
    core.now_ms = 500
    core.apply(Audit(what="x"))
    assert core.state.clock_ms == 1000


# ---- snapshots -----------------------------------------------------------------------------------


def full_core() -> Core:
    """A state with a row in every table."""
    core = Core()
    core.node("a1", core.started("0123abcd0000.0000000000000fff.000000"), gpu=1)
    core.submit(key="k", gpu=1, exit_codes={2: "fail_job"}, env={"B": "1", "A": "2"})
    done, token = core.given_running(job={"retention_ms": 1_000})
    core.report(core.finished(token, "exit_nonzero"))
    core.report(core.finished("0123abcd0000.0000000000000ffe.000000"))
    core.pass_ms(60_000)
    core.deadlines()
    assert queries.job_view(core.state, done) is None
    lost, _ = core.given_running(retry=Retry(node_limit=1))
    core.report(core.finished("0123abcd0000.0000000000000ffd.000000"))
    core.offline(reason="disconnected", lease_ms=9_000)
    assert core.attempt(lost).ended is not None
    for name in ("jobs", "workers", "attempts", "nodes", "keys", "registry", "tombstones"):
        assert len(core.state.table(name)), name
    for name in ("job_tombstones", "orphans", "event_logs", "incidents"):
        assert len(core.state.table(name)), name
    return core


def chunks_of(core: Core) -> bytes:
    return b"".join(snapshot_chunks(core.state.view()))


def test_a_restored_state_is_the_same_whatever_the_chunks() -> None:
    data = chunks_of(full_core())
    for size in (1, 7, 1000, len(data)):
        state = restore_state(data[at : at + size] for at in range(0, len(data), size))
        assert b"".join(snapshot_chunks(state.view())) == data


def test_every_prefix_of_a_snapshot_is_refused() -> None:
    data = chunks_of(Core())
    for length in range(len(data)):
        with pytest.raises(BadSnapshot):
            restore_state([data[:length]])
    with pytest.raises(BadSnapshot):
        restore_state([data + b"\0"])


def test_flipped_bits_of_a_snapshot_are_refused() -> None:
    data = chunks_of(full_core())
    random = Random(1)
    for _ in range(300):
        broken = bytearray(data)
        broken[random.randrange(len(data))] ^= 1 << random.randrange(8)
        with pytest.raises(ValueError):
            restore_state([bytes(broken)])


def test_a_newer_snapshot_asks_for_an_upgrade() -> None:
    header = encode_record(("pertinax-state", 1, STATE_VERSION + 1))
    with pytest.raises(NewerSnapshot, match="upgrade"):
        restore_state([len(header).to_bytes(4, "big") + header])


# ---- golden bytes --------------------------------------------------------------------------------


def golden_log() -> list[bytes]:
    lines = (GOLDEN / "entries-1.hex").read_text().split()
    return [bytes.fromhex(line) for line in lines]


def test_entries_of_the_first_release_mean_the_same() -> None:
    """Written by version 1; the bytes are never changed, only added to."""
    core = full_core()
    assert core.log == golden_log(), "a change of these bytes breaks every stored log"
    assert [encode_entry(decode_entry(data)) for data in core.log] == core.log


def test_a_snapshot_of_the_first_release_restores_to_the_same_digest() -> None:
    data = bytes.fromhex((GOLDEN / "snapshot-1.hex").read_text())
    state = restore_state([data])
    assert state.digest() == full_core().state.digest()


@pytest.mark.parametrize("data", [b"", b"\x91\x63", b"\x96\xcc\xc8\x01\x00\x00\xa0\xa0", b"\xc1"])
def test_an_unknown_entry_stops_the_controller(data: bytes) -> None:
    with pytest.raises(UnknownEntry, match="does not know"):
        decode_entry(data)


def test_an_entry_begins_with_kind_version_log_time_wall_and_actor() -> None:
    import msgspec

    entry: AnyEntry = DeadlinesPassed(log_time_ms=5, wall_ms=6, actor="controller:c1", limit=7)
    assert msgspec.msgpack.decode(encode_entry(entry)) == [9, 1, 5, 6, "controller:c1", 7]


# ---- lists ---------------------------------------------------------------------------------------


def ids(core: Core, **filters: Any) -> list[int]:
    return [view["id"] for view in queries.jobs_page(core.state, **filters)[0]]


def test_jobs_are_listed_newest_first_in_pages() -> None:
    core = Core()
    for number in range(5):
        core.submit(user="alice" if number % 2 else "bob", job={"name": f"n{number}"})
    core.kill("2")
    assert ids(core) == [5, 4, 3, 2, 1]
    page, after = queries.jobs_page(core.state, limit=2)
    assert ([view["id"] for view in page], after) == ([5, 4], "4")
    page, after = queries.jobs_page(core.state, limit=2, after=after)
    assert ([view["id"] for view in page], after) == ([3, 2], "2")
    assert queries.jobs_page(core.state, limit=2, after=after)[1] is None
    assert ids(core, states=["Killed"]) == [2]
    assert ids(core, states=["Pending", "Running"]) == [5, 4, 3, 1]
    assert ids(core, user="bob", name="n[24]") == [5, 3]
    assert ids(core, queue="other") == []
    assert queries.newest_named(core.state, "n1") == 2


def test_overdue_shows_only_what_its_rule_has_not_decided() -> None:
    core = Core()
    job_id, _ = core.given_running()
    core.offline(lease_ms=300_000)
    core.pass_ms(300_000)
    core.apply(Audit(what="time passes"))
    assert ids(core, is_overdue=True) == []
    core.pass_ms(10_000)
    core.apply(Audit(what="nobody expires it"))
    assert ids(core, is_overdue=True) == [job_id]
    core.deadlines()
    assert ids(core, is_overdue=True) == []
    assert queries.count_overdue(core.state) == 0


def test_a_history_tells_the_whole_story_in_order() -> None:
    core = Core()
    job_id, token = core.given_running(retry=Retry(limit=1))
    core.report(core.finished(token, "exit_nonzero", exit_code=3))
    core.pass_ms(1_000)
    token = core.place()[f"{job_id}/main/0#2"]
    core.report(core.started(token))
    core.kill(str(job_id), why="enough")
    core.report(core.finished(token, "killed", was_signalled=True))
    story = [
        (event["object"], event["kind"], event["to"], event["cause"])
        for event in queries.history_view(core.state, str(job_id)) or []
    ]
    one, two = f"{job_id}/main/0#1", f"{job_id}/main/0#2"
    assert story == [
        ("1", "submitted", "Pending", None),
        (one, "created", "Pending", None),
        (one, "placed", None, None),
        ("1", "phase", "Running", None),
        (one, "started", "Running", None),
        (one, "ended", "Failed", "exit_nonzero"),
        (two, "created", "Pending", None),
        ("1", "phase", "Pending", None),
        (two, "placed", None, None),
        ("1", "phase", "Running", None),
        (two, "started", "Running", None),
        ("1", "kill_requested", None, "user_cancel"),
        (two, "kill_requested", None, "user_cancel"),
        (two, "ended", "Killed", "user_cancel"),
        ("1", "ended", "Killed", "user_cancel"),
    ]


def test_views_hold_to_the_schemas_of_the_api() -> None:
    import msgspec

    from scheduler.http import schemas

    core = full_core()
    for view, kind in (
        (queries.jobs_page(core.state)[0], list[schemas.Job]),
        (queries.attempts_view(core.state, "3"), list[schemas.Attempt]),
        (queries.workers_view(core.state, "3"), list[schemas.Worker]),
        (queries.history_view(core.state, "3"), list[schemas.Event]),
        (queries.nodes_view(core.state), list[schemas.Node]),
        (queries.registry_view(core.state), schemas.Registry),
    ):
        assert view
        msgspec.convert(view, kind)
