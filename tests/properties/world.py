"""A small cluster for generated histories: the state machine, a leader's mind, and real agents.

Agents here are the reality that the state is to be true to: they run things, freeze them at their
leases' end, lose messages, reboot and come back. After each entry every invariant is checked, and
beside them what no state can show: no two live trees of one worker at the same moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from scheduler.core import effects, placement
from scheduler.core.apply import apply
from scheduler.core.commands import (
    AttemptReports,
    ClusterFounded,
    ConfigChanged,
    DeadlinesPassed,
    Entry,
    KillRequested,
    LeaderTookOver,
    NodeChanged,
    NodeInventory,
    NodeJoined,
    NodeOffline,
    Placed,
    SubmitJobs,
    SubmittedJob,
    decode_entry,
    encode_entry,
)
from scheduler.core.invariants import check_state, check_step
from scheduler.core.results import Joined, Rejoined, ReportAnswer
from scheduler.core.state import ClusterState
from scheduler.protocol.ids import make_token
from scheduler.protocol.messages import Capacity, FinishFacts, Report, StartFacts
from scheduler.protocol.spec import JobSpec, Resources, Retry, TaskSpec

INCARNATION = "0123abcd0000"
MARGIN_MS = 1_000
WALL_MS = 1_700_000_000_000
SETTINGS: dict[str, int | str] = {
    "transient_timeout": 20_000,
    "heartbeat_timeout": 6_000,
    "heartbeat_interval": 2_000,
    "rejoin_grace": 5_000,
    "start_timeout": 4_000,
    "unknown_report_ttl": 9_000,
    "unknown_report_max_per_node": 6,
    "idempotency_retention": 60_000,
    "tombstone_retention": 90_000,
}
#: Some are more likely.
OFFLINE = (
    "disconnected",
    "disconnected",
    "disconnected",
    "heartbeat_lost",
    "heartbeat_lost",
    "agent_restarting",
    "left",
)
OUTCOMES = ("exit_zero", "exit_nonzero", "oom", "launch_failed", "signal")


@dataclass
class Process:
    """An attempt as it really is on its node."""

    token: str
    worker: str
    on_lease_end: str
    is_alive: bool = True
    start: StartFacts | None = None
    finish: FinishFacts | None = None
    is_acknowledged: bool = False


@dataclass
class Agent:
    """A node's real agent and keeper."""

    name: str
    uuid: str
    start_number: int = 1
    store: str = "s1"
    boot: int = 1
    session: int = 0
    is_linked: bool = False
    is_claimed: bool = False
    lease_until_ms: int = 0
    #: Whether it told the cluster of the processes, by token.
    processes: dict[str, Process] = field(default_factory=dict)
    outbox: list[Report] = field(default_factory=list)
    orders: list[effects.Order] = field(default_factory=list)
    sent: set[tuple[str, str]] = field(default_factory=set)
    sequence: int = 0
    #: Tokens that it said will never start; durable.
    voided: set[str] = field(default_factory=set)

    @property
    def boot_id(self) -> str:
        return f"{self.uuid}-boot{self.boot}"


class World:
    """Drive it by the `do_*` methods; each takes its choices from `random`."""

    def __init__(self, random: Random, *, agents: int = 3) -> None:
        self.random = random
        self.state = ClusterState()
        self.log: list[bytes] = []
        self.now_ms = 1_000
        self.term = 0
        self.agents = {f"n{i}": Agent(f"n{i}", f"u{i}") for i in range(agents)}
        #: Hosts that were replaced, with what still runs there.
        self.ghosts: list[Agent] = []
        self.acknowledged: dict[str, str] = {}
        self.keys = 0
        self.apply(ClusterFounded(cluster_id="c", incarnation=INCARNATION, settings=SETTINGS))
        self.do_takeover()

    # ---- the log -------------------------------------------------------------------------------

    def apply(self, entry: Entry, actor: str = "system:test") -> object:
        stamped = replace_entry(entry, self.now_ms, actor)
        data = encode_entry(stamped)
        self.log.append(data)
        before = self.state.view()
        applied = apply(self.state, decode_entry(data), len(self.log))
        problems = check_state(self.state) + check_step(before, self.state) + self.check_reality()
        assert not problems, (type(entry).__name__, problems)
        return applied.outcome

    def check_reality(self) -> list[str]:
        """No two trees of one worker run at the same time (promise 3)."""
        running: dict[str, list[str]] = {}
        for agent in [*self.agents.values(), *self.ghosts]:
            for process in agent.processes.values():
                if process.is_alive and self.is_thawed(agent, process):
                    running.setdefault(process.worker, []).append(process.token)
        return [f"R: {w} runs as {tokens}" for w, tokens in running.items() if len(tokens) > 1]

    def is_thawed(self, agent: Agent, process: Process) -> bool:
        return process.on_lease_end == "run" or self.now_ms < agent.lease_until_ms - MARGIN_MS

    # ---- users ---------------------------------------------------------------------------------

    def do_submit(self) -> None:
        pick = self.random
        task = TaskSpec(
            command=("true",),
            resources=Resources(
                cpu_millis=pick.choice((500, 1000, 3000)), gpu=pick.choice((0, 0, 1))
            ),
            retry=Retry(limit=pick.choice((0, 1)), node_limit=pick.choice((0, 2, 3, 3))),
            on_disconnect=pick.choice((None, "fail", "unknown")),
            on_lease_end=pick.choice((None, None, "run", "kill")),
            pending_timeout_ms=pick.choice((None, None, 15_000)),
            exit_codes=pick.choice(({}, {}, {3: "fail_job"})),
        )
        spec = JobSpec(
            tasks={"main": task},
            priority=pick.choice((0, 0, 5)),
            node=pick.choice((None, None, None, "n0")),
            retention_ms=30_000,
            wait_for_capacity=pick.random() < 0.5,
        )
        if pick.random() < 0.2:
            self.keys += pick.random() < 0.6
            key = f"k{self.keys}"
        else:
            key = ""
        jobs = tuple(SubmittedJob(spec=spec, user="a") for _ in range(pick.choice((1, 1, 3))))
        self.apply(SubmitJobs(jobs=jobs, key=key, body_digest=f"{len(jobs)}"), "user:a")

    def do_kill(self) -> None:
        if self.state.next_job == 1:
            return
        job = self.random.randrange(1, self.state.next_job)
        target = self.random.choice((f"{job}", f"{job}", f"{job}/main/0", f"{job}#1", f"{job}/x"))
        self.apply(KillRequested(target=target, why="test"), "user:a")

    def do_config(self) -> None:
        name, values = self.random.choice(
            (
                ("transient_timeout", (8_000, 20_000)),
                ("on_disconnect", ("fail", "unknown")),
                ("late_truth", ("adopt", "record")),
                ("unknown_report_ttl", (3_000, 9_000)),
            )
        )
        self.apply(ConfigChanged(changes={name: self.random.choice(values)}))

    def do_cordon(self) -> None:
        name = self.random.choice(sorted(self.agents))
        self.apply(NodeChanged(node=name, unschedulable=self.random.random() < 0.4, why="w"))

    # ---- the leader ----------------------------------------------------------------------------

    def do_takeover(self) -> None:
        self.term += 1
        for agent in self.agents.values():
            agent.is_claimed = agent.is_linked = False
            agent.orders.clear()
        self.apply(LeaderTookOver(term=self.term, leader=f"c{self.term % 3}"))

    def do_place(self) -> None:
        plan = placement.plan_placement(self.state, now_ms=self.now_ms)
        if self.random.random() < 0.2 and plan:
            plan = (*plan, *plan, self.random.choice(plan))
        if plan:
            self.apply(Placed(placements=plan))

    def do_orders(self) -> None:
        for agent in self.agents.values():
            if not (agent.is_linked and agent.is_claimed):
                continue
            for order in effects.pending_effects(
                self.state, agent.name, now_ms=self.now_ms, sent=agent.sent
            ):
                agent.sent.add((order.kind, order.token))
                agent.orders.append(order)

    def do_deadlines(self) -> None:
        due = self.state.due.next_ms()
        if due is not None and due <= self.now_ms:
            self.apply(DeadlinesPassed(limit=self.random.choice((1, 2, 500))))

    def do_time(self) -> None:
        self.now_ms += self.random.choice((1, 500, 2_000, 7_000))
        self.kill_at_lease_end()
        problems = self.check_reality()
        assert not problems, problems

    def kill_at_lease_end(self) -> None:
        for agent in [*self.agents.values(), *self.ghosts]:
            if self.now_ms < agent.lease_until_ms - MARGIN_MS:
                continue
            for process in agent.processes.values():
                if process.is_alive and process.on_lease_end == "kill":
                    self.end(agent, process, "lease_expired", was_signalled=True)

    def do_heartbeat(self) -> None:
        """Acknowledged heartbeats renew the leases of the nodes that are heard."""
        for agent in self.agents.values():
            if agent.is_linked and agent.is_claimed and self.random.random() < 0.8:
                agent.lease_until_ms = max(
                    agent.lease_until_ms, self.now_ms + self.state.lease_ms()
                )

    # ---- contact -------------------------------------------------------------------------------

    def do_offline(self) -> None:
        agent = self.random.choice(list(self.agents.values()))
        node = self.state.nodes.get(agent.name)
        if node is None:
            return
        reason = self.random.choice(OFFLINE)
        if reason == "left" and not self.has_left(agent):
            reason = "disconnected"
        agent.is_linked = agent.is_claimed = False
        session = node.session if self.random.random() < 0.9 else node.session - 1
        self.apply(
            NodeOffline(
                node=agent.name,
                session=session,
                reason=reason,
                lease_until_ms=agent.lease_until_ms if self.is_of_this_term(agent) else 0,
            )
        )

    def has_left(self, agent: Agent) -> bool:
        """Whether it could say goodbye: all ended, all committed, and no order is obeyed since."""
        for process in agent.processes.values():
            if process.is_alive:
                self.end(agent, process, "node_drain", was_signalled=True)
        if not (agent.is_linked and agent.is_claimed):
            return False
        agent.orders.clear()
        reports = list(agent.outbox)
        entry = AttemptReports(node=agent.name, node_uuid=agent.uuid, reports=tuple(reports))
        answers = self.apply(entry, f"agent:{agent.name}")
        assert isinstance(answers, tuple)
        self.take_answers(agent, reports, answers)
        return not agent.outbox

    def is_of_this_term(self, agent: Agent) -> bool:
        """Whether the leader of today gave it a lease."""
        node = self.state.nodes.get(agent.name)
        claimed = None if node is None else node.claimed
        return claimed is not None and claimed.index > self.state.takeover_index

    def do_join(self) -> None:
        agent = self.random.choice(list(self.agents.values()))
        fate = self.random.random()
        if fate < 0.08:
            self.reboot(agent)
        elif fate < 0.12:
            agent = self.replace_host(agent)
        agent.start_number += fate > 0.5
        agent.orders.clear()
        answer = self.apply(
            NodeJoined(
                name=agent.name,
                node_uuid=agent.uuid,
                start_number=agent.start_number,
                nonce=f"{agent.start_number}",
                store_id=agent.store,
                boot_id=agent.boot_id,
                agent_version="1",
                capacity=Capacity(cpu_millis=4000, memory_bytes=1 << 30, gpu_count=1),
            )
        )
        assert isinstance(answer, Joined)
        agent.session, agent.is_linked, agent.is_claimed = answer.session, True, False
        if self.random.random() < 0.85:
            self.send_inventory(agent)

    def reboot(self, agent: Agent) -> None:
        agent.boot += 1
        for process in agent.processes.values():
            process.is_alive = False
        # What was running leaves no exit behind; what had ended is in the journal.
        agent.processes = {t: p for t, p in agent.processes.items() if p.finish is not None}
        agent.outbox = [r for r in agent.outbox if r.kind != "started"]

    def replace_host(self, agent: Agent) -> Agent:
        self.ghosts.append(agent)
        number = len(self.ghosts)
        new = Agent(agent.name, f"{agent.uuid}x{number}", store=f"s{number}x")
        self.agents[agent.name] = new
        return new

    def send_inventory(self, agent: Agent) -> None:
        hello_ms = self.now_ms
        items = tuple(
            Report(kind="finished", token=p.token, finish=self.told(p))
            if p.finish is not None
            else Report(kind="started", token=p.token, start=p.start)
            for p in agent.processes.values()
        )
        lease_ms = hello_ms + self.state.lease_ms()
        cut = self.random.choice((0, len(items) // 2)) if len(items) > 1 else 0
        parts = [items[:cut], items[cut:]] if cut else [items]
        for part in parts:
            is_last = part is parts[-1]
            answer = self.apply(
                NodeInventory(
                    node=agent.name,
                    node_uuid=agent.uuid,
                    session=agent.session,
                    items=part,
                    lease_until_ms=lease_ms if is_last else 0,
                    is_last=is_last,
                )
            )
            assert isinstance(answer, Rejoined)
            self.obey(agent, answer)
        agent.lease_until_ms = max(agent.lease_until_ms, lease_ms)
        agent.is_claimed = True
        agent.sent.clear()
        agent.orders.clear()
        problems = self.check_reality()
        assert not problems, problems

    def told(self, process: Process) -> FinishFacts:
        assert process.finish is not None
        return replace_struct(process.finish, evidence="replayed")

    def obey(self, agent: Agent, answer: Rejoined) -> None:
        for verdict in answer.verdicts:
            process = agent.processes.get(verdict.token)
            if process is None:
                continue
            if verdict.verdict == "kill" and process.is_alive:
                self.end(agent, process, "killed", was_signalled=True)
            elif verdict.verdict in ("acknowledged", "disowned"):
                agent.processes.pop(verdict.token)

    # ---- agents --------------------------------------------------------------------------------

    def do_agent_work(self) -> None:
        """Handle the orders that arrived; some of them late."""
        for agent in self.agents.values():
            while agent.orders and self.random.random() < 0.8:
                self.handle(agent, agent.orders.pop(0))

    def handle(self, agent: Agent, order: effects.Order) -> None:
        process = agent.processes.get(order.token)
        has_lease = self.now_ms < agent.lease_until_ms - MARGIN_MS
        match order:
            case effects.SendStart(work=work) if process is None:
                if has_lease and order.token not in agent.voided:
                    self.start(agent, order.token, work.attempt, work.on_lease_end)
                else:
                    self.void(agent, order.token)
            case effects.SendKill() if process is not None:
                if process.is_alive:
                    self.end(agent, process, "killed", was_signalled=True)
            case effects.SendKill() | effects.SendAskStatus() if process is None:
                self.void(agent, order.token)

    def void(self, agent: Agent, token: str) -> None:
        agent.voided.add(token)
        self.report(agent, Report(kind="not_started", token=token))

    def start(self, agent: Agent, token: str, attempt: str, on_lease_end: str) -> None:
        facts = StartFacts(
            started_at_ms=WALL_MS + self.now_ms,
            pid=len(self.log) + 100,
            boot_id=agent.boot_id,
            worker=attempt.partition("#")[0],
        )
        process = Process(token, facts.worker, on_lease_end, start=facts)
        agent.processes[token] = process
        if self.random.random() < 0.15:
            self.end(agent, process, self.random.choice(OUTCOMES))
        else:
            self.report(agent, Report(kind="started", token=token, start=facts))

    def end(
        self, agent: Agent, process: Process, cause: str, *, was_signalled: bool = False
    ) -> None:
        process.is_alive = False
        code = {"exit_zero": 0, "exit_nonzero": self.random.choice((1, 3))}.get(cause)
        process.finish = FinishFacts(
            cause=cause,
            ended_at_ms=WALL_MS + self.now_ms,
            start=process.start,
            exit_code=code,
            was_signalled=was_signalled,
        )
        self.report(agent, Report(kind="finished", token=process.token, finish=process.finish))

    def report(self, agent: Agent, report: Report) -> None:
        agent.sequence += 1
        agent.outbox.append(replace_struct(report, sequence=agent.sequence))

    def do_exits(self) -> None:
        for agent in [*self.agents.values(), *self.ghosts]:
            for process in list(agent.processes.values()):
                is_able = process.is_alive and self.is_thawed(agent, process)
                if is_able and self.random.random() < 0.1:
                    self.end(agent, process, self.random.choice(OUTCOMES))

    def do_reports(self) -> None:
        for agent in self.agents.values():
            if not (agent.is_linked and agent.is_claimed and agent.outbox):
                continue
            reports = list(agent.outbox)
            if self.random.random() < 0.1:
                self.random.shuffle(reports)
            answers = self.apply(
                AttemptReports(node=agent.name, node_uuid=agent.uuid, reports=tuple(reports)),
                f"agent:{agent.name}",
            )
            if self.random.random() < 0.2:
                continue  # The answer was lost: all is sent again.
            assert isinstance(answers, tuple)
            self.take_answers(agent, reports, answers)

    def take_answers(
        self, agent: Agent, reports: list[Report], answers: tuple[ReportAnswer, ...]
    ) -> None:
        for report, answer in zip(reports, answers, strict=True):
            assert (answer.sequence, answer.token) == (report.sequence, report.token)
            if answer.answer == "registry_full":
                continue
            agent.outbox.remove(report)
            if report.kind == "finished":
                agent.processes.pop(report.token, None)

    def do_early_report(self) -> None:
        """A finish that reaches the log before the placement it belongs to."""
        waiting = placement.plan_placement(self.state, now_ms=self.now_ms)
        if not waiting:
            return
        first = waiting[0]
        agent = self.agents[first.node]
        if not agent.is_claimed:
            return
        token = make_token(INCARNATION, len(self.log) + 2, 0)
        facts = StartFacts(started_at_ms=5, pid=77, worker=first.attempt.partition("#")[0])
        finish = FinishFacts(cause="exit_zero", ended_at_ms=9, exit_code=0, start=facts)
        reports = (
            Report(kind="finished", token=token, sequence=0, finish=finish),
            Report(kind="started", token=token, sequence=0, start=facts),
        )
        answers = self.apply(AttemptReports(node=agent.name, node_uuid=agent.uuid, reports=reports))
        assert isinstance(answers, tuple)
        self.apply(Placed(placements=(first,)))
        if [one.answer for one in answers] == ["committed", "committed"]:
            attempt = self.state.attempt_of_token(token)
            assert attempt is None or attempt.phase == "Succeeded", attempt

    def do_bogus(self) -> None:
        """Reports of tokens that are not the node's, or nobody's."""
        agent = self.random.choice(list(self.agents.values()))
        tokens = [make_token(INCARNATION, self.random.randrange(1, 10_000_000), 0)]
        tokens += list(self.state.tokens)[-3:]
        token = self.random.choice(tokens)
        attempt = self.state.attempt_of_token(token)
        is_own = (
            attempt is not None
            and attempt.placed is not None
            and (attempt.placed.node == agent.name and attempt.placed.node_uuid == agent.uuid)
        )
        if is_own:
            return
        finish = FinishFacts(cause="exit_zero", ended_at_ms=9, exit_code=0)
        report = Report(kind="finished", token=token, finish=finish)
        before = None if attempt is None else attempt.phase
        self.apply(AttemptReports(node=agent.name, node_uuid=agent.uuid, reports=(report,)))
        if attempt is not None:
            assert self.state.attempts[attempt.key].phase == before

    # ---- the end -------------------------------------------------------------------------------

    RULES = (
        ("do_submit", 6), ("do_kill", 2), ("do_config", 1), ("do_cordon", 1),
        ("do_takeover", 1), ("do_place", 8), ("do_orders", 8), ("do_deadlines", 6),
        ("do_time", 6), ("do_heartbeat", 6), ("do_offline", 3), ("do_join", 5),
        ("do_agent_work", 8), ("do_exits", 3), ("do_reports", 8), ("do_early_report", 1),
        ("do_bogus", 1),
    )  # fmt: skip

    def step(self, number: int) -> None:
        """Run the rule that `number` picks."""
        names = [name for name, weight in self.RULES for _ in range(weight)]
        getattr(self, names[number % len(names)])()

    def heal(self) -> None:
        """The last fault heals: every job must end, by rule alone (invariant 12)."""
        for name in sorted(self.agents):
            self.apply_uncordon(name)
        for _ in range(400):
            self.now_ms += 700
            self.kill_at_lease_end()
            for agent in self.agents.values():
                if not (agent.is_linked and agent.is_claimed):
                    self.rejoin(agent)
                agent.lease_until_ms = max(
                    agent.lease_until_ms, self.now_ms + self.state.lease_ms()
                )
            self.run_once()
            if not self.state.live_jobs:
                return
        stuck = [self.state.jobs[job_id] for job_id in sorted(self.state.live_jobs)]
        stuck = [job for job in stuck if not self.is_rightly_stuck(job.id)]
        assert not stuck, stuck

    def run_once(self) -> None:
        for rule in ("do_place", "do_orders", "do_exits", "do_reports", "do_deadlines"):
            getattr(self, rule)()
        for agent in self.agents.values():
            while agent.orders:
                self.handle(agent, agent.orders.pop(0))

    def is_rightly_stuck(self, job_id: int) -> bool:
        """Fenced by something on a host that never came back: only an operator's word helps."""
        worker = self.state.workers[(job_id, "main", 0)]
        ghosts = {ghost.uuid for ghost in self.ghosts}
        for number in worker.fences:
            fence = self.state.attempts[(*worker.key, number)]
            if fence.placed is not None and fence.placed.node_uuid in ghosts:
                return True
        held = {
            (attempt.placed.node, attempt.placed.node_uuid)
            for attempt in self.state.attempts.sorted_rows()
            if attempt.placed is not None
            and attempt.ended is not None
            and not attempt.ended.is_tree_gone
        }
        return any(uuid in ghosts for _, uuid in held)

    def apply_uncordon(self, name: str) -> None:
        if name in self.state.nodes:
            self.apply(NodeChanged(node=name, unschedulable=False))

    def rejoin(self, agent: Agent) -> None:
        agent.start_number += 1
        answer = self.apply(
            NodeJoined(
                name=agent.name,
                node_uuid=agent.uuid,
                start_number=agent.start_number,
                nonce="n",
                store_id=agent.store,
                boot_id=agent.boot_id,
                agent_version="1",
                capacity=Capacity(cpu_millis=4000, memory_bytes=1 << 30, gpu_count=1),
            )
        )
        assert isinstance(answer, Joined)
        agent.session, agent.is_linked = answer.session, True
        self.send_inventory(agent)


def replace_entry(entry: Entry, now_ms: int, actor: str) -> Entry:
    return replace_struct(entry, log_time_ms=now_ms, wall_ms=WALL_MS + now_ms, actor=actor)


def replace_struct(struct: Any, **changes: object) -> Any:
    return msgspec.structs.replace(struct, **changes)
