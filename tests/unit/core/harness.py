"""A state machine driven by short commands; every invariant is checked after each entry."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler.core import effects, placement, queries
from scheduler.core.apply import Applied, apply
from scheduler.core.commands import (
    AttemptReports,
    ClusterFounded,
    DeadlinesPassed,
    Entry,
    KillRequested,
    LeaderTookOver,
    NodeInventory,
    NodeJoined,
    NodeOffline,
    Placed,
    SubmitJobs,
    SubmittedJob,
    decode_entry,
    encode_entry,
)
from scheduler.core.invariants import check_capacity, check_state, check_step
from scheduler.core.records import Attempt, Job, Node
from scheduler.core.results import PlacedAnswer, Rejoined, ReportAnswer, Submitted
from scheduler.core.state import ClusterState
from scheduler.protocol.messages import Capacity, FinishFacts, Report, StartFacts
from scheduler.protocol.spec import JobSpec, Resources, Retry, TaskSpec

INCARNATION = "0123abcd0000"
#: Wall-clock label of log time 0: 2026-01-01T00:00:00Z.
WALL_MS = 1_767_225_600_000


class Core:
    """The state, its log, and a clock that tests move."""

    def __init__(self, **settings: int | str) -> None:
        self.state = ClusterState()
        self.log: list[bytes] = []
        self.now_ms = 1_000
        self.term = 0
        self.applied: Applied | None = None
        self.sequence = 0
        self.apply(ClusterFounded(cluster_id="c", incarnation=INCARNATION, settings=settings))
        self.take_over()

    # ---- entries -------------------------------------------------------------------------------

    def apply(self, entry: Entry, *, actor: str = "system:test") -> Any:
        """Commit one entry; returns its outcome."""
        stamped = msgspec.structs.replace(
            entry, log_time_ms=self.now_ms, wall_ms=WALL_MS + self.now_ms, actor=actor
        )
        data = encode_entry(stamped)
        self.log.append(data)
        before = self.state.view()
        self.applied = apply(self.state, decode_entry(data), len(self.log))
        problems = check_state(self.state) + check_step(before, self.state)
        problems += check_capacity(self.state)
        assert problems == []
        return self.applied.outcome

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms

    def take_over(self) -> None:
        self.term += 1
        self.apply(LeaderTookOver(term=self.term, leader=f"c{self.term}"))

    def submit(
        self,
        *,
        key: str = "",
        user: str = "alice",
        spec: JobSpec | None = None,
        priority: int = 0,
        node: str | None = None,
        cpu: int = 1000,
        gpu: int = 0,
        retry: Retry = Retry(),
        job: dict[str, Any] | None = None,
        **task: Any,
    ) -> int:
        """One job of one task; `task` are fields of TaskSpec, `job` of JobSpec."""
        if spec is None:
            needs = Resources(cpu_millis=cpu, gpu=gpu)
            main = TaskSpec(command=("true",), resources=needs, retry=retry, **task)
            spec = JobSpec(tasks={"main": main}, priority=priority, node=node, **(job or {}))
        answer = self.apply(
            SubmitJobs(jobs=(SubmittedJob(spec=spec, user=user),), key=key, body_digest="d"),
            actor=f"user:{user}",
        )
        assert isinstance(answer, Submitted), answer
        return answer.job_ids[0]

    def submit_many(self, count: int, *, cpu: int, retry: Retry) -> None:
        """So many jobs in one entry."""
        main = TaskSpec(command=("true",), resources=Resources(cpu_millis=cpu), retry=retry)
        job = SubmittedJob(spec=JobSpec(tasks={"main": main}), user="alice")
        self.apply(SubmitJobs(jobs=(job,) * count))

    def kill(self, target: str, *, why: str = "", user: str = "alice") -> Any:
        return self.apply(KillRequested(target=target, why=why), actor=f"user:{user}")

    def join(
        self,
        name: str = "a1",
        *,
        uuid: str = "",
        start: int = 1,
        boot: str = "b1",
        store: str = "s1",
        nonce: str = "n",
        cpu: int = 8000,
        gpu: int = 0,
        is_heard: bool = False,
    ) -> Any:
        """A hello alone."""
        return self.apply(
            NodeJoined(
                name=name,
                node_uuid=uuid or f"{name}-uuid",
                start_number=start,
                nonce=nonce,
                store_id=store,
                boot_id=boot,
                agent_version="1",
                capacity=Capacity(cpu_millis=cpu, memory_bytes=1 << 30, gpu_count=gpu),
                is_old_session_heard=is_heard,
            )
        )

    def inventory(self, name: str = "a1", *items: Report, is_last: bool = True) -> Rejoined:
        node = self.state.nodes[name]
        answer = self.apply(
            NodeInventory(
                node=name,
                node_uuid=node.uuid,
                session=node.session,
                items=items,
                is_last=is_last,
            )
        )
        assert isinstance(answer, Rejoined), answer
        return answer

    def node(self, name: str = "a1", *items: Report, **hello: Any) -> Rejoined:
        """A whole rejoin: hello and inventory."""
        self.join(name, **hello)
        return self.inventory(name, *items)

    def offline(
        self, name: str = "a1", reason: str = "heartbeat_lost", *, lease_ms: int = 0
    ) -> Any:
        """`lease_ms`: until when leases run, from now (0: nothing was acknowledged)."""
        until = self.now_ms + lease_ms if lease_ms else 0
        session = self.state.nodes[name].session
        return self.apply(
            NodeOffline(node=name, session=session, reason=reason, lease_until_ms=until)
        )

    def place(self) -> dict[str, str]:
        """Plan and commit: attempt -> token."""
        plan = placement.plan_placement(self.state, now_ms=self.now_ms)
        if not plan:
            return {}
        answer = self.apply(Placed(placements=plan))
        assert isinstance(answer, PlacedAnswer)
        assert answer.skipped == ()
        return answer.tokens

    def deadlines(self, limit: int = 500) -> Any:
        return self.apply(DeadlinesPassed(limit=limit))

    def report(self, *reports: Report, node: str = "a1") -> list[str]:
        """Reports of a node; returns the answers."""
        record = self.state.nodes[node]
        answers = self.apply(
            AttemptReports(node=node, node_uuid=record.uuid, reports=reports),
            actor=f"agent:{node}",
        )
        assert all(isinstance(answer, ReportAnswer) for answer in answers)
        return [answer.answer for answer in answers]

    # ---- values --------------------------------------------------------------------------------

    def started(self, token: str, *, pid: int = 7, worker: str = "") -> Report:
        return Report(kind="started", token=token, start=self.start_facts(pid=pid, worker=worker))

    def start_facts(self, *, pid: int = 7, worker: str = "") -> StartFacts:
        return StartFacts(started_at_ms=WALL_MS + self.now_ms, pid=pid, boot_id="b1", worker=worker)

    def finished(self, token: str, cause: str = "exit_zero", **facts: Any) -> Report:
        if cause == "exit_zero":
            facts.setdefault("exit_code", 0)
        if cause == "exit_nonzero":
            facts.setdefault("exit_code", 1)
        finish = FinishFacts(
            cause=cause,
            ended_at_ms=WALL_MS + self.now_ms,
            start=facts.pop("start", self.start_facts()),
            **facts,
        )
        return Report(kind="finished", token=token, finish=finish)

    # ---- situations ----------------------------------------------------------------------------

    def given_running(self, **spec: Any) -> tuple[int, str]:
        """A node, if there is none, and a running job on it: (job id, token)."""
        if not self.state.node_names:
            self.node()
        job_id = self.submit(**spec)
        token = self.place()[f"{job_id}/main/0#1"]
        placed = self.attempt(job_id).placed
        assert placed is not None
        self.report(self.started(token), node=placed.node)
        return job_id, token

    # ---- looking -------------------------------------------------------------------------------

    def job(self, job_id: int) -> Job:
        return self.state.jobs[job_id]

    def attempt(self, job_id: int, number: int = 1) -> Attempt:
        return self.state.attempts[(job_id, "main", 0, number)]

    def node_record(self, name: str = "a1") -> Node:
        return self.state.nodes[name]

    def end_of(self, job_id: int, number: int = 1) -> tuple[str, str, str]:
        """(phase, cause, evidence) of an attempt."""
        attempt = self.attempt(job_id, number)
        assert attempt.ended is not None, attempt
        return attempt.phase, attempt.ended.cause, attempt.ended.evidence

    def view(self, job_id: int) -> dict[str, Any]:
        view = queries.job_view(self.state, job_id)
        assert view is not None
        return view

    def attempt_view(self, job_id: int, number: int = 1) -> dict[str, Any]:
        view = queries.attempt_view(self.state, f"{job_id}/main/0#{number}")
        assert view is not None
        return view

    def orders(self, node: str = "a1", **arguments: Any) -> list[tuple[str, str]]:
        """(kind, attempt) of what the node should be told."""
        arguments.setdefault("now_ms", self.now_ms)
        found = effects.pending_effects(self.state, node, **arguments)
        return [(order.kind, order.attempt) for order in found]

    def reasons(self, job_id: int) -> list[str]:
        return [reason["code"] for reason in self.view(job_id)["pending_reasons"]]
