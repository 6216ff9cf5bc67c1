"""The command `python -m wal check|dump|stats|repair DIR`.

`check`, `dump` and `stats` are read-only and take no lock (check.py); `repair` takes the lock and
gives up records, only when told where (repair.py).

Exit codes: 0 sound or done, 1 damage, 2 usage, in use, or not a store.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from wal.check import Problem, Report, check, dump
from wal.errors import Corrupt, WalError
from wal.frame import Frame, RecordType
from wal.repair import QUARANTINE_DIRECTORY, Repaired, repair

__all__ = ["Problem", "Repaired", "Report", "check", "dump", "main", "repair"]

#: Bytes of a payload that `dump` shows to people.
_SHOWN_BYTES: Final = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `python -m wal`; returns the exit code."""
    options = _parse(arguments)
    directory = Path(options.directory)
    try:
        match options.command:
            case "check" | "stats":
                return _run_check(directory, options)
            case "dump":
                dump(directory, _printer(options), start=options.start)
                return 0
            case _:
                return _run_repair(directory, options)
    except Corrupt as error:
        print(error, file=sys.stderr)
        return 1
    except (WalError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m wal", description="Look into a store.")
    commands = parser.add_subparsers(dest="command", required=True)
    texts = {
        "check": "verify every byte; exit 1 on damage",
        "dump": "print the records",
        "stats": "print figures",
        "repair": "give up entries from an index on (takes the lock)",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("directory", metavar="DIR")
        command.add_argument("--json", action="store_true", help="machine-readable")
        if name == "dump":
            command.add_argument("--start", type=int, default=0, metavar="INDEX")
        if name == "repair":
            command.add_argument("--truncate-at", type=int, required=True, metavar="INDEX")
    return parser.parse_args(arguments)


def _run_check(directory: Path, options: argparse.Namespace) -> int:
    report = check(directory)
    if options.json:
        print(json.dumps(report.as_json()))
    elif options.command == "stats":
        for key, value in report.as_json().items():
            print(f"{key}: {value}")
    else:
        print(
            f"{report.kind} of {report.member} in {report.cluster_id}: "
            f"{len(report.segments)} segments, {len(report.snapshots)} snapshots, entries "
            f"{report.first_index} to {report.last_index}, term {report.term}"
        )
        for note in report.notes:
            print(f"note: {note}")
        for problem in report.problems:
            print(f"DAMAGED {problem}")
        print("sound" if report.is_sound else "damaged")
    return 0 if report.is_sound else 1


def _printer(options: argparse.Namespace) -> Callable[[str, Frame], None]:
    def emit(name: str, frame: Frame) -> None:
        kind = RecordType(frame.type).name.lower()
        if options.json:
            fields = {
                "segment": name,
                "offset": frame.offset,
                "type": kind,
                "index": frame.index,
                "term": frame.term,
                "synced_upto": frame.synced_upto,
                "payload_hex": frame.payload.hex(),
            }
            print(json.dumps(fields))
        else:
            shown = frame.payload[:_SHOWN_BYTES].hex()
            more = "..." if len(frame.payload) > _SHOWN_BYTES else ""
            print(
                f"{name} {frame.offset:>10} {kind:<8} index={frame.index} term={frame.term} "
                f"bytes={len(frame.payload)} {shown}{more}"
            )

    return emit


def _run_repair(directory: Path, options: argparse.Namespace) -> int:
    done = repair(directory, truncate_at=options.truncate_at)
    if options.json:
        print(json.dumps(asdict(done)))
    else:
        print(f"the log ends at entry {done.last_index} now")
        if done.cut is not None:
            print(
                f"cut {done.cut}; copies in {QUARANTINE_DIRECTORY}/: {' '.join(done.quarantined)}"
            )
    return 0
