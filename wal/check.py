"""Reading a store's directory without its lock: everything verified, or every record in order.

Writes nothing, so it may run beside a live writer; it sees what is complete and durable. A finding
that a live writer could have caused while it was read is looked at again before it is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from wal.errors import Corrupt
from wal.files import REAL_FILES, FileSystem
from wal.frame import Frame, RecordType
from wal.identity import Identity, read_identity, read_identity_file
from wal.keyed_records import decode_keyed
from wal.opening import SEGMENTS_DIRECTORY, Replay
from wal.recovery import Chain, read_page, recover
from wal.segment import (
    KIND_KEYED,
    KIND_LOG,
    SLOT_OFFSETS,
    SegmentHeader,
    decode_header,
    page_blemishes,
    sequence_of,
)
from wal.settings import PAGE_BYTES
from wal.snapshots import SnapshotStore, verify
from wal.writer import SPARE_NAME

SNAPSHOTS_DIRECTORY: Final = "snapshots"
#: Looks at a directory whose writer may be at work.
_LOOKS_MAX: Final = 10
_GONE_CHOICES: Final = "Check again: a writer may have dropped it meanwhile"
_KEYED_CHOICES: Final = "The store opens without that record and names its key where it can"


@dataclass(frozen=True, slots=True)
class Problem:
    """Bytes that are not what was written."""

    #: Name of the file, relative to the directory.
    file: str
    offset: int | None
    what: str
    choices: str

    def __str__(self) -> str:
        where = self.file if self.offset is None else f"{self.file} at offset {self.offset}"
        return f"{where}: {self.what}. {self.choices}"


@dataclass(slots=True)
class Report:
    """What `check` found."""

    directory: str
    #: "log" or "keyed".
    kind: str = "log"
    cluster_id: str = ""
    member: str = ""
    incarnation: int = 0
    segments: list[str] = field(default_factory=list)
    first_index: int = 0
    last_index: int = 0
    base_index: int = 0
    term: int = 0
    voted_for: str | None = None
    commit_index: int = 0
    record_bytes: int = 0
    snapshots: list[str] = field(default_factory=list)
    #: Harmless remains of a crash; opening the store removes them.
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, object]:
        """The report as JSON's types."""
        return {**asdict(self), "is_sound": self.is_sound}


def check(directory: Path, *, fs: FileSystem = REAL_FILES) -> Report:
    """Verify everything in a store's directory. Raises WrongIdentity if it is none.

    Blocks while it reads the whole store. Damage is reported, not raised.
    """
    report = Report(str(directory))
    try:
        identity = read_identity(directory, fs=fs)
    except Corrupt as error:
        report.problems.append(_problem(directory, error))
        return report
    report.cluster_id, report.member = identity.cluster_id, identity.member
    report.incarnation = identity.incarnation
    _look_until_sure(directory, identity, report, fs)
    _check_snapshots(directory, report, fs)
    return report


def _look_until_sure(directory: Path, identity: Identity, report: Report, fs: FileSystem) -> None:
    """Check the segments; what is found counts once two looks in a row agree on the place."""
    previous: set[tuple[str, int | None]] = set()
    for _ in range(_LOOKS_MAX):
        report.notes, report.problems, report.segments = [], [], []
        try:
            _check_segments(directory, identity, report, fs)
        except FileNotFoundError as error:
            # The writer dropped a segment meanwhile.
            gone = Problem(str(error.filename), None, "the file is missing", _GONE_CHOICES)
            report.problems.append(gone)
        places = {(problem.file, problem.offset) for problem in report.problems}
        if not places or places & previous:
            return
        previous = places
    report.problems = []
    report.notes.append("the store changed too fast to be read as one; check it again")


def dump(
    directory: Path,
    emit: Callable[[str, Frame], None],
    *,
    start: int = 0,
    fs: FileSystem = REAL_FILES,
) -> None:
    """Give `emit` the segment name and record of every entry from `start` on and of all the rest.

    In order. Raises Corrupt at damage, after what precedes it was given.
    """
    identity = read_identity(directory, fs=fs)
    segments = directory / SEGMENTS_DIRECTORY
    kind = store_kind(directory, fs)
    visitor = _visitor(kind)
    recover(fs, segments, identity=identity, kind=kind, visitor=_Emitting(visitor, emit, start))


def store_kind(directory: Path, fs: FileSystem) -> int:
    """What the directory's segments are for; a log's if that cannot be told."""
    segments = directory / SEGMENTS_DIRECTORY
    for name in fs.names(segments) if fs.exists(segments) else []:
        if sequence_of(name) is not None:
            path = segments / name
            try:
                return decode_header(read_page(fs, path), path, use_copy=True).kind
            except Corrupt:
                continue
    return KIND_LOG


class _KeyedReplay:
    """Checks that a keyed store's records number themselves without gaps and verify inside."""

    def __init__(self) -> None:
        self.next_index = 1

    def begin(self, header: SegmentHeader) -> None:
        self.next_index = header.next_index

    def bulk(self) -> None:
        """There are no entries."""

    def enter(self, name: str) -> None:
        """Nothing depends on where a record stands."""

    def visit(self, frame: Frame) -> None:
        if frame.type == RecordType.BASE:
            return
        if frame.type not in {RecordType.PUT, RecordType.DELETE}:
            raise ValueError(f"a keyed store holds no record of type {frame.type}")
        if frame.index != self.next_index:
            raise ValueError(f"record {frame.index} follows record {self.next_index - 1}")
        if decode_keyed(frame.payload) is None:
            raise ValueError("the record names no key")
        self.next_index += 1


class _Emitting:
    """Passes records on and replays them."""

    def __init__(
        self, inner: Replay | _KeyedReplay, emit: Callable[[str, Frame], None], start: int
    ) -> None:
        self._inner = inner
        self._emit = emit
        self._start = start
        self._name = ""

    @property
    def next_index(self) -> int:
        return self._inner.next_index

    def begin(self, header: SegmentHeader) -> None:
        self._inner.begin(header)

    def bulk(self) -> None:
        """Each record is emitted."""

    def enter(self, name: str) -> None:
        self._name = name

    def visit(self, frame: Frame) -> None:
        self._inner.visit(frame)
        if frame.type != RecordType.ENTRY or frame.index >= self._start:
            self._emit(self._name, frame)


def _visitor(kind: int) -> Replay | _KeyedReplay:
    return _KeyedReplay() if kind == KIND_KEYED else Replay()


def _problem(directory: Path, error: Corrupt, *, is_keyed: bool = False) -> Problem:
    path = error.path or directory
    name = str(path.relative_to(directory)) if path.is_relative_to(directory) else str(path)
    choices = _KEYED_CHOICES if is_keyed else error.choices
    return Problem(name, error.offset, error.what, choices)


def _check_segments(directory: Path, identity: Identity, report: Report, fs: FileSystem) -> None:
    segments = directory / SEGMENTS_DIRECTORY
    names = fs.names(segments) if fs.exists(segments) else []
    report.segments = [name for name in names if sequence_of(name) is not None]
    if not report.segments:
        if read_identity_file(directory, fs=fs).is_started:
            gone = Corrupt("the segments of a log that was in use are gone", path=segments)
            report.problems.append(_problem(directory, gone))
        return
    kind = store_kind(directory, fs)
    report.kind = "keyed" if kind == KIND_KEYED else "log"
    visitor = _visitor(kind)
    try:
        chain = recover(fs, segments, identity=identity, kind=kind, visitor=visitor)
        if isinstance(visitor, Replay):
            visitor.finish()
    except Corrupt as error:
        report.problems.append(_problem(directory, error, is_keyed=kind == KIND_KEYED))
    except ValueError as error:
        where = segments / report.segments[0]
        report.problems.append(_problem(directory, Corrupt(str(error), path=where)))
    else:
        _note_chain(chain, report)
    _check_pages(directory, report, fs)
    if isinstance(visitor, Replay):
        report.base_index, report.first_index = visitor.base_index, visitor.base_index + 1
        report.commit_index = min(visitor.commit_index, visitor.next_index - 1)
    report.last_index = visitor.next_index - 1


def _note_chain(chain: Chain, report: Report) -> None:
    report.record_bytes = sum(segment.end - PAGE_BYTES for segment in chain.segments)
    for name in chain.leftovers:
        if name != SPARE_NAME:
            report.notes.append(f"{name}: left over from an interrupted change")
    if chain.torn is not None:
        report.notes.append(
            f"{chain.torn.name} at offset {chain.torn.offset}: {chain.torn.size_bytes} bytes of a "
            "batch that was being written and never acknowledged"
        )
    if chain.segments:
        hard = chain.newest_slot.hard
        report.term, report.voted_for = hard.term, hard.voted_for


def _check_pages(directory: Path, report: Report, fs: FileSystem) -> None:
    """Every byte of every header page: those nothing else reads, too."""
    known = {(problem.file, problem.offset) for problem in report.problems}
    for name in report.segments:
        path = directory / SEGMENTS_DIRECTORY / name
        page = read_page(fs, path)
        try:
            seed = decode_header(page, path, use_copy=True).seed
        except Corrupt as error:
            found = [(0, error.what)]
        else:
            found = page_blemishes(page, seed=seed)
        for offset, what in found:
            damage = Corrupt(what, path=path, offset=offset)
            problem = _problem(directory, damage, is_keyed=report.kind == "keyed")
            if offset in SLOT_OFFSETS:
                # One invalid slot is what a crash while writing it leaves; the other one counts.
                report.notes.append(f"{problem.file} at offset {offset}: {what}")
            elif (problem.file, offset) not in known:
                report.problems.append(problem)


def _check_snapshots(directory: Path, report: Report, fs: FileSystem) -> None:
    for info in SnapshotStore(directory / SNAPSHOTS_DIRECTORY, fs=fs).infos():
        report.snapshots.append(info.path.name)
        try:
            verify(info.path, fs=fs)
        except Corrupt as error:
            report.problems.append(_problem(directory, error))
        except FileNotFoundError:
            # Pruned by the writer meanwhile.
            report.snapshots.pop()
