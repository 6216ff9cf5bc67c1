"""Durable bytes: a checksummed write-ahead log, a keyed store, one-value cells and snapshots.

Knows no Raft and no jobs. Standard library only.
"""

from wal.batch import Batch
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
from wal.log import Entry, LogStats, WriteAheadLog
from wal.settings import WalSettings

__all__ = [
    "Batch",
    "Closed",
    "Corrupt",
    "Entry",
    "Identity",
    "Locked",
    "LogStats",
    "OutOfSpace",
    "RecordTooLarge",
    "SyncFailed",
    "UnsupportedVersion",
    "WalError",
    "WalSettings",
    "WriteAheadLog",
    "WrongIdentity",
    "create_directory",
    "read_identity",
]
