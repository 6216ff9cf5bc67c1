"""The awaiting client: the surface of `Client`, over httpx2 (`pip install 'pertinax[async]'`).

The same calls, the same order of controllers and the same scripts; only waiting differs. One event
loop; calls may run at the same time.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import httpx2

from scheduler.client import calls
from scheduler.client.calls import Call
from scheduler.client.client import PAGES_MAX, decode, kill_outcome, new_key, versions_of
from scheduler.client.connection import STREAM_SILENCE_MAX_S
from scheduler.client.context import Context
from scheduler.client.errors import ApiError, ClientError, Document, WaitTimeout
from scheduler.client.failover import Answer, Broken, Controllers, Steps, Wait, steps
from scheduler.client.follow import (
    Give,
    LogChunk,
    Open,
    Output,
    Pause,
    Read,
    ReadJob,
    Script,
    event_script,
)
from scheduler.client.waiting import Waiting

#: Connections kept open by one client, over all controllers.
CONNECTIONS_MAX: Final = 64


class AsyncClient:
    """One cluster. Close it, or use it in an `async with` statement. Errors as `Client`."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._controllers = Controllers(context.urls)
        headers = {"User-Agent": "pertinax", "Accept": "application/json"}
        if context.token:
            headers["Authorization"] = f"Bearer {context.token}"
        if context.user:
            headers["Pertinax-User"] = context.user
        self._http = httpx2.AsyncClient(
            headers=headers,
            verify=ssl.create_default_context(cafile=context.ca_file),
            limits=httpx2.Limits(max_connections=CONNECTIONS_MAX),
            trust_env=False,
        )
        #: Log index of the newest answer.
        self.last_index = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # ---- jobs --------------------------------------------------------------------------------

    async def submit(self, document: Mapping[str, Any], *, key: str | None = None) -> Document:
        """As `Client.submit`."""
        return await self.send(calls.submit(document, key=new_key() if key is None else key))

    async def submit_many(
        self,
        documents: Sequence[Mapping[str, Any]],
        *,
        key: str | None = None,
        fields: Sequence[str] = (),
    ) -> Document:
        """As `Client.submit_many`."""
        return await self.send(
            calls.submit_many(documents, key=new_key() if key is None else key, fields=fields)
        )

    async def jobs(self, **filters: Any) -> Document:
        """As `Client.jobs`."""
        return await self.send(calls.jobs(**filters))

    async def job(self, job_id: str | int, *, fields: Sequence[str] = ()) -> Document:
        """As `Client.job`."""
        return await self.send(calls.job(job_id, fields=fields))

    async def workers(self, target: str | int) -> Document:
        """As `Client.workers`."""
        return await self.send(calls.of_job(target, "workers"))

    async def attempts(self, target: str | int) -> Document:
        """As `Client.attempts`."""
        return await self.send(calls.of_job(target, "attempts"))

    async def history(self, target: str | int) -> Document:
        """As `Client.history`."""
        return await self.send(calls.of_job(target, "events"))

    async def why(self, target: str | int) -> Document:
        """As `Client.why`."""
        return await self.send(calls.of_job(target, "why"))

    async def kill(
        self, target: str | int, *, why: str = "", if_version: int | None = None
    ) -> Document:
        """As `Client.kill`."""
        try:
            return await self.send(calls.kill(target, why=why, if_version=if_version))
        except ApiError as error:
            if not error.is_repeated:
                raise
            found = await self.send(calls.killed(target))
            return kill_outcome(target, found, error)

    # ---- nodes and cluster -------------------------------------------------------------------

    async def nodes(self) -> Document:
        """As `Client.nodes`."""
        return await self.send(calls.nodes())

    async def node(self, name: str) -> Document:
        """As `Client.node`."""
        return await self.send(calls.node(name))

    async def cordon(self, name: str, *, why: str = "") -> Document:
        """As `Client.cordon`."""
        return await self.send(calls.cordon(name, is_on=True, why=why))

    async def uncordon(self, name: str, *, why: str = "") -> Document:
        """As `Client.uncordon`."""
        return await self.send(calls.cordon(name, is_on=False, why=why))

    async def cluster_status(self) -> Document:
        """As `Client.cluster_status`."""
        fallback: Document | None = None
        for url in self._controllers.order():
            limit_s = self.context.connect_timeout_s
            outcome = await self._exchange(url, calls.cluster_status(), limit_s)
            if isinstance(outcome, Answer) and outcome.status == 200:
                status = decode(outcome)
                if status.get("quorum"):
                    return status
                fallback = fallback or status
        return fallback or await self.send(calls.cluster_status())

    async def config(self) -> Document:
        """As `Client.config`."""
        return await self.send(calls.config())

    async def configure(self, changes: Mapping[str, int | str]) -> Document:
        """As `Client.configure`."""
        return await self.send(calls.configure(changes))

    # ---- following ---------------------------------------------------------------------------

    async def wait(
        self,
        job_ids: Sequence[str | int],
        *,
        timeout_s: float | None = None,
        is_any: bool = False,
        on_change: Callable[[Document], None] | None = None,
    ) -> list[Document]:
        """As `Client.wait`."""
        waiting = Waiting(job_ids, is_any=is_any, now=time.monotonic, timeout_s=timeout_s)
        while True:
            versions = await self._versions(waiting.open_ids) if waiting.is_many else {}
            for job_id in waiting.due(versions):
                job = await self.job(job_id)
                if waiting.note(job_id, job) and on_change is not None:
                    on_change(job)
            if waiting.is_over:
                return waiting.jobs()
            pause_s = waiting.pause_s()
            if pause_s is None:
                raise WaitTimeout("not all jobs are final yet", waiting.jobs())
            await asyncio.sleep(pause_s)

    async def _versions(self, job_ids: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        after: str | None = str(max(map(int, job_ids)) + 1)
        oldest = min(map(int, job_ids))
        for _ in range(PAGES_MAX):
            page = await self.jobs(limit=1000, after=after, fields=("version",))
            found |= versions_of(page)
            after = page["next"]
            if after is None or int(after) <= oldest:
                break
        return found

    async def follow(
        self, *, after: int | None = None, objects: Sequence[str] = ()
    ) -> AsyncIterator[Document]:
        """As `Client.follow`."""
        async for event in self._play(event_script(objects=objects, after=after)):
            yield event

    async def logs(
        self,
        target: str | int,
        *,
        stream: str = "stdout",
        attempt: int | None = None,
        offset: int = 0,
        tail_bytes: int | None = None,
        tail_lines: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[LogChunk]:
        """As `Client.logs`."""
        output = Output(target, stream=stream, attempt=attempt, is_following=follow)
        script = output.script(offset=offset, tail_bytes=tail_bytes, tail_lines=tail_lines)
        async for chunk in self._play(script):
            yield chunk

    # ---- one call ----------------------------------------------------------------------------

    async def send(self, call: Call) -> Document:
        """As `Client.send`."""
        plan = self._steps(call)
        step = next(plan)
        try:
            while True:
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    step = plan.send(None)
                else:
                    step = plan.send(await self._exchange(step.url, call, step.timeout_s))
        except StopIteration as done:
            answer: Answer = done.value
        self.last_index = max(self.last_index, int(answer.headers.get("pertinax-index", 0)))
        return decode(answer)

    async def _exchange(self, url: str, call: Call, timeout_s: float) -> Answer | Broken:
        try:
            response = await self._http.send(self._request(url, call, timeout_s, timeout_s))
        except httpx2.TransportError as error:
            return _broken(url, error)
        return Answer(response.status_code, _headers(response), response.content)

    async def _open(self, call: Call) -> httpx2.Response:
        """A stream's answer, from the first controller that serves it."""
        plan = self._steps(call)
        step = next(plan)
        response: httpx2.Response | None = None
        try:
            while True:
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    step = plan.send(None)
                    continue
                outcome, response = await self._begin(step.url, call)
                step = plan.send(outcome)
        except StopIteration:
            assert response is not None
            return response

    async def _begin(self, url: str, call: Call) -> tuple[Answer | Broken, httpx2.Response | None]:
        request = self._request(url, call, STREAM_SILENCE_MAX_S, self.context.connect_timeout_s)
        try:
            response = await self._http.send(request, stream=True)
            if response.status_code >= 400:
                body = await response.aread()
                return Answer(response.status_code, _headers(response), body), None
        except httpx2.TransportError as error:
            return _broken(url, error), None
        return Answer(response.status_code, _headers(response)), response

    def _request(self, url: str, call: Call, read_s: float, connect_s: float) -> httpx2.Request:
        connect_s = min(connect_s, self.context.connect_timeout_s)
        return self._http.build_request(
            call.method,
            url + call.target,
            content=call.body if call.is_change else None,
            headers=dict(call.headers),
            timeout=httpx2.Timeout(read_s, connect=connect_s),
        )

    def _steps(self, call: Call) -> Steps:
        return steps(
            self._controllers,
            deadline_s=self.context.deadline_s,
            now=time.monotonic,
            is_change=call.is_change,
        )

    async def _play(self, script: Script) -> AsyncIterator[Any]:
        """Carry out what a script of `scheduler.client.follow` wants, and yield what it gives."""
        response: httpx2.Response | None = None
        pieces: AsyncIterator[bytes] | None = None
        reply: Any = None
        try:
            action = next(script)
            while True:
                if isinstance(action, Give):
                    yield action.item
                    action = next(script)
                    continue
                try:
                    if isinstance(action, Open):
                        if response is not None:
                            await response.aclose()
                        response = await self._open(action.call)
                        pieces, reply = response.aiter_raw(), None
                    else:
                        reply = await self._act(action, pieces)
                except ClientError as error:
                    action = script.throw(error)
                else:
                    action = script.send(reply)
        except StopIteration:
            return
        finally:
            if response is not None:
                await response.aclose()

    async def _act(
        self, action: Read | ReadJob | Pause, pieces: AsyncIterator[bytes] | None
    ) -> Any:
        if isinstance(action, ReadJob):
            return await self.job(action.job_id)
        if isinstance(action, Pause):
            return await asyncio.sleep(action.seconds)
        assert pieces is not None
        try:
            return await anext(pieces)
        except (StopAsyncIteration, httpx2.TransportError):
            return b""


def _headers(response: httpx2.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _broken(url: str, error: httpx2.TransportError) -> Broken:
    is_sent = not isinstance(
        error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
    )
    return Broken(f"{url}: {error or type(error).__name__}", is_sent=is_sent)
