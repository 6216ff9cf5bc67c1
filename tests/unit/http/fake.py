"""A service that answers from plain data and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.controller.errors import Lagged, NotLeaderHere, ServiceError
from scheduler.protocol.spec import JobSpec

TIME_MS = 1_767_225_600_123


@dataclass(frozen=True)
class At:
    index: int
    time_ms: int
    leader: str | None


@dataclass(frozen=True)
class Submitted:
    job_ids: tuple[int, ...]
    is_known: bool = False


@dataclass(frozen=True)
class Killed:
    job: int
    is_done: bool = False
    message: str = "ending"


def job_view(job_id: int, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": job_id,
        "name": f"job{job_id}",
        "phase": "Running",
        "cause": None,
        "by": None,
        "why": None,
        "spec": {},
        "user": "ana",
        "queue": "default",
        "version": 7,
        "message": "1 running",
        "pending_reasons": [],
        "ending": None,
    }
    return found | changes


def attempt_view(attempt_id: str, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": attempt_id,
        "uid": "0123456789ab.0000000000000001.000000",
        "number": int(attempt_id.rpartition("#")[2]),
        "phase": "Running",
        "node": "a1",
        "started_at": "2026-01-01T00:00:00.000Z",
        "stdout": None,
        "stderr": None,
    }
    return found | changes


@dataclass
class FakeService:
    is_leader: bool = True
    leader_url: str | None = "https://127.0.0.1:1"
    leader_name: str | None = "c1"
    index: int = 100
    known_jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    known_attempts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    known_nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    kept_after: int = 0
    log: list[tuple[int, bytes] | Exception] = field(default_factory=list)
    #: Raised by the next calls of that name.
    failures: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    keys: dict[str, tuple[str, Submitted]] = field(default_factory=dict)
    is_stopping: bool = False
    is_log_endless: bool = False

    def _note(self, name: str, what: Any = None) -> None:
        self.asked.append((name, what))
        failures = self.failures.get(name, [])
        if isinstance(failures, Exception):
            failures = [self.failures.pop(name)]
        if failures:
            raise failures.pop(0)

    async def submit(
        self, specs: Sequence[JobSpec], *, user: str, key: str, body_digest: str
    ) -> tuple[Submitted, int]:
        self._note("submit", (list(specs), user, key, body_digest))
        if not self.is_leader:
            raise NotLeaderHere("c2", self.leader_url)
        if key in self.keys:
            digest, before = self.keys[key]
            if digest != body_digest:
                raise ServiceError("key_reused", "another body had this key", kind="conflict")
            return Submitted(before.job_ids, is_known=True), self.index
        self.index += 1
        first = max(self.known_jobs, default=0) + 1
        ids = tuple(range(first, first + len(specs)))
        for job_id, spec in zip(ids, specs, strict=True):
            self.known_jobs[job_id] = job_view(job_id, name=spec.name, user=user)
        if key:
            self.keys[key] = body_digest, Submitted(ids)
        return Submitted(ids), self.index

    async def kill(
        self, target: str, *, user: str, why: str, if_version: int | None
    ) -> tuple[Killed, int]:
        self._note("kill", (target, user, why, if_version))
        self.index += 1
        return Killed(int(target.partition("/")[0].partition("#")[0])), self.index

    async def configure(self, changes: dict[str, int | str], *, user: str) -> int:
        self._note("configure", (changes, user))
        self.index += 1
        return self.index

    async def change_node(self, name: str, *, unschedulable: bool, why: str, user: str) -> int:
        self._note("change_node", (name, unschedulable, why, user))
        self.known_nodes[name]["unschedulable"] = unschedulable
        self.index += 1
        return self.index

    async def read(self, *, consistency: str, min_index: int | None) -> At:
        self._note(f"read_{consistency}", min_index)
        return At(self.index, TIME_MS, self.leader_name)

    def job(self, job_id: int) -> dict[str, Any] | None:
        return self.known_jobs.get(job_id)

    def jobs(self, **filters: Any) -> tuple[list[dict[str, Any]], str | None]:
        self._note("jobs", filters)
        views = [self.known_jobs[one] for one in sorted(self.known_jobs, reverse=True)]
        return views[: filters["limit"]], "cursor" if len(views) > filters["limit"] else None

    def workers(self, target: str) -> list[dict[str, Any]] | None:
        return [{"id": f"{target.partition('/')[0]}/main/0", "phase": "Running"}]

    def attempts(self, target: str) -> list[dict[str, Any]] | None:
        found = self.known_attempts.get(int(target.partition("/")[0].partition("#")[0]), [])
        return [one for one in found if "#" not in target or one["id"].endswith(target[-2:])]

    def history(self, target: str) -> list[dict[str, Any]] | None:
        return [one for one in self.events if one["object"].startswith(target)]

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.known_nodes.values())

    def node(self, name: str) -> dict[str, Any] | None:
        return self.known_nodes.get(name)

    def cluster_status(self) -> dict[str, Any]:
        return {"leader": "c1", "quorum": self.is_leader}

    def settings(self) -> dict[str, int | str]:
        return {"rejoin_grace": 60_000}

    async def watch(self, after_index: int) -> AsyncIterator[dict[str, Any]]:
        if after_index < self.kept_after:
            raise Lagged(self.kept_after)
        position = 0
        while not self.is_stopping:
            while position < len(self.events):
                event = self.events[position]
                position += 1
                if event["index"] > after_index:
                    yield event
            self.news.clear()
            await self.news.wait()

    async def open_log(
        self,
        attempt_token: str,
        stream: str,
        *,
        offset: int,
        tail_bytes: int | None,
        follow: bool,
    ) -> AsyncIterator[tuple[int, bytes]]:
        self._note("open_log", (attempt_token, stream, offset, tail_bytes, follow))
        try:
            for piece in tuple(self.log):
                if isinstance(piece, Exception):
                    self.log.remove(piece)  # it happens once
                    raise piece
                at, data = piece
                if at + len(data) > offset:
                    skipped = max(0, offset - at)
                    yield at + skipped, data[skipped:]
            while self.is_log_endless:
                await asyncio.sleep(3600)
        finally:
            self.asked.append(("log_closed", None))

    def leader_http(self) -> str | None:
        return self.leader_url

    def metrics_text(self) -> str:
        return "pertinax_up 1\n"

    def is_ready(self) -> bool:
        return self.index > 0
