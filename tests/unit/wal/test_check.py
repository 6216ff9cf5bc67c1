"""`python -m wal`, on real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wal import (
    Corrupt,
    Identity,
    KeyedStore,
    Locked,
    SnapshotStore,
    WalSettings,
    WriteAheadLog,
    create_directory,
)
from wal.dump import check, main
from wal.repair import CannotRepair, repair

IDENTITY = Identity("cluster", "a")
SETTINGS = WalSettings(
    segment_bytes=16384, reserve_bytes=8192, record_bytes_max=2048, housekeeping=False
)


def open_log(directory: Path) -> WriteAheadLog:
    return WriteAheadLog.open(directory, identity=IDENTITY, settings=SETTINGS)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A controller's directory: 60 entries in several segments, term 4, and a snapshot."""
    data = tmp_path / "data"
    create_directory(data, IDENTITY)
    log = open_log(data)
    log.set_hard_state(4, "b")
    for index in range(1, 61):
        log.append(b"entry %d " % index * 60, index=index, term=4)
        if index % 3 == 0:
            log.sync()
    log.close()
    store = SnapshotStore(data / "snapshots")
    store.open()
    with store.writer(20, 4) as writer:
        writer.write(b"state")
        writer.commit()
    return data


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "wal").glob("*.seg"))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def flip_middle(path: Path) -> None:
    """As an operator's drill does it: in the middle of the used part."""
    used = path.read_bytes().rstrip(b"\0")
    flip(path, 4096 + (len(used) - 4096) // 2)


def test_sound_directory(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(directory)]) == 0
    assert "entries 1 to 60, term 4" in capsys.readouterr().out
    assert main(["check", str(directory), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["is_sound"]
    assert report["voted_for"] == "b"
    assert (report["first_index"], report["last_index"]) == (1, 60)
    assert len(report["segments"]) == len(segments(directory)) > 2
    assert len(report["snapshots"]) == 1


def test_damage_is_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segments(directory)[0]
    flip_middle(path)
    assert main(["check", str(directory)]) == 1
    shown = capsys.readouterr().out
    assert path.name in shown
    assert "offset" in shown
    assert "--truncate-at" in shown
    with pytest.raises(Corrupt, match=path.name):
        open_log(directory)


def test_damaged_header_copy_and_snapshot_are_damage(directory: Path) -> None:
    flip(segments(directory)[1], 3072 + 500)
    snapshot = next((directory / "snapshots").iterdir())
    flip(snapshot, 50)
    problems = check(directory).problems
    assert [problem.file for problem in problems] == [
        f"wal/{segments(directory)[1].name}",
        f"snapshots/{snapshot.name}",
    ]


def test_damaged_identity(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(directory / "identity", 40)
    assert main(["check", str(directory)]) == 1
    assert "identity" in capsys.readouterr().out


def test_not_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert "no identity" in capsys.readouterr().err


def test_check_needs_no_lock_and_writes_nothing(directory: Path) -> None:
    log = open_log(directory)
    log.append(b"not durable", index=61, term=4)
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    report = check(directory)
    assert report.is_sound
    assert report.last_index == 60
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    log.close()


def test_dump(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(directory), "--start", "59"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " entry " in line]
    assert len(lines) == 2
    assert main(["dump", str(directory), "--json", "--start", "60"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["type"], last["index"], last["term"]) == ("entry", 60, 4)
    assert bytes.fromhex(last["payload_hex"]) == b"entry 60 " * 60


def test_dump_shows_what_precedes_damage(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_middle(segments(directory)[1])
    assert main(["dump", str(directory)]) == 1
    out, err = capsys.readouterr()
    assert "index=1 " in out
    assert segments(directory)[1].name in err


def test_stats(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(directory)]) == 0
    assert "last_index: 60" in capsys.readouterr().out


def test_repair_cuts_the_damage_and_keeps_the_vote(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hurt = segments(directory)[1]
    flip_middle(hurt)
    readable = check(directory).last_index
    assert 20 < readable < 60
    with pytest.raises(CannotRepair, match=f"1 to {readable + 1}"):
        repair(directory, truncate_at=readable + 2)
    assert main(["repair", str(directory), "--truncate-at", str(readable + 1), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["last_index"] == readable
    assert hurt.name in done["cut"]
    assert sorted(done["quarantined"]) == sorted(p.name for p in directory.glob("quarantine/*"))
    assert check(directory).is_sound
    log = open_log(directory)
    assert (log.last_index, log.term, log.voted_for) == (readable, 4, "b")
    log.append(b"goes on", index=readable + 1, term=4)
    log.sync()
    log.close()
    assert check(directory).is_sound


def test_repair_without_damage_truncates(directory: Path) -> None:
    done = repair(directory, truncate_at=31)
    assert (done.last_index, done.cut, done.quarantined) == (30, None, ())
    assert check(directory).last_index == 30


def test_repair_drops_segments_behind_a_damaged_header(directory: Path) -> None:
    flip(segments(directory)[2], 20)
    with pytest.raises(Corrupt):
        open_log(directory)
    readable = check_prefix(directory)
    done = repair(directory, truncate_at=readable + 1)
    assert done.last_index == readable
    assert check(directory).is_sound


def check_prefix(directory: Path) -> int:
    with pytest.raises(CannotRepair) as caught:
        repair(directory, truncate_at=10**9)
    return int(str(caught.value).split(" to ")[1].split(" ")[0])


def test_repair_of_a_cut_file(directory: Path) -> None:
    path = segments(directory)[-1]
    path.write_bytes(path.read_bytes()[:6000])
    readable = check_prefix(directory)
    assert repair(directory, truncate_at=readable + 1).last_index == readable
    assert check(directory).is_sound


def test_repair_refuses_without_term_and_vote(directory: Path) -> None:
    path = segments(directory)[-1]
    flip(path, 1030)
    flip(path, 2050)
    with pytest.raises(CannotRepair, match="term and vote"):
        repair(directory, truncate_at=10)


def test_repair_refuses_below_the_base_and_in_use(directory: Path) -> None:
    log = open_log(directory)
    with pytest.raises(Locked):
        repair(directory, truncate_at=31)
    log.truncate_prefix(20)
    log.sync()
    log.close()
    with pytest.raises(CannotRepair, match="21 to 61"):
        repair(directory, truncate_at=20)


def test_keyed_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = KeyedStore.open(tmp_path / "ledger", identity=IDENTITY, settings=SETTINGS)
    for number in range(20):
        store.put(b"key %d" % number, b"value" * 30)
    store.sync()
    store.close()
    assert main(["check", str(tmp_path / "ledger")]) == 0
    assert "keyed of a" in capsys.readouterr().out
    assert main(["dump", str(tmp_path / "ledger")]) == 0
    assert capsys.readouterr().out.count(" put ") == 20
    flip_middle(segments(tmp_path / "ledger")[0])
    assert main(["check", str(tmp_path / "ledger")]) == 1
    assert "opens without that record" in capsys.readouterr().out
