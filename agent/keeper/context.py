"""What the keeper's parts share: one node's attempts, and the means to act on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.keeper.attempt import Attempt, Closed
from agent.keeper.cgroups import Cgroups
from agent.keeper.leases import Leases
from agent.keeper.ledger import Ledger
from agent.keeper.loop import Loop
from agent.keeper.reaper import Reaper
from agent.keeper.remover import Remover
from agent.keeper.trees import Trees


@dataclass(slots=True, kw_only=True)
class Context:
    """Loop thread only."""

    directory: Path
    boot_id: str
    store_id: str
    loop: Loop
    ledger: Ledger
    leases: Leases
    reaper: Reaper
    trees: Trees
    cgroups: Cgroups
    remover: Remover
    #: The keeper's environment at its start, from which `env_mode` takes.
    inherited: dict[bytes, bytes]
    #: Limits of open files that attempts get.
    files_max: tuple[int, int]
    #: Sends an event to the attached agent; False when there is none.
    emit: Callable[[dict[str, Any]], bool] = lambda _event: False
    attempts: dict[str, Attempt] = field(default_factory=dict)
    closed: dict[str, Closed] = field(default_factory=dict)
    #: Attempts whose records are damaged, while they are searched and ended.
    damaged: set[str] = field(default_factory=set)
    #: Tokens that may never start, with the wall clock ms of their voiding.
    voided: dict[str, int] = field(default_factory=dict)
    cluster_id: str = ""
    node: str = ""
    #: Orders of lower sessions are void.
    session_floor: int = 0
    log_retention_ms: int = 86_400_000
    is_stopping: bool = False

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event, if an agent is there to hear it."""
        self.emit(event)

    @property
    def attempts_directory(self) -> Path:
        return self.directory / "attempts"

    @property
    def work_directory(self) -> Path:
        return self.directory / "work"
