"""Where things lie in an agent's data directory."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Longest path of a unix socket, in bytes: sun_path has 108 with the final zero.
SOCKET_PATH_BYTES_MAX: Final = 107
_MAY_PASS: Final = 0o011


@dataclass(frozen=True, slots=True)
class Places:
    """Paths below one data directory."""

    root: Path

    @property
    def keeper(self) -> Path:
        """The keeper's directory: its ledger, lease file and the attempts' output."""
        return self.root / "keeper"

    @property
    def outbox(self) -> Path:
        return self.root / "outbox"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    def socket(self) -> Path:
        """The keeper's socket; for a directory with a very long name in one of ours in /tmp.

        The name is derived from the directory's, so a later agent finds the same keeper. Raises
        PermissionError when the place in /tmp is not ours alone.
        """
        path = self.root.absolute() / "keeper.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        shelter = Path(tempfile.gettempdir()) / f"pertinax-{os.getuid()}"
        shelter.mkdir(mode=0o700, exist_ok=True)
        facts = shelter.lstat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise PermissionError(f"{shelter} is not ours alone")
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return shelter / f"{digest}.sock"


def make_passable(path: Path, *, is_root: bool) -> None:
    """Make directory `path` if it is missing: ours, and nobody else may list or write it.

    As root, jobs run as other users: those must get through it to their own work directories,
    whatever the umask was when it was made. What is secret below has its own mode. Raises OSError.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = stat.S_IMODE(path.stat().st_mode)
    if is_root and mode & _MAY_PASS != _MAY_PASS:
        path.chmod(mode | _MAY_PASS)
