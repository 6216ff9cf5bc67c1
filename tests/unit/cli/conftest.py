"""The command line against a scripted client: no cluster, no sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.main import run
from scheduler.client.context import Context
from scheduler.client.errors import ApiError, WaitTimeout
from scheduler.client.follow import LogChunk

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FINAL = ("Succeeded", "Failed", "Killed")


def not_found(what: str) -> ApiError:
    return ApiError(f"{what} does not exist", status=404, code="not_found")


def make_job(job_id: int, **fields: Any) -> dict[str, Any]:
    """A job as the API shows it; succeeded unless told."""
    return {
        "id": job_id,
        "name": "",
        "phase": "Succeeded",
        "cause": "exit_zero",
        "exit_code": 0,
        "by": None,
        "why": None,
        "message": "",
        "user": "ana",
        "queue": "default",
        "priority": 0,
        "version": 3,
        "submitted_at": "2026-01-02T03:03:55.000Z",
        "started_at": "2026-01-02T03:03:56.000Z",
        "ended_at": "2026-01-02T03:03:58.500Z",
        "spec": {"tasks": {"main": {"command": ["echo", "a b"]}}},
        "pending_reasons": [],
        "conditions": [],
        "unknown": 0,
        "ending": None,
    } | fields


class FakeClient:
    """Answers from dictionaries and records what was asked of it."""

    #: What the next instances know; set by the fixture.
    shared: FakeClient

    def __init__(self, context: Context | None = None) -> None:
        self.context = context
        self.jobs_by_id: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Any] = {}
        self.logs_by_stream: dict[str, list[bytes]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.next_id = 1

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def add(self, job_id: int, **fields: Any) -> dict[str, Any]:
        job = self.jobs_by_id[str(job_id)] = make_job(job_id, **fields)
        return job

    def submit(self, document: Any, *, key: str | None = None) -> dict[str, Any]:
        self.calls.append(("submit", document, key))
        if error := self.answers.get("submit"):
            raise error
        job = self.jobs_by_id.get(str(self.next_id)) or self.add(self.next_id, phase="Pending")
        self.next_id += 1
        return {"job": job}

    def submit_many(self, documents: Sequence[Any], *, key: str | None = None) -> dict[str, Any]:
        return {"jobs": [self.submit(one, key=key)["job"] for one in documents]}

    def jobs(self, **filters: Any) -> dict[str, Any]:
        self.calls.append(("jobs", filters))
        found = sorted(self.jobs_by_id.values(), key=lambda job: -job["id"])
        if name := filters.get("name"):
            found = [job for job in found if job["name"] == name]
        after = int(filters.get("after") or 10**9)
        found = [job for job in found if job["id"] < after]
        limit = filters.get("limit") or 100
        following = str(found[limit - 1]["id"]) if len(found) > limit else None
        return {"jobs": found[:limit], "next": following}

    def job(self, job_id: str | int, **_: Any) -> dict[str, Any]:
        if str(job_id) not in self.jobs_by_id:
            raise not_found(f"job {job_id}")
        return self.jobs_by_id[str(job_id)]

    def _answer(self, name: str, *args: Any) -> Any:
        self.calls.append((name, *args))
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def workers(self, target: str) -> Any:
        return self._answer("workers", target)

    def attempts(self, target: str) -> Any:
        return self._answer("attempts", target)

    def history(self, target: str) -> Any:
        return self._answer("history", target)

    def why(self, target: str) -> Any:
        return self._answer("why", target)

    def nodes(self) -> Any:
        return self._answer("nodes")

    def node(self, name: str) -> Any:
        return self._answer("node", name)

    def cordon(self, name: str, *, why: str = "") -> Any:
        return self._answer("cordon", name, why)

    def uncordon(self, name: str, *, why: str = "") -> Any:
        return self._answer("uncordon", name, why)

    def cluster_status(self) -> Any:
        return self._answer("cluster_status")

    def config(self) -> Any:
        return self._answer("config")

    def configure(self, changes: Any) -> Any:
        return self._answer("configure", changes)

    def kill(self, target: str, *, why: str = "") -> dict[str, Any]:
        self.calls.append(("kill", target, why))
        job = self.job(target.partition("/")[0])
        if job["phase"] in FINAL:
            raise ApiError(
                f"job {target} is {job['phase']} already", status=409, code="final", hint="clone it"
            )
        return {"job": job["id"], "is_done": False, "message": ""}

    def wait(
        self,
        ids: Sequence[str],
        *,
        timeout_s: float | None = None,
        is_any: bool = False,
        on_change: Callable[[Any], None] | None = None,
    ) -> list[dict[str, Any]]:
        self.calls.append(("wait", tuple(ids), timeout_s, is_any))
        if error := self.answers.get("wait"):
            raise error
        found = [self.job(one) for one in ids]
        if timeout_s is not None and any(job["phase"] not in FINAL for job in found):
            raise WaitTimeout("not all jobs are final yet", found)
        return found

    def follow(self, **options: Any) -> Iterator[dict[str, Any]]:
        self.calls.append(("follow", options))
        yield from self.answers.get("follow", ())

    def logs(self, target: str, *, stream: str = "stdout", **options: Any) -> Iterator[LogChunk]:
        self.calls.append(("logs", target, stream, options))
        offset = 0
        for data in self.logs_by_stream.get(stream, ()):
            yield LogChunk(f"{target}/main/0#1", stream, offset, data)
            offset += len(data)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeClient:
    """The client that every command gets, in a directory of its own, at NOW."""
    shared = FakeClient()

    def make(context: Context) -> FakeClient:
        shared.context = context
        return shared

    monkeypatch.setattr("scheduler.client.client.Client", make)
    monkeypatch.setattr("scheduler.cli.render.current_time", lambda: NOW)
    monkeypatch.setenv("PERTINAX_CLUSTER", "https://c1:1,https://c2:2")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    return shared


@dataclass(frozen=True)
class Done:
    """What one call of the command line came to."""

    code: int
    out: str
    err: str


@pytest.fixture
def pertinax(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Calls the command line in this process."""

    def call(*args: str) -> Done:
        capfd.readouterr()
        code = run(list(args))
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return call
