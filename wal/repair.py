"""Giving up a log's records from a chosen index on: the only way to open a log past damage.

What is cut was possibly acknowledged, so nobody but an operator may ask for it. The files that
change are copied to `quarantine` first. Term and vote are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from wal.errors import Corrupt, WalError
from wal.files import REAL_FILES, FileSystem
from wal.frame import Frame
from wal.identity import Identity, read_identity
from wal.log import WriteAheadLog
from wal.opening import SEGMENTS_DIRECTORY, Replay, take_lock
from wal.recovery import read_page, recover
from wal.segment import (
    KIND_LOG,
    SLOT_OFFSETS,
    SegmentHeader,
    Slot,
    decode_header,
    decode_slots,
    encode_slot,
    sequence_of,
)
from wal.settings import PAGE_BYTES, WalSettings

QUARANTINE_DIRECTORY: Final = "quarantine"


class CannotRepair(WalError):
    """What was asked for is not possible; nothing was changed."""

    code = "wal_cannot_repair"


@dataclass(frozen=True, slots=True)
class Repaired:
    """What `repair` did."""

    #: The log's last index now.
    last_index: int
    #: File and offset from which records were removed; None if nothing was damaged.
    cut: str | None
    #: Files put aside.
    quarantined: tuple[str, ...]


class _Watched(Replay):
    """The log up to the damage, and where that is."""

    def __init__(self) -> None:
        super().__init__()
        self.name: str | None = None
        self.end = PAGE_BYTES

    def bulk(self) -> None:
        """Each record's place is wanted."""

    def enter(self, name: str) -> None:
        self.name, self.end = name, PAGE_BYTES

    def visit(self, frame: Frame) -> None:
        super().visit(frame)
        self.end = frame.end


def repair(directory: Path, *, truncate_at: int, fs: FileSystem = REAL_FILES) -> Repaired:
    """Drop the entry `truncate_at` and everything behind it, damage included; durable on return.

    Raises Locked, CannotRepair (term and vote are unreadable, or the index is not one of a readable
    entry or the one behind the last), WrongIdentity, SyncFailed, OSError.
    """
    identity = read_identity(directory, fs=fs)
    lock = take_lock(directory, fs=fs)
    try:
        cut, quarantined = _cut_damage(directory, identity, truncate_at, fs)
    finally:
        lock.release()
    settings = replace(WalSettings.local(), housekeeping=False)
    log = WriteAheadLog.open(directory, identity=identity, settings=settings, fs=fs)
    try:
        log.truncate_suffix(truncate_at)
        log.sync()
        return Repaired(log.last_index, cut, tuple(quarantined))
    finally:
        log.close()


def _cut_damage(
    directory: Path, identity: Identity, truncate_at: int, fs: FileSystem
) -> tuple[str | None, list[str]]:
    segments = directory / SEGMENTS_DIRECTORY
    names = [name for name in fs.names(segments) if sequence_of(name) is not None]
    readable = _readable_headers(segments, names, fs)
    watched = _Watched()
    damage: Corrupt | None = None
    try:
        recover(fs, segments, identity=identity, kind=KIND_LOG, visitor=watched, names=readable)
    except Corrupt as error:
        damage = error
    if damage is None and readable == names:
        _check_index(watched, truncate_at, segments)
        return None, []
    if watched.name is None:
        raise CannotRepair("no segment is readable: rebuild from peers", path=segments)
    _check_index(watched, truncate_at, segments)
    newest = _newest_slot(segments, names, fs)
    if newest is None:
        raise CannotRepair("term and vote are unreadable: rebuild from peers", path=segments)
    later = names[names.index(watched.name) + 1 :]
    _put_aside(directory, [watched.name, *later], fs)
    for name in reversed(later):
        fs.remove(segments / name)
        fs.sync_directory(segments)
    _cut_segment(segments / watched.name, watched.end, newest, fs)
    return f"{watched.name} at offset {watched.end}", [watched.name, *later]


def _check_index(watched: _Watched, truncate_at: int, path: Path) -> None:
    try:
        watched.finish()
    except ValueError as error:
        raise CannotRepair(f"{error}: rebuild from peers", path=path) from error
    first, behind = watched.base_index + 1, watched.next_index
    if not first <= truncate_at <= behind:
        raise CannotRepair(
            f"entries {first} to {behind - 1} are readable: "
            f"--truncate-at may be {first} to {behind}",
            path=path,
        )


def _readable_headers(segments: Path, names: list[str], fs: FileSystem) -> list[str]:
    """The names in front of the first segment whose header is damaged."""
    for position, name in enumerate(names):
        try:
            decode_header(read_page(fs, segments / name), segments / name)
        except Corrupt:
            return names[:position]
    return names


def _newest_slot(segments: Path, names: list[str], fs: FileSystem) -> Slot | None:
    """The hard state that counts: of the newest segment, by whichever header copy is readable."""
    if not names:
        return None
    path = segments / names[-1]
    page = read_page(fs, path)
    try:
        seed = decode_header(page, path, use_copy=True).seed
    except Corrupt:
        return None
    slots = [slot for slot in decode_slots(page, seed=seed) if slot is not None]
    return max(slots, key=lambda slot: slot.generation, default=None)


def _put_aside(directory: Path, names: list[str], fs: FileSystem) -> None:
    aside = directory / QUARANTINE_DIRECTORY
    fs.make_directory(aside)
    for name in names:
        file = fs.create(aside / name)
        try:
            file.pwrite(fs.read(directory / SEGMENTS_DIRECTORY / name), 0)
            file.sync()
        finally:
            file.close()
    fs.sync_directory(aside)
    fs.sync_directory(directory)


def _cut_segment(path: Path, end: int, newest: Slot, fs: FileSystem) -> None:
    """Leave the records up to `end`, say in both slots that no more were durable, keep the vote."""
    header: SegmentHeader = decode_header(read_page(fs, path), path)
    file = fs.open(path, writable=True)
    try:
        file.pwrite(bytes(header.size - end), end)
        for step, offset in enumerate(SLOT_OFFSETS, start=1):
            slot = Slot(generation=newest.generation + step, synced_upto=end, hard=newest.hard)
            file.pwrite(encode_slot(slot, seed=header.seed, offset=offset), offset)
        file.sync()
    finally:
        file.close()
