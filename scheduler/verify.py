"""`python -m scheduler.verify DIR [--json]`: a controller's data, applied again and checked.

Reads the bytes of log and snapshots (`wal.check`), applies every entry again from the oldest
snapshot the log continues, checks every invariant of specification 4 that a state or a step can
show, and compares the state with each newer snapshot. Writes nothing and takes no lock, so it may
run beside a live controller: then it stops at the last record that is whole.

Exit codes: 0 all holds, 1 something does not (the first bad entry is named), 2 no data directory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from replication.entries import command_of
from scheduler.core.apply import apply
from scheduler.core.commands import UnknownEntry, decode_entry
from scheduler.core.invariants import check_capacity, check_state, check_step
from scheduler.core.snapshot import BadSnapshot, restore_state, snapshot_chunks
from scheduler.core.state import ClusterState
from wal.check import SNAPSHOTS_DIRECTORY, check, dump
from wal.errors import Corrupt, WalError
from wal.frame import Frame, RecordType
from wal.snapshots import SnapshotInfo, SnapshotStore

#: Entries of the log by index: (term, payload).
Log = dict[int, tuple[int, bytes]]

#: Records in the state that one entry's share of checking may cost: bounds the whole to about
#: this many times the number of entries.
CHECKED_PER_ENTRY: Final = 100
#: Problems told before giving up: one broken record breaks many rules.
PROBLEMS_MAX: Final = 20


@dataclass(slots=True)
class Verified:
    """What was found."""

    directory: str
    cluster_id: str = ""
    member: str = ""
    #: Index the replay began behind, and the last one it applied.
    from_index: int = 0
    to_index: int = 0
    commit_index: int = 0
    entries: int = 0
    jobs: int = 0
    attempts: int = 0
    digest: str = ""
    snapshots: list[int] = field(default_factory=list)
    #: Index of the first entry after which something did not hold.
    first_bad_index: int | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "is_sound": self.is_sound}


def verify_directory(directory: Path) -> Verified:
    """Check a controller's data directory. Blocks; raises WalError or OSError if it is none."""
    found = Verified(str(directory))
    bytes_report = check(directory)
    found.cluster_id, found.member = bytes_report.cluster_id, bytes_report.member
    found.commit_index = bytes_report.commit_index
    found.notes += bytes_report.notes
    found.problems += [str(problem) for problem in bytes_report.problems]
    if found.problems:
        return found
    log, base_index = _read_log(directory)
    infos = SnapshotStore(directory / SNAPSHOTS_DIRECTORY).infos()
    _replay(found, log, base_index, sorted(infos))
    return found


# ---- reading -----------------------------------------------------------------------------------


def _read_log(directory: Path) -> tuple[Log, int]:
    """The entries that stand, and the index they follow."""
    log: Log = {}
    base = 0

    def take(_segment: str, frame: Frame) -> None:
        nonlocal base
        match frame.type:
            case RecordType.ENTRY:
                log[frame.index] = (frame.term, frame.payload)
            case RecordType.TRUNCATE:
                for index in [index for index in log if index >= frame.index]:
                    del log[index]
            case RecordType.BASE:
                base = max(base, frame.index)
            case RecordType.RESET:
                log.clear()
                base = frame.index

    dump(directory, take)
    return {index: entry for index, entry in log.items() if index > base}, base


def _state_of(info: SnapshotInfo) -> ClusterState:
    reader = SnapshotStore(info.path.parent).open_reader(info.index)
    try:
        return restore_state(reader)
    finally:
        reader.close()


# ---- applying again ----------------------------------------------------------------------------


def _replay(found: Verified, log: Log, base_index: int, infos: Sequence[SnapshotInfo]) -> None:
    state, start = ClusterState(), base_index
    if base_index:
        usable = [info for info in infos if info.index >= base_index]
        if not usable:
            found.problems.append(f"the log begins behind {base_index} and no snapshot leads there")
            return
        start = usable[0].index
        try:
            state = _state_of(usable[0])
        except BadSnapshot as error:
            found.problems.append(f"{usable[0].path.name}: {error}")
            return
        found.snapshots.append(start)
        _take_problems(found, check_state(state), start)
    found.from_index = start
    later = {info.index: info for info in infos if info.index > start}
    checker = _Checker(found, state)
    for index, payload in _following(log, start):
        if found.problems:
            break
        checker.apply(index, payload)
        if index in later:
            checker.check()
            _compare(found, checker.state, later[index])
    checker.check()
    state = checker.state
    found.to_index = state.index if state.index > start else start
    found.jobs, found.attempts = len(state.jobs), len(state.attempts)
    found.digest = state.digest()
    if over := check_capacity(state):
        found.notes += over


def _following(log: Log, start: int) -> Iterator[tuple[int, bytes]]:
    index = start + 1
    while index in log:
        yield index, log[index][1]
        index += 1


def _compare(found: Verified, state: ClusterState, info: SnapshotInfo) -> None:
    try:
        told = _state_of(info).digest()
    except BadSnapshot as error:
        found.problems.append(f"{info.path.name}: {error}")
        return
    found.snapshots.append(info.index)
    if told != state.digest():
        problem = f"9: snapshot {info.index} has digest {told}, the log gives {state.digest()}"
        _take_problems(found, [problem], info.index)


def _take_problems(found: Verified, problems: list[str], index: int) -> None:
    if problems and found.first_bad_index is None:
        found.first_bad_index = index
    found.problems += [f"after entry {index}: {problem}" for problem in problems[:PROBLEMS_MAX]]


class _Checker:
    """Applies entries, and checks once the cost of a check is spread over enough of them.

    When a check fails, the entries since the last good one are applied again one by one, to name
    the first bad one.
    """

    def __init__(self, found: Verified, state: ClusterState) -> None:
        self.state = state
        self._found = found
        self._since: list[tuple[int, bytes]] = []
        self._good = list(snapshot_chunks(state.view()))
        self._before = state.view()

    def apply(self, index: int, payload: bytes) -> None:
        try:
            if not self._apply_one(self.state, index, payload):
                return
        except (UnknownEntry, ValueError, AssertionError, KeyError) as error:
            _take_problems(self._found, [f"apply raised {type(error).__name__}: {error}"], index)
            return
        self._since.append((index, payload))
        self._found.entries += 1
        if len(self._since) * CHECKED_PER_ENTRY >= len(self.state.attempts):
            self.check()

    @staticmethod
    def _apply_one(state: ClusterState, index: int, payload: bytes) -> bool:
        command = command_of(payload)
        if command is None:
            return False
        apply(state, decode_entry(command), index)
        return True

    def check(self) -> None:
        """Check now, if anything was applied since the last check."""
        if not self._since or self._found.problems:
            return
        problems = check_state(self.state) + check_step(self._before, self.state)
        if problems:
            self._find_first()
            if not self._found.problems:
                _take_problems(self._found, problems, self._since[-1][0])
            return
        self._since = []
        self._good = list(snapshot_chunks(self.state.view()))
        self._before = self.state.view()

    def _find_first(self) -> None:
        state = restore_state(self._good)
        for index, payload in self._since:
            before = state.view()
            self._apply_one(state, index, payload)
            problems = check_state(state) + check_step(before, state)
            if problems:
                _take_problems(self._found, problems, index)
                return


# ---- the command -------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scheduler.verify", description="Apply a controller's log again and check."
    )
    parser.add_argument("directory", help="a controller's data directory")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    try:
        found = verify_directory(Path(options.directory))
    except Corrupt as error:
        found = Verified(options.directory, problems=[str(error)])
    except (WalError, OSError) as error:
        print(f"no data directory of a controller: {error}", file=sys.stderr)  # noqa: T201
        return 2
    if options.json:
        print(json.dumps(found.as_json(), indent=2))  # noqa: T201
    else:
        print(_render(found))  # noqa: T201
    return 0 if found.is_sound else 1


def _render(found: Verified) -> str:
    head = (
        f"{found.directory}: {found.member or '?'} of cluster {found.cluster_id or '?'}, "
        f"{found.entries} entries applied again ({found.from_index + 1} to {found.to_index}), "
        f"{found.jobs} jobs, {found.attempts} attempts"
    )
    lines = [head, *(f"note: {note}" for note in found.notes)]
    if found.is_sound:
        lines.append(f"every invariant holds; digest {found.digest}")
    else:
        lines += [f"BAD: {problem}" for problem in found.problems]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
