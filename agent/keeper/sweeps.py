"""Is the tree gone? Looked at once per turn for all attempts whose main process has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

from agent.keeper.attempt import Attempt, Phase
from agent.keeper.context import Context
from agent.keeper.endings import Endings
from agent.keeper.finish import note_status
from agent.keeper.processes import ProcessInfo, read_marker, read_process, send_signal

#: How often attempts are looked at whose processes are not our children, in ms.
ADOPTED_POLL_MS: Final = 200
#: How often orphans that could belong to several attempts are looked at again, in ms.
UNCLEAR_POLL_MS: Final = 1_000
_OVER: Final = (Phase.LINGERING, Phase.STUCK)


class Sweeper:
    """Loop thread only."""

    def __init__(
        self, context: Context, endings: Endings, on_gone: Callable[[Attempt], None]
    ) -> None:
        self._context = context
        self._endings = endings
        self._on_gone = on_gone
        self._waiting: dict[str, Attempt] = {}
        self._is_wanted = False
        self._has_poll = False
        self._swept_at_ms = 0
        own = read_process(os.getpid())
        self._own_ticks = 0 if own is None else own.start_ticks

    def look_at(self, attempt: Attempt) -> None:
        """Watch for the end of this attempt's tree; its main process is gone."""
        self._waiting[attempt.token] = attempt
        self.want()

    def want(self) -> None:
        """Sweep in the next turn. Cheap to call."""
        if self._waiting and not self._is_wanted:
            self._is_wanted = True
            self._context.loop.call_soon(self._sweep)

    def _sweep(self) -> None:
        self._is_wanted = False
        self._swept_at_ms = self._context.loop.now_ms() - 1
        owned, has_unclear = self._assign_orphans()
        for attempt in list(self._waiting.values()):
            if attempt.phase not in _OVER:
                del self._waiting[attempt.token]
            elif attempt.token in owned or self._has_more(attempt):
                self._end_strays(attempt)
            else:
                del self._waiting[attempt.token]
                self._on_gone(attempt)
                if attempt.phase is Phase.STUCK:
                    self._waiting[attempt.token] = attempt  # its finish is not durable yet
        self._poll_again(has_unclear=has_unclear)

    def _has_more(self, attempt: Attempt) -> bool:
        """Processes that are no orphans of ours: helpers, members of the group, adopted ones."""
        for pid in attempt.helper_pids:
            # Not reaped yet, so the pid is still this helper's.
            os.killpg(pid, signal.SIGKILL)
        if attempt.helper_pids:
            return True
        if attempt.phase is Phase.STUCK and not attempt.is_adopted and attempt.status is None:
            return True
        if attempt.is_adopted:
            return bool(self._endings.members(attempt, newer_than_ms=self._swept_at_ms))
        return attempt.group is not None and any(attempt.group.pids())

    def _end_strays(self, attempt: Attempt) -> None:
        note_status(self._context, attempt)
        if attempt.ending is None:
            self._endings.begin(attempt, cause="", detail="", grace_ms=attempt.work.grace_ms)
        else:
            self._endings.ask_strays(attempt)

    def _assign_orphans(self) -> tuple[set[str], bool]:
        """Note whose the orphans are: (tokens that have some, whether some are unclear)."""
        owned: set[str] = set()
        has_unclear = False
        for orphan in self._context.trees.orphans(self._context.reaper.known):
            token = self._owner(orphan)
            if token is None:
                has_unclear = True
            elif token in self._context.attempts:
                self._context.attempts[token].strays[orphan.pid] = orphan.start_ticks
                owned.add(token)
        return owned, has_unclear

    def _owner(self, orphan: ProcessInfo) -> str | None:
        """Token of the attempt that an orphan belongs to; "" when it needs nobody's attention."""
        context = self._context
        active = [a for a in context.attempts.values() if a.identity is not None]
        for attempt in active:
            if attempt.strays.get(orphan.pid) == orphan.start_ticks:
                return attempt.token
        marker = read_marker(orphan.pid)
        if marker is not None and marker[0] in context.attempts:
            return marker[0]
        for attempt in active:
            identity = attempt.identity
            if identity is not None and identity.pid == orphan.session:
                return attempt.token
        if marker is not None and marker[0] in context.closed:
            send_signal(orphan.pid, orphan.start_ticks, signal.SIGKILL)
            return ""
        return self._last_candidate(orphan, active)

    def _last_candidate(self, orphan: ProcessInfo, active: list[Attempt]) -> str | None:
        """For a daemon that cleared its environment: the only attempt it can have come from."""
        if orphan.start_ticks < self._own_ticks:
            return ""  # older than this keeper: a child that whoever started us left
        candidates = [
            attempt.token
            for attempt in active
            if attempt.identity is not None and attempt.identity.start_ticks <= orphan.start_ticks
        ]
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            send_signal(orphan.pid, orphan.start_ticks, signal.SIGKILL)
            return ""
        return None

    def _poll_again(self, *, has_unclear: bool) -> None:
        """Ends that no SIGCHLD tells of are looked for by the clock."""
        if self._has_poll:
            return
        if any(a.is_adopted or a.phase is Phase.STUCK for a in self._waiting.values()):
            delay_ms = ADOPTED_POLL_MS
        elif has_unclear:
            delay_ms = UNCLEAR_POLL_MS
        else:
            return
        self._has_poll = True
        self._context.loop.call_later(delay_ms, self._poll)

    def _poll(self) -> None:
        self._has_poll = False
        self._context.loop.call_soon(self._sweep)
