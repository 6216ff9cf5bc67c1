"""Where things lie in an agent's data directory."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Longest path of a unix socket, in bytes: sun_path has 108 with the final zero.
SOCKET_PATH_BYTES_MAX: Final = 107


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
