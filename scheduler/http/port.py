"""What the API asks of the controller. `scheduler.controller.service.Service` answers it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from scheduler.protocol.spec import JobSpec

Consistency = Literal["linearizable", "stale"]
View = dict[str, Any]


class AsOf(Protocol):
    """The point in the log that an answer shows."""

    @property
    def index(self) -> int: ...

    @property
    def time_ms(self) -> int:
        """Wall clock of that entry, ms since the epoch."""
        ...

    @property
    def leader(self) -> str | None: ...


class Submitted(Protocol):
    """Answer to a submit."""

    @property
    def job_ids(self) -> tuple[int, ...]: ...

    @property
    def is_known(self) -> bool:
        """The key had been used before, for the same jobs."""
        ...


class KillAnswer(Protocol):
    """Answer to a kill."""

    @property
    def job(self) -> int: ...

    @property
    def is_done(self) -> bool:
        """Nothing is left to end."""
        ...

    @property
    def message(self) -> str: ...


class ServicePort(Protocol):
    """One controller. Reads show its own state: await `read` first. Event loop only."""

    async def submit(
        self, specs: Sequence[JobSpec], *, user: str, key: str, body_digest: str
    ) -> tuple[Submitted, int]: ...

    async def kill(
        self, target: str, *, user: str, why: str, if_version: int | None
    ) -> tuple[KillAnswer, int]: ...

    async def configure(self, changes: dict[str, int | str], *, user: str) -> int: ...

    async def change_node(self, name: str, *, unschedulable: bool, why: str, user: str) -> int: ...

    async def read(self, *, consistency: Consistency, min_index: int | None) -> AsOf: ...

    def job(self, job_id: int) -> View | None: ...

    def jobs(
        self,
        *,
        states: Sequence[str],
        user: str | None,
        queue: str | None,
        name: str | None,
        is_overdue: bool,
        limit: int,
        after: str | None,
    ) -> tuple[list[View], str | None]: ...

    def workers(self, target: str) -> list[View] | None: ...

    def attempts(self, target: str) -> list[View] | None: ...

    def history(self, target: str) -> list[View] | None: ...

    def nodes(self) -> list[View]: ...

    def node(self, name: str) -> View | None: ...

    def cluster_status(self) -> View: ...

    def settings(self) -> Mapping[str, int | str]: ...

    def watch(self, from_index: int) -> AsyncIterator[View]: ...

    def open_log(
        self,
        attempt_token: str,
        stream: str,
        *,
        offset: int,
        tail_bytes: int | None,
        follow: bool,
    ) -> AsyncIterator[tuple[int, bytes]]: ...

    @property
    def is_leader(self) -> bool: ...

    def leader_http(self) -> str | None: ...

    def metrics_text(self) -> str: ...

    def is_ready(self) -> bool: ...
