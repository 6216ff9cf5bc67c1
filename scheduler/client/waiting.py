"""Waiting for jobs: which to look at next, and when it is over. No sockets, no sleeping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scheduler.client.errors import Document

#: Pause between looks, seconds: short at first, so that `run -- true` is quick.
PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5
#: More open jobs than this are looked at through the list.
MANY_JOBS: Final = 8
#: Jobs looked at between two pauses, so that a wait for many does not crowd out others.
LOOKS_MAX: Final = 200


class Waiting:
    """The state of one wait."""

    def __init__(
        self,
        job_ids: Sequence[str | int],
        *,
        is_any: bool,
        now: Callable[[], float],
        timeout_s: float | None,
    ) -> None:
        self._now = now
        self._ends_at = None if timeout_s is None else now() + timeout_s
        self._ids = [str(job_id) for job_id in job_ids]
        self._is_any = is_any
        self._seen: dict[str, Document] = {}
        self._open = list(dict.fromkeys(self._ids))
        self._pause_s = PAUSE_FIRST_S

    @property
    def is_over(self) -> bool:
        is_one_final = len(self._open) < len(dict.fromkeys(self._ids))
        return not self._open or (self._is_any and is_one_final)

    @property
    def open_ids(self) -> list[str]:
        """The jobs that are not final as far as is known."""
        return list(self._open)

    @property
    def is_many(self) -> bool:
        """Whether to ask for versions first, and then only for the jobs that moved."""
        return len(self._open) > MANY_JOBS and all(map(str.isdigit, self._open))

    def due(self, versions: Mapping[str, int]) -> list[str]:
        """The jobs to look at now: the open ones, in turns when they are many.

        Of those that `versions` knows, only what moved since the last look.
        """
        batch = self._open[:LOOKS_MAX]
        if versions:
            moved = [job_id for job_id in self._open if self._has_moved(job_id, versions)]
            return moved[:LOOKS_MAX]
        self._open = self._open[LOOKS_MAX:] + batch
        return batch

    def _has_moved(self, job_id: str, versions: Mapping[str, int]) -> bool:
        seen = self._seen.get(job_id)
        return seen is None or job_id not in versions or versions[job_id] != seen.get("version")

    def note(self, job_id: str, job: Document) -> bool:
        """Take in a job as read; True when its version moved since the last look."""
        before = self._seen.get(job_id)
        self._seen[job_id] = job
        if job.get("phase") in ("Succeeded", "Failed", "Killed"):
            self._open.remove(job_id)
        is_changed = before is None or before.get("version") != job.get("version")
        if is_changed:
            self._pause_s = PAUSE_FIRST_S
        return is_changed

    def pause_s(self) -> float | None:
        """How long to wait before the next look; None when the time is up."""
        pause_s = self._pause_s
        self._pause_s = min(PAUSE_MAX_S, pause_s * 1.3)
        if self._ends_at is None:
            return pause_s
        left_s = self._ends_at - self._now()
        return None if left_s <= 0 else min(pause_s, left_s)

    def jobs(self) -> list[Document]:
        """The jobs as last seen, in the order asked for."""
        return [self._seen[job_id] for job_id in self._ids if job_id in self._seen]
