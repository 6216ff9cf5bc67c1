"""What can go wrong with durable bytes, split by who must act."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class WalError(Exception):
    """Base of all errors of this package. `code` is stable and may be shown to people."""

    code: ClassVar[str] = "wal_error"

    def __init__(
        self, message: str, *, path: Path | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message)
        #: The file or directory concerned.
        self.path = path
        #: Byte offset in `path`, where one is known.
        self.offset = offset


class Corrupt(WalError):
    """Bytes that were durable are not what was written. Never repaired without being told to."""

    code = "wal_corrupt"

    def __init__(
        self, what: str, *, path: Path, offset: int | None = None, choices: str | None = None
    ) -> None:
        where = str(path) if offset is None else f"{path} at offset {offset}"
        choices = choices or LOG_CHOICES
        super().__init__(f"{where}: {what}. {choices}", path=path, offset=offset)
        #: The finding alone, without place and choices.
        self.what = what
        self.choices = choices


LOG_CHOICES = (
    "Choices: look closer with `python -m wal check DIR`; rebuild this member from its peers "
    "(`pertinax cluster replace NAME`), which loses nothing; or give up the entries from INDEX on, "
    "which may have been acknowledged, with `python -m wal repair DIR --truncate-at INDEX`"
)


class WrongIdentity(WalError):
    """The directory belongs to another cluster or member, or to none yet."""

    code = "wal_wrong_identity"


class Locked(WalError):
    """Another process has the directory open."""

    code = "wal_locked"


class UnsupportedVersion(WalError):
    """Written by a newer release: upgrade, nothing is damaged."""

    code = "wal_unsupported_version"


class RecordTooLarge(WalError):
    """The caller's payload exceeds `record_bytes_max`; nothing was appended."""

    code = "wal_record_too_large"


class OutOfSpace(WalError):
    """The disk is full. The log is unchanged and may be used again once there is room."""

    code = "wal_out_of_space"


class Closed(WalError):
    """Used after `close`."""

    code = "wal_closed"


class SyncFailed(WalError):
    """A write or sync failed: what is on disk is unknown. Fatal: stop, restart, recover."""

    code = "wal_sync_failed"
