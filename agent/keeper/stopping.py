"""Leaving: end every tree when asked to, wait until all finishes are durable, answer, go."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from agent.keeper.attempt import Phase
from agent.keeper.context import Context
from agent.keeper.finish import drop_unstarted, finish_of
from agent.keeper.runner import Runner

#: Between two looks whether all is over, in ms.
POLL_MS: Final = 50


class Stopping:
    """Loop thread only."""

    def __init__(self, context: Context, runner: Runner) -> None:
        self._context = context
        self._runner = runner
        self._answers: list[Callable[[dict[str, Any]], None]] = []
        self.pid = os.getpid()

    def begin(self, *, end_jobs: bool, why: str, answer: Callable[[dict[str, Any]], None]) -> None:
        """Stop; with `end_jobs` once every attempt is over. The answers come at the end."""
        context = self._context
        self._answers.append(answer)
        is_first = not context.is_stopping
        context.is_stopping = True
        for attempt in list(context.attempts.values()):
            if attempt.phase is Phase.QUEUED:
                drop_unstarted(context, attempt, why="the keeper is stopping")
            elif end_jobs:
                order = {"by": "system:leave", "why": why, "cause": "node_drain"}
                attempt.order = attempt.order or order
                context.ledger.write(attempt.token, "order", order)
                self._runner.endings.begin(
                    attempt, cause="node_drain", detail=why, grace_ms=attempt.work.grace_ms
                )
        if is_first:
            self._look(end_jobs=end_jobs)

    def _look(self, *, end_jobs: bool) -> None:
        context = self._context
        waiting = [a for a in context.attempts.values() if a.phase is not Phase.STUCK]
        if end_jobs and waiting:
            context.loop.call_later(POLL_MS, lambda: self._look(end_jobs=end_jobs))
            return
        context.ledger.after(self._leave)

    def _leave(self) -> None:
        finishes = {
            token: finish_of(self._context, token)
            for token, closed in self._context.closed.items()
            if closed.forgotten_at_ms is None  # the others are the cluster's already
        }
        for answer in self._answers:
            answer({"finishes": finishes})
        self._context.loop.stop()
