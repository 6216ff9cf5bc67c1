"""P14: how fast is a log scanned at start, and how long until its entries are applied?

The rate is that of opening 200 MB of 4 KiB entries, from the page cache. Floor: reading and summing
(CRC-32) the same files. The second figure is of `--entries` small entries, four for each job from
its submission to its end: opened, and applied from nothing, as a member without a snapshot does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec

from replication.entries import command_of, encode_command
from scheduler.controller.metrics import Metrics
from scheduler.controller.state_machine import ClusterMachine
from scheduler.controller.watch import EventHub
from scheduler.core.apply import apply
from scheduler.core.commands import Entry, decode_entry, encode_entry
from scheduler.core.views import event_view
from tests.unit.core.harness import WALL_MS, Core
from wal.identity import Identity, create_directory
from wal.log import WriteAheadLog

SCAN_TARGET_MB_PER_S: Final = 200.0
#: For a million entries.
APPLIED_TARGET_S: Final = 40.0
BATCH_ENTRIES: Final = 10_000
READ_BYTES: Final = 1 << 20
SCAN_ENTRIES: Final = 50_000
SCAN_PAYLOAD: Final = b"\x10" + bytes(range(256)) * 16
IDENTITY: Final = Identity("benchmark", "a", 1)


class Unchecked(Core):
    """Without the checks after each entry, which cost what the state is large."""

    def apply(self, entry: Entry, *, actor: str = "system:test") -> Any:
        stamped = msgspec.structs.replace(
            entry, log_time_ms=self.now_ms, wall_ms=WALL_MS + self.now_ms, actor=actor
        )
        data = encode_entry(stamped)
        self.log.append(data)
        return apply(self.state, decode_entry(data), len(self.log)).outcome


def commands(count: int) -> Iterator[bytes]:
    """So many entries, or a few more: the lives of jobs."""
    core = Unchecked()
    made = 0
    while made < count:
        _, token = core.given_running()
        core.report(core.finished(token))
        made = len(core.log)
        yield from core.log
        # The state counts entries by this list's length; it need not keep them.
        core.log = _Counted(made)


class _Counted(list[bytes]):
    """An empty list that says how long it would be."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._offset = offset

    def __len__(self) -> int:
        return self._offset + super().__len__()


def write_log(directory: Path, payloads: Iterable[bytes]) -> int:
    """A log of these entries; returns how many there are."""
    create_directory(directory, IDENTITY)
    log = WriteAheadLog.open(directory, identity=IDENTITY)
    index = 0
    for index, payload in enumerate(payloads, 1):
        log.append(payload, index=index, term=1)
        if index % BATCH_ENTRIES == 0:
            log.sync()
    log.sync()
    log.close()
    return index


def read_floor(directory: Path) -> tuple[int, float]:
    """Bytes of the segments, and the seconds that reading and summing them take."""
    began, size, total = time.perf_counter(), 0, 0
    for path in sorted((directory / "wal").glob("*.seg")):
        with path.open("rb") as file:
            while data := file.read(READ_BYTES):
                total = crc32(data, total)
                size += len(data)
    return size, time.perf_counter() - began


def measure_scan(directory: Path) -> dict[str, float]:
    """MB/s of opening a log of large entries, and of reading its files."""
    count = write_log(directory, repeat(SCAN_PAYLOAD, SCAN_ENTRIES))
    size, floor_s = read_floor(directory)
    began = time.perf_counter()
    log = WriteAheadLog.open(directory, identity=IDENTITY)
    scan_s = time.perf_counter() - began
    assert log.last_index == count
    log.close()
    return {
        "floor_read_mb_per_s": round(size / 1e6 / floor_s, 1),
        "scan_mb_per_s": round(count * len(SCAN_PAYLOAD) / 1e6 / scan_s, 1),
    }


def measure_applied(directory: Path, entries: int) -> dict[str, float]:
    """Seconds from opening a log of jobs' entries until all are applied."""
    count = write_log(directory, map(encode_command, commands(entries)))
    began, cpu_began = time.perf_counter(), time.process_time()
    log = WriteAheadLog.open(directory, identity=IDENTITY)
    opened_s = time.perf_counter() - began
    machine = ClusterMachine(EventHub(render=event_view), Metrics())
    for payload, index, term in log.entries(1, count + 1):
        command = command_of(payload)
        assert command is not None
        machine.apply(index, term, command)
    applied_s = time.perf_counter() - began
    cpu_s = time.process_time() - cpu_began
    log.close()
    return {
        "entries": count,
        "opened_s": round(opened_s, 2),
        "applied_s": round(applied_s, 2),
        "applied_cpu_s": round(cpu_s, 2),
        "applied_s_per_million": round(applied_s / count * 1e6, 1),
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--entries", type=int, default=100_000)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="pertinax-bench-") as name:
        scan = measure_scan(Path(name) / "scan")
        applied = measure_applied(Path(name) / "applied", args.entries)
    figures = {
        "question": "wal_recovery",
        **scan,
        **applied,
        "targets": {
            "scan_mb_per_s": SCAN_TARGET_MB_PER_S,
            "applied_s_per_million": APPLIED_TARGET_S,
        },
        "is_met": scan["scan_mb_per_s"] >= SCAN_TARGET_MB_PER_S
        and applied["applied_s_per_million"] <= APPLIED_TARGET_S,
    }
    print(json.dumps(figures, indent=None if args.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
