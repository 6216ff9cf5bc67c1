"""`scheduler.verify` on real directories: what is sound, and each way of not being so."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from replication.entries import NOOP, encode_command
from scheduler import verify
from scheduler.core import invariants
from scheduler.core.apply import apply
from scheduler.core.commands import decode_entry
from scheduler.core.snapshot import snapshot_chunks
from scheduler.core.state import ClusterState
from tests.unit.core.harness import Core
from wal.identity import Identity, create_directory
from wal.log import WriteAheadLog
from wal.settings import WalSettings
from wal.snapshots import SnapshotStore

IDENTITY = Identity(cluster_id="c", member="c1", incarnation=1)
SETTINGS = WalSettings(
    segment_bytes=65536, reserve_bytes=16384, record_bytes_max=8192, housekeeping=False
)


def story() -> list[bytes]:
    """Commands in which a bit of everything happens."""
    core = Core()
    job_id, token = core.given_running()
    core.report(core.finished(token))
    lost, _ = core.given_running()
    core.offline(reason="disconnected", lease_ms=5_000)
    core.pass_ms(6_000)
    core.node("a2")
    core.place()
    core.kill(str(lost))
    assert core.job(job_id).phase == "Succeeded"
    return core.log


def write(directory: Path, commands: list[bytes], *, snapshot_at: int = 0) -> None:
    """A controller's directory with a no-op in front, as a leader writes it."""
    create_directory(directory, IDENTITY)
    log = WriteAheadLog.open(directory, identity=IDENTITY, settings=SETTINGS)
    log.append(NOOP, index=1, term=1)
    for index, command in enumerate(commands, start=2):
        log.append(encode_command(command), index=index, term=1)
    log.sync()
    if snapshot_at:
        write_snapshot(directory, commands, snapshot_at)
        log.truncate_prefix(snapshot_at)
        log.sync()
    log.close()


def write_snapshot(directory: Path, commands: list[bytes], at: int) -> None:
    state = ClusterState()
    for index, command in enumerate(commands[: at - 1], start=2):
        apply(state, decode_entry(command), index)
    store = SnapshotStore(directory / "snapshots")
    store.open()
    with store.writer(at, 1) as writer:
        for chunk in snapshot_chunks(state.view()):
            writer.write(chunk)
        writer.commit()


def test_a_sound_directory_is_applied_again_from_its_first_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = story()
    write(tmp_path / "data", commands)
    assert verify.main([str(tmp_path / "data"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["entries"], found["jobs"], found["is_sound"]) == (len(commands), 2, True)
    assert (found["from_index"], found["to_index"]) == (0, len(commands) + 1)
    assert verify.main([str(tmp_path / "data")]) == 0
    assert "every invariant holds" in capsys.readouterr().out


def test_it_begins_with_a_snapshot_and_compares_the_next(tmp_path: Path) -> None:
    commands = story()
    write(tmp_path, commands, snapshot_at=5)
    write_snapshot(tmp_path, commands, 9)
    found = verify.verify_directory(tmp_path)
    assert found.problems == []
    assert (found.from_index, found.snapshots) == (5, [5, 9])
    whole = ClusterState()
    for index, command in enumerate(commands, start=2):
        apply(whole, decode_entry(command), index)
    assert found.digest == whole.digest()


def test_a_snapshot_that_is_not_what_the_log_gives_is_named(tmp_path: Path) -> None:
    commands = story()
    write(tmp_path, commands)
    write_snapshot(tmp_path, [*commands[:4], commands[6], *commands[5:]], 9)
    found = verify.verify_directory(tmp_path)
    assert found.first_bad_index == 9
    assert "snapshot 9 has digest" in found.problems[0]


def test_the_first_entry_that_breaks_a_rule_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, story())
    real = invariants.check_state

    def planted(state: ClusterState) -> list[str]:
        return [*real(state), *(["8: planted"] if len(state.jobs) > 1 else [])]

    monkeypatch.setattr(verify, "check_state", planted)
    found = verify.verify_directory(tmp_path)
    submits = [i for i, c in enumerate(story(), start=2) if msgspec.msgpack.decode(c)[0] == 1]
    assert (found.first_bad_index, found.is_sound) == (submits[1], False)


@pytest.mark.parametrize("payload", [b"\x10\xc1", b"\x77rubbish"])
def test_an_entry_nobody_knows_is_named(tmp_path: Path, payload: bytes) -> None:
    create_directory(tmp_path, IDENTITY)
    log = WriteAheadLog.open(tmp_path, identity=IDENTITY, settings=SETTINGS)
    log.append(NOOP, index=1, term=1)
    log.append(payload, index=2, term=1)
    log.sync()
    log.close()
    found = verify.verify_directory(tmp_path)
    assert (found.first_bad_index, found.is_sound) == (2, False)


def test_damaged_bytes_are_told_and_nothing_is_applied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, story())
    [segment] = sorted((tmp_path / "wal").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    at = data.index(b"0123abcd0000")
    data[at] ^= 1
    segment.write_bytes(data)
    assert verify.main([str(tmp_path)]) == 1
    assert segment.name in capsys.readouterr().out


def test_what_is_no_data_directory_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify.main([str(tmp_path)]) == 2
    assert "no data directory" in capsys.readouterr().err
