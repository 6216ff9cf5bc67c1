"""Durable bytes: a checksummed write-ahead log, a keyed store, one-value cells and snapshots.

Knows no Raft and no jobs. Standard library only.
"""

from wal.batch import Batch
from wal.cell import Cell
from wal.errors import (
    Closed,
    Corrupt,
    Locked,
    OutOfSpace,
    RecordTooLarge,
    SyncFailed,
    UnsupportedVersion,
    WalError,
    WrongIdentity,
)
from wal.identity import Identity, create_directory, read_identity
from wal.keyed import KeyedStore
from wal.keyed_records import Damaged
from wal.log import Entry, LogStats, WriteAheadLog
from wal.settings import WalSettings
from wal.snapshots import SnapshotInfo, SnapshotReader, SnapshotStore, SnapshotWriter

__all__ = [
    "Batch",
    "Cell",
    "Closed",
    "Corrupt",
    "Damaged",
    "Entry",
    "Identity",
    "KeyedStore",
    "Locked",
    "LogStats",
    "OutOfSpace",
    "RecordTooLarge",
    "SnapshotInfo",
    "SnapshotReader",
    "SnapshotStore",
    "SnapshotWriter",
    "SyncFailed",
    "UnsupportedVersion",
    "WalError",
    "WalSettings",
    "WriteAheadLog",
    "WrongIdentity",
    "create_directory",
    "read_identity",
]
