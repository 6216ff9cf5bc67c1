"""Permission to run: one lease per attempt, on CLOCK_BOOTTIME, and the file a new keeper obeys.

A lease is good until its end minus the margin: then the keeper acts, so that nothing runs on at the
end itself. The file is replaced by rename and not synced: it has to survive the keeper, not the
host, for after a reboot none of the attempts lives (the boot id in it says so).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: Margin until the agent tells one, in ms; the specification's smallest.
MARGIN_MS_DEFAULT: Final = 1_000
_MAGIC: Final = "pertinax-leases"
_VERSION: Final = "1"


class Leases:
    """The leases of this node. Loop thread only."""

    def __init__(self, path: Path, *, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._until: dict[str, int] = {}
        self.margin_ms = MARGIN_MS_DEFAULT

    def load(self) -> None:
        """Take over what an earlier keeper of this boot wrote; nothing when it is unreadable.

        No lease is the safe side: what has none is treated as expired.
        """
        try:
            lines = self._path.read_text().splitlines()
            magic, version, boot_id, margin = lines[0].split()
            if (magic, version, boot_id) != (_MAGIC, _VERSION, self._boot_id):
                return
            pairs = [line.split() for line in lines[1:]]
            self._until = {token: int(until) for token, until in pairs}
            self.margin_ms = int(margin)
        except (OSError, ValueError, IndexError):
            self._until = {}

    def save(self) -> None:
        """Write the file. A full disk leaves the old one, which is the safe side. Never raises."""
        head = f"{_MAGIC} {_VERSION} {self._boot_id} {self.margin_ms}"
        body = [f"{token} {until}" for token, until in self._until.items()]
        aside = self._path.with_suffix(".new")
        try:
            aside.write_text("\n".join([head, *body]) + "\n")
            os.replace(aside, self._path)  # noqa: PTH105
        except OSError:
            aside.unlink(missing_ok=True)

    def renew(self, token: str, until_ms: int) -> None:
        """Extend a lease; never shortens one."""
        self._until[token] = max(until_ms, self._until.get(token, 0))

    def drop(self, token: str) -> None:
        self._until.pop(token, None)

    def acts_at_ms(self, token: str) -> int:
        """When the keeper has to act; 0 without a lease."""
        until = self._until.get(token)
        return 0 if until is None else until - self.margin_ms

    def is_valid(self, token: str, *, now_ms: int) -> bool:
        return now_ms < self.acts_at_ms(token)
