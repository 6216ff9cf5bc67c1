"""What the keeper answers about its attempts, and how long it keeps what is over."""

from __future__ import annotations

from typing import Any, Final

from agent.keeper.attempt import Closed
from agent.keeper.clock import wall_ms
from agent.keeper.context import Context
from agent.keeper.finish import finish_of
from agent.keeper.ledger import META

#: Committed finishes kept at most: beyond it the oldest go before their retention ends, or a storm
#: of short jobs would grow the keeper without bound.
FORGOTTEN_MAX: Final = 10_000
#: Voided tokens are kept as long as a repeated order could come; at most this many.
VOIDED_MAX: Final = 20_000
VOIDED_MS: Final = 86_400_000
#: Between two looks for what may go, in ms.
COLLECT_MS: Final = 2_000


class Records:
    """Loop thread only."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def start(self) -> None:
        """Collect from now on."""
        self._context.loop.call_later(COLLECT_MS, self._collect)

    def state_of(self, token: str) -> str:
        """intent | running | exited | damaged | unknown."""
        context = self._context
        if token in context.closed:
            return "exited"
        if token in context.damaged:
            return "damaged"
        attempt = context.attempts.get(token)
        if attempt is None:
            return "unknown"
        return "running" if attempt.is_begun else "intent"

    def entry_of(self, token: str) -> dict[str, Any] | None:
        """One item of `list`; None for an unknown token."""
        context = self._context
        closed = context.closed.get(token)
        if closed is not None:
            return _closed_entry(token, closed, finish_of(context, token))
        attempt = context.attempts.get(token)
        if attempt is None:
            return None
        return {
            "token": token,
            "worker": attempt.work.worker,
            "state": self.state_of(token),
            "start": attempt.start_facts(context.boot_id) if attempt.is_begun else None,
            "finish": None,
            "frozen": attempt.is_frozen,
            "session": attempt.session,
            "progress": attempt.progress,
            "is_ready": attempt.is_ready,
        }

    def listing(
        self, *, with_forgotten: bool = True, after: str = "", limit: int = 0
    ) -> tuple[list[dict[str, Any]], bool]:
        """Attempts of the ledger by token, those above `after`, and whether `limit` cut them off.

        A node that ran many short jobs keeps thousands whose finish is committed: all in one frame
        would not fit, and hardly anybody wants them.
        """
        closed = {
            token
            for token, one in self._context.closed.items()
            if with_forgotten or one.forgotten_at_ms is None
        }
        tokens = sorted(token for token in closed.union(self._context.attempts) if token > after)
        chosen = tokens[:limit] if limit > 0 else tokens
        entries = (self.entry_of(token) for token in chosen)
        return [entry for entry in entries if entry is not None], len(chosen) < len(tokens)

    def forget(self, token: str) -> None:
        """The finish is committed: only the retention keeps the record now. Idempotent."""
        context = self._context
        closed = context.closed.get(token)
        if closed is None or closed.forgotten_at_ms is not None:
            return
        closed.forgotten_at_ms = wall_ms()
        # The order has served: what is kept for the logs' sake should be small.
        context.ledger.drop(token, ("intent", "started", "order", "status", "frozen"))
        context.ledger.write(token, "forget", {"at_ms": closed.forgotten_at_ms})

    def delete_output(self, token: str) -> None:
        """Remove what the attempt left on this node, in the background. Its record stays."""
        self._context.remover.remove(token)

    def save_meta(self) -> None:
        """Write down what belongs to no attempt."""
        context = self._context
        record = {
            "cluster_id": context.cluster_id,
            "node": context.node,
            "session_floor": context.session_floor,
            "log_retention_ms": context.log_retention_ms,
        }
        context.ledger.write(META, "meta", record)

    def _collect(self) -> None:
        context, now_ms = self._context, wall_ms()
        forgotten = [(t, c) for t, c in context.closed.items() if c.forgotten_at_ms is not None]
        excess = len(forgotten) - FORGOTTEN_MAX
        for number, (token, closed) in enumerate(forgotten):
            assert closed.forgotten_at_ms is not None
            is_due = now_ms - closed.forgotten_at_ms >= context.log_retention_ms
            if (is_due or number < excess) and token not in context.attempts:
                del context.closed[token]
                context.ledger.drop(token)
                self.delete_output(token)
        old = [token for token, at_ms in context.voided.items() if now_ms - at_ms >= VOIDED_MS]
        spare = max(0, len(context.voided) - VOIDED_MAX)
        for token in dict.fromkeys([*old, *list(context.voided)[:spare]]):
            del context.voided[token]
            context.ledger.drop(token, ("void",))
        context.loop.call_later(COLLECT_MS, self._collect)


def _closed_entry(token: str, closed: Closed, finish: dict[str, Any]) -> dict[str, Any]:
    if not closed.is_told and finish["evidence"] == "observed":
        # Nobody was there to hear of it: what is told now comes from the journal.
        finish = finish | {"evidence": "replayed"}
    return {
        "token": token,
        "worker": closed.worker,
        "state": "exited",
        "start": finish["start"],
        "finish": finish,
        "frozen": False,
        "session": closed.session,
        "is_forgotten": closed.forgotten_at_ms is not None,
    }
