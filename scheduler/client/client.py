"""The blocking client (specification 6.4). The command line and the tests use it.

Every method asks the controller that answered last, goes on to the others when it does not, and
raises one of `scheduler.client.errors` when none could serve the call before the deadline. Changes
are sent with an idempotency key, so that repeating them is safe. A client belongs to one thread.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scheduler.client import calls
from scheduler.client.calls import Call
from scheduler.client.connection import Body, Connections
from scheduler.client.context import Context
from scheduler.client.errors import ApiError, BadAnswer, ClientError, Document, WaitTimeout
from scheduler.client.failover import Answer, Controllers, Steps, Wait, steps
from scheduler.client.waiting import Waiting

if TYPE_CHECKING:
    # Loaded only by those who follow: every command pays for what is imported here.
    from scheduler.client.follow import LogChunk, Pause, Read, ReadJob, Script

#: Phases that a job never leaves (`Stopped` can be left by a resume).
FINAL_PHASES = frozenset(("Succeeded", "Failed", "Killed"))


#: Pages of jobs looked through for the versions of those that are waited for.
PAGES_MAX = 20


class Client:
    """One cluster. Close it, or use it in a `with` statement."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._controllers = Controllers(context.urls)
        self._connections = Connections(context)
        #: Log index of the newest answer: what a stale read must at least include.
        self.last_index = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connections.close()

    # ---- jobs --------------------------------------------------------------------------------

    def submit(self, document: Mapping[str, Any], *, key: str | None = None) -> Document:
        """Submit one specification document; returns `{"job": {…}}`.

        The same `key` again answers with the same job. ApiError: 422 `invalid_spec` with all
        `mistakes`, 409 `key_reused`.
        """
        return self.send(calls.submit(document, key=new_key() if key is None else key))

    def submit_many(
        self,
        documents: Sequence[Mapping[str, Any]],
        *,
        key: str | None = None,
        fields: Sequence[str] = (),
    ) -> Document:
        """Submit up to 10,000 documents, all or nothing; returns `{"jobs": […]}`.

        `fields=["id"]` is answered far quicker than whole jobs.
        """
        return self.send(
            calls.submit_many(documents, key=new_key() if key is None else key, fields=fields)
        )

    def jobs(
        self,
        *,
        state: Sequence[str] = (),
        user: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        overdue: bool = False,
        limit: int | None = None,
        after: str | None = None,
        fields: Sequence[str] = (),
    ) -> Document:
        """One page of jobs, newest first: `{"jobs": […], "next": cursor or None}`."""
        return self.send(
            calls.jobs(
                state=state,
                user=user,
                queue=queue,
                name=name,
                overdue=overdue,
                limit=limit,
                after=after,
                fields=fields,
            )
        )

    def job(self, job_id: str | int, *, fields: Sequence[str] = ()) -> Document:
        """The job itself. ApiError 404 `not_found`."""
        return self.send(calls.job(job_id, fields=fields))

    def workers(self, target: str | int) -> Document:
        """`{"workers": […]}` of a job."""
        return self.send(calls.of_job(target, "workers"))

    def attempts(self, target: str | int) -> Document:
        """`{"attempts": […]}` of a job or worker, ascending by number."""
        return self.send(calls.of_job(target, "attempts"))

    def history(self, target: str | int) -> Document:
        """`{"events": […]}` of a job, worker or attempt, oldest first."""
        return self.send(calls.of_job(target, "events"))

    def why(self, target: str | int) -> Document:
        """Why it is as it is: `{"id", "phase", "cause", …, "pending_reasons": […]}`."""
        return self.send(calls.of_job(target, "why"))

    def kill(self, target: str | int, *, why: str = "", if_version: int | None = None) -> Document:
        """End a job, worker or attempt for good; returns `{"job": id, "is_done", "message"}`.

        ApiError: 404, 409 when it is final, 412 when `if_version` is not its version any more.
        """
        try:
            return self.send(calls.kill(target, why=why, if_version=if_version))
        except ApiError as error:
            if not error.is_repeated:
                raise
            return kill_outcome(target, self.send(calls.killed(target)), error)

    # ---- nodes and cluster -------------------------------------------------------------------

    def nodes(self) -> Document:
        """`{"nodes": […]}`, by name."""
        return self.send(calls.nodes())

    def node(self, name: str) -> Document:
        """The node itself. ApiError 404."""
        return self.send(calls.node(name))

    def cordon(self, name: str, *, why: str = "") -> Document:
        """Place nothing more on a node; returns the node."""
        return self.send(calls.cordon(name, is_on=True, why=why))

    def uncordon(self, name: str, *, why: str = "") -> Document:
        """Let a node receive work again; returns the node."""
        return self.send(calls.cordon(name, is_on=False, why=why))

    def cluster_status(self) -> Document:
        """The cluster as a controller sees it, best one with a quorum.

        Every controller answers this by itself, `quorum` false when it knows of none: one that is
        cut off must not speak for all, so the others are asked as well. Unreachable when none
        answers.
        """
        fallback: Document | None = None
        for url in self._controllers.order():
            limit_s = self.context.connect_timeout_s
            outcome = self._connections.send(url, calls.cluster_status(), limit_s)
            if isinstance(outcome, Answer) and outcome.status == 200:
                status = self._taken(outcome)
                if status.get("quorum"):
                    return status
                fallback = fallback or status
        # Nobody sees a quorum, or nobody answered: the usual way says why.
        return fallback or self.send(calls.cluster_status())

    def config(self) -> Document:
        """`{"settings": {name: value}}`: the cluster-wide settings in force."""
        return self.send(calls.config())

    def configure(self, changes: Mapping[str, int | str]) -> Document:
        """Change cluster-wide settings; durations as `30s` or in milliseconds."""
        return self.send(calls.configure(changes))

    # ---- following ---------------------------------------------------------------------------

    def wait(
        self,
        job_ids: Sequence[str | int],
        *,
        timeout_s: float | None = None,
        is_any: bool = False,
        on_change: Callable[[Document], None] | None = None,
    ) -> list[Document]:
        """Wait until all jobs (with `is_any`: one) are final; returns them in the order given.

        Goes on through leader changes. `on_change` is told each job whenever its version moved. A
        Stopped job is waited for: it may be resumed. WaitTimeout after `timeout_s`, carrying the
        jobs as last seen; ApiError 404 for an unknown job; NotAvailable when no controller serves
        within the context's deadline.
        """
        waiting = Waiting(job_ids, is_any=is_any, now=time.monotonic, timeout_s=timeout_s)
        while True:
            versions = self._versions(waiting.open_ids) if waiting.is_many else {}
            for job_id in waiting.due(versions):
                if waiting.note(job_id, job := self.job(job_id)) and on_change is not None:
                    on_change(job)
            if waiting.is_over:
                return waiting.jobs()
            pause_s = waiting.pause_s()
            if pause_s is None:
                raise WaitTimeout("not all jobs are final yet", waiting.jobs())
            time.sleep(pause_s)

    def _versions(self, job_ids: Sequence[str]) -> dict[str, int]:
        """Versions of jobs among `job_ids`, from pages of the list: few calls for many jobs."""
        found: dict[str, int] = {}
        after: str | None = str(max(map(int, job_ids)) + 1)
        oldest = min(map(int, job_ids))
        for _ in range(PAGES_MAX):
            page = self.jobs(limit=1000, after=after, fields=("version",))
            found |= versions_of(page)
            after = page["next"]
            if after is None or int(after) <= oldest:
                break
        return found

    def follow(
        self, *, after: int | None = None, objects: Sequence[str] = ()
    ) -> Iterator[Document]:
        """Events as they are applied, for ever; `after` is a log index, None begins now.

        `objects`: only events of these jobs or nodes and what is inside them (`42`, `node:a1`).
        Resumes at the last index after a leader change or a broken connection; NotAvailable when no
        controller serves within the deadline. An event `{"kind": "gap", …}` marks events that were
        not kept any more.
        """
        from scheduler.client.follow import event_script

        yield from self._play(event_script(objects=objects, after=after))

    def logs(
        self,
        target: str | int,
        *,
        stream: str = "stdout",
        attempt: int | None = None,
        offset: int = 0,
        tail_bytes: int | None = None,
        tail_lines: int | None = None,
        follow: bool = False,
    ) -> Iterator[LogChunk]:
        """The output of a job's only worker, of a worker or of an attempt, as bytes.

        `attempt` is a number; None takes the newest that was placed, and with `follow` goes on to
        its successors until the job is final. Resumes by byte offset through failovers. LogLost
        when the node does not have it (any more) or cannot be reached.
        """
        from scheduler.client.follow import Output

        output = Output(target, stream=stream, attempt=attempt, is_following=follow)
        script = output.script(offset=offset, tail_bytes=tail_bytes, tail_lines=tail_lines)
        yield from self._play(script)

    # ---- one call ----------------------------------------------------------------------------

    def send(self, call: Call) -> Document:
        """Any call of `scheduler.client.calls`; returns the answer's JSON object."""
        plan = self._steps(call)
        step = next(plan)
        try:
            while True:
                if isinstance(step, Wait):
                    time.sleep(step.seconds)
                    step = plan.send(None)
                else:
                    step = plan.send(self._connections.send(step.url, call, step.timeout_s))
        except StopIteration as done:
            return self._taken(done.value)

    def _taken(self, answer: Answer) -> Document:
        self.last_index = max(self.last_index, int(answer.headers.get("pertinax-index", 0)))
        return decode(answer)

    def request(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Document:
        """A call by its path, for what has no method here. A change needs a fresh key each time."""
        target = calls.with_query(path, query or {})
        if body is None and method == "GET":
            return self.send(Call(method, target))
        headers = {"Content-Type": "application/json", "Idempotency-Key": new_key()}
        return self.send(Call(method, target, json.dumps(body).encode(), headers, is_change=True))

    def _open(self, call: Call) -> Body:
        """A stream's body, from the first controller that serves it."""
        plan = self._steps(call)
        step = next(plan)
        body: Body | None = None
        try:
            while True:
                if isinstance(step, Wait):
                    time.sleep(step.seconds)
                    step = plan.send(None)
                else:
                    outcome, body = self._connections.open_stream(step.url, call, step.timeout_s)
                    step = plan.send(outcome)
        except StopIteration:
            assert body is not None
            return body

    def _play(self, script: Script) -> Iterator[Any]:
        """Carry out what a script of `scheduler.client.follow` wants, and yield what it gives."""
        from scheduler.client.follow import Give, Open

        body: Body | None = None
        reply: Any = None
        try:
            action = next(script)
            while True:
                if isinstance(action, Give):
                    yield action.item
                    action = next(script)
                    continue
                if isinstance(action, Open) and body is not None:
                    body.close()
                    body = None
                try:
                    if isinstance(action, Open):
                        reply = body = self._open(action.call)
                    else:
                        reply = self._act(action, body)
                except ClientError as error:
                    action = script.throw(error)
                else:
                    action = script.send(reply)
        except StopIteration:
            return
        finally:
            if body is not None:
                body.close()

    def _act(self, action: Read | ReadJob | Pause, body: Body | None) -> Any:
        from scheduler.client.follow import Pause, ReadJob

        if isinstance(action, ReadJob):
            return self.job(action.job_id)
        if isinstance(action, Pause):
            return time.sleep(action.seconds)
        assert body is not None
        return body.read()

    def _steps(self, call: Call) -> Steps:
        return steps(
            self._controllers,
            deadline_s=self.context.deadline_s,
            now=time.monotonic,
            is_change=call.is_change,
        )


def decode(answer: Answer) -> Document:
    """The JSON object of an answer. Raises BadAnswer."""
    try:
        document = json.loads(answer.body)
    except ValueError as error:
        raise BadAnswer(f"the answer is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadAnswer("the answer is no JSON object")
    return document


def versions_of(page: Document) -> dict[str, int]:
    """Job id to version of a page of jobs."""
    return {str(job["id"]): job["version"] for job in page["jobs"]}


def kill_outcome(target: str | int, found: Document, error: ApiError) -> Document:
    """The answer for a kill that was taken, though its answer was lost. Else raises `error`.

    `found` is the answer to `calls.killed`, `error` how its repetition was refused.
    """
    subject = found["attempts"][-1] if "attempts" in found else found
    ending = subject.get("ending") or {}
    is_kill = "user_cancel" in (subject.get("cause"), ending.get("cause"))
    if error.code not in ("already_final", "version") or not is_kill:
        raise error
    job_id = int(str(target).partition("/")[0].partition("#")[0])
    return {"job": job_id, "is_done": subject["phase"] == "Killed", "message": "was taken before"}


def new_key() -> str:
    """A fresh idempotency key: one for each change, kept over its repetitions."""
    return os.urandom(16).hex()
