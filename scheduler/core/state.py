"""The replicated state and what is derived from it.

Records live in tables and change only through `put_*`/`delete_*` here, which keep the indexes
true; only `scheduler.core.apply` and its handlers call these. Everything outside the tables and
`Meta` is derived: `rebuild` makes it again from the records alone. Event loop only, except views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final

from scheduler.core import due_times, fencing
from scheduler.core.due import (
    DISCONNECT,
    JOB_RETENTION,
    JOB_TOMBSTONE_RETENTION,
    KEY_RETENTION,
    MARKED,
    PENDING_LIMIT,
    REGISTRY,
    TOMBSTONE_RETENTION,
    UNKNOWN,
    DueIndex,
)
from scheduler.core.lifecycle import TERMINAL
from scheduler.core.pending import PendingIndex, make_shape
from scheduler.core.records import (
    Attempt,
    AttemptKey,
    EventLog,
    IdempotencyKey,
    Incident,
    Job,
    JobTombstone,
    Meta,
    Node,
    Orphan,
    RegistryQueue,
    Stamp,
    Takeover,
    Tombstone,
    Worker,
    WorkerKey,
    holds_place,
    is_waiting,
    needs_orders,
)
from scheduler.core.settings import SETTINGS
from scheduler.core.tables import DIGEST_MODULUS, Table, TableView, encode_record, hash_record
from scheduler.core.usage import Usage
from scheduler.protocol.spec import JobSpec, TaskSpec

#: Table name -> row type, in the order of snapshots. Names are in stored bytes: never change one.
TABLES: Final[dict[str, type]] = {
    "jobs": Job,
    "workers": Worker,
    "attempts": Attempt,
    "nodes": Node,
    "keys": IdempotencyKey,
    "registry": RegistryQueue,
    "tombstones": Tombstone,
    "job_tombstones": JobTombstone,
    "orphans": Orphan,
    "event_logs": EventLog,
    "incidents": Incident,
}


#: Specifications remembered for sharing.
SPECS_SHARED_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class StateView:
    """The state of one index. Immutable; may be read in any thread."""

    meta: Meta
    tables: dict[str, TableView[Any, Any]]


class ClusterState:
    """Everything the controllers agree on. See the module's head."""

    def __init__(self) -> None:
        self.jobs: Table[int, Job] = Table("jobs")
        self.workers: Table[WorkerKey, Worker] = Table("workers")
        self.attempts: Table[AttemptKey, Attempt] = Table("attempts")
        self.nodes: Table[str, Node] = Table("nodes")
        self.keys: Table[tuple[str, str], IdempotencyKey] = Table("keys")
        self.registry: Table[tuple[str, str], RegistryQueue] = Table("registry")
        self.tombstones: Table[str, Tombstone] = Table("tombstones")
        self.job_tombstones: Table[int, JobTombstone] = Table("job_tombstones")
        self.orphans: Table[str, Orphan] = Table("orphans")
        self.event_logs: Table[str, EventLog] = Table("event_logs")
        self.incidents: Table[int, Incident] = Table("incidents")

        self.cluster_id = ""
        self.incarnation = ""
        self.founded: Stamp | None = None
        self.next_job = 1
        self.next_incident = 1
        #: Log time of the newest entry: never goes back.
        self.clock_ms = 0
        self.wall_ms = 0
        #: Index of the newest applied entry.
        self.index = 0
        self.term = 0
        self.leader = ""
        self.takeovers: tuple[Takeover, ...] = ()
        self.overrides: dict[str, int | str] = {}
        self.counters: dict[str, int] = {}
        self.old_lease_ms = 0
        self.old_lease_until_ms = 0
        self._clear_indexes()

    def _clear_indexes(self) -> None:
        self.settings: dict[str, int | str] = {n: d for n, (_, d) in SETTINGS.items()}
        self.settings.update(self.overrides)
        self.tokens: dict[str, AttemptKey] = {}
        #: Attempts that hold a place on a node, and those its agent may need orders for.
        self.on_node: dict[str, dict[AttemptKey, None]] = {}
        self.todo: dict[str, dict[AttemptKey, None]] = {}
        self.usage: dict[str, Usage] = {}
        self.pending = PendingIndex()
        self.due = DueIndex(partial(due_times.due_at, self))
        self.jobs_by_phase: dict[str, int] = {}
        self.live_jobs: dict[int, None] = {}
        self.registry_size = 0
        self.registry_by_node: dict[str, int] = {}
        self.registry_nodes: dict[str, dict[str, None]] = {}
        #: Nodes whose orders may have changed since this was last cleared.
        self.touched_nodes: dict[str, None] = {}
        #: Node names in order, for placement and reasons.
        self.node_names: list[str] = []
        #: One value for equal specifications: most of a pending job's memory.
        self._specs: dict[bytes, JobSpec] = {}
        #: Memo of pending reasons by shape; emptied by every apply.
        self.reasons_memo: dict[Any, Any] = {}

    # ---- settings and clock --------------------------------------------------------------------

    def setting_ms(self, name: str) -> int:
        """A duration or number among the cluster's settings."""
        value = self.settings[name]
        assert isinstance(value, int)
        return value

    def setting_text(self, name: str) -> str:
        value = self.settings[name]
        assert isinstance(value, str)
        return value

    def count(self, name: str, amount: int = 1) -> None:
        """Raise a replicated counter."""
        self.counters[name] = self.counters.get(name, 0) + amount

    @property
    def takeover_index(self) -> int:
        """Index of the newest LeaderTookOver: who claimed before it is unheard."""
        return self.takeovers[-1].at.index if self.takeovers else 0

    def lease_ms(self) -> int:
        """The longest lease that may be running now (specification 3.5)."""
        current = self.setting_ms("transient_timeout")
        if self.clock_ms < self.old_lease_until_ms:
            return max(current, self.old_lease_ms)
        return current

    def shared_spec(self, spec: JobSpec) -> JobSpec:
        """`spec`, or an equal one that is kept already."""
        key = encode_record(spec)
        known = self._specs.get(key)
        if known is not None:
            return known
        if len(self._specs) >= SPECS_SHARED_MAX:
            self._specs.clear()
        self._specs[key] = spec
        return spec

    def task_spec(self, attempt: Attempt | Worker) -> TaskSpec:
        return self.jobs[attempt.job].spec.tasks[attempt.task]

    # ---- jobs and workers ----------------------------------------------------------------------

    def put_job(self, job: Job) -> None:
        old = self.jobs.get(job.id)
        self.jobs.put(job.id, job)
        if old is None or old.phase != job.phase:
            counts = self.jobs_by_phase
            if old is not None:
                counts[old.phase] -= 1
            counts[job.phase] = counts.get(job.phase, 0) + 1
            if job.phase in TERMINAL:
                self.live_jobs.pop(job.id, None)
                self.due.note(JOB_RETENTION, job.id)
            else:
                self.live_jobs[job.id] = None

    def delete_job(self, job: Job) -> None:
        self.jobs.delete(job.id)
        self.jobs_by_phase[job.phase] -= 1
        self.live_jobs.pop(job.id, None)

    def note_job_retention(self, job_id: int) -> None:
        """Something that kept a final job's record may be gone."""
        self.due.note(JOB_RETENTION, job_id)

    def put_worker(self, worker: Worker) -> None:
        key = (worker.job, worker.task, worker.index)
        old = self.workers.get(key)
        self.workers.put(key, worker)
        if old is not None and (old.fences != worker.fences or old.avoid != worker.avoid):
            self.refresh_pending((*key, worker.attempt))

    # ---- attempts ------------------------------------------------------------------------------

    def put_attempt(self, new: Attempt) -> None:
        key = (new.job, new.task, new.index, new.number)
        old = self.attempts.get(key)
        self.attempts.put(key, new)
        placed = new.placed
        if placed is not None:
            self._index_placed(key, old, new)
        if is_waiting(new):
            self._index_waiting(key, new)
        elif old is not None and is_waiting(old):
            self.pending.discard(key)
        if new.mark is not None:
            self.due.note(MARKED, key)

    def _index_placed(self, key: AttemptKey, old: Attempt | None, new: Attempt) -> None:
        placed = new.placed
        assert placed is not None
        node = placed.node
        held = old is not None and holds_place(old)
        if old is None or old.placed is None:
            self.tokens[placed.token] = key
        if holds_place(new) != held:
            usage = self.usage.get(node)
            if usage is None:
                usage = self.usage[node] = Usage()
            usage.add(placed, -1 if held else 1)
            if held:
                del self.on_node[node][key]
            else:
                self.on_node.setdefault(node, {})[key] = None
                self.due.note(UNKNOWN, node)
        had = old is not None and needs_orders(old)
        if needs_orders(new):
            self.todo.setdefault(node, {})[key] = None
            self.touched_nodes[node] = None
        elif had:
            del self.todo[node][key]
            self.touched_nodes[node] = None

    def _index_waiting(self, key: AttemptKey, new: Attempt) -> None:
        job = self.jobs[new.job]
        spec = job.spec.tasks[new.task]
        worker = self.workers[new.worker]
        shape = make_shape(
            spec.resources,
            priority=job.spec.priority,
            node=job.spec.node or "",
            avoid=worker.avoid,
        )
        ready_ms = fencing.ready_ms(self, new, worker)
        self.pending.add(key, shape, ready_ms=ready_ms, now_ms=self.clock_ms)
        if spec.pending_timeout_ms is not None:
            self.due.note(PENDING_LIMIT, key)

    def refresh_pending(self, key: AttemptKey) -> None:
        """The attempt's fences or backoff changed: put it where it belongs."""
        attempt = self.attempts.get(key)
        if attempt is not None and is_waiting(attempt):
            self._index_waiting(key, attempt)

    def delete_attempt(self, attempt: Attempt) -> None:
        """Remove a record that holds nothing any more."""
        assert not holds_place(attempt)
        key = attempt.key
        self.attempts.delete(key)
        if attempt.placed is not None:
            self.tokens.pop(attempt.placed.token, None)
            if needs_orders(attempt):
                self.todo[attempt.placed.node].pop(key, None)

    def attempt_of_token(self, token: str) -> Attempt | None:
        key = self.tokens.get(token)
        return None if key is None else self.attempts.get(key)

    # ---- nodes, registry, the rest -------------------------------------------------------------

    def put_node(self, node: Node) -> None:
        is_new = node.name not in self.nodes
        self.nodes.put(node.name, node)
        if is_new:
            self.node_names = sorted([*self.node_names, node.name])
        self.touched_nodes[node.name] = None
        self.due.note(UNKNOWN, node.name)
        if node.disconnect is not None:
            self.due.note(DISCONNECT, node.name)

    def delete_node(self, name: str) -> None:
        self.nodes.delete(name)
        self.node_names = [other for other in self.node_names if other != name]

    def put_registry(self, queue: RegistryQueue) -> None:
        old = self.registry.get(queue.key)
        grown = len(queue.reports) - (0 if old is None else len(old.reports))
        self.registry.put(queue.key, queue)
        self._count_registry(queue, grown)
        self.registry_nodes.setdefault(queue.token, {})[queue.node] = None
        self.due.note(REGISTRY, queue.key)

    def delete_registry(self, queue: RegistryQueue) -> None:
        self.registry.delete(queue.key)
        self._count_registry(queue, -len(queue.reports))
        nodes = self.registry_nodes[queue.token]
        del nodes[queue.node]
        if not nodes:
            del self.registry_nodes[queue.token]

    def _count_registry(self, queue: RegistryQueue, amount: int) -> None:
        self.registry_size += amount
        left = self.registry_by_node.get(queue.node, 0) + amount
        if left:
            self.registry_by_node[queue.node] = left
        else:
            self.registry_by_node.pop(queue.node, None)

    def put_key(self, key: IdempotencyKey) -> None:
        self.keys.put((key.principal, key.key), key)
        self.due.note(KEY_RETENTION, (key.principal, key.key))

    def put_tombstone(self, stone: Tombstone) -> None:
        self.tombstones.put(stone.token, stone)
        self.due.note(TOMBSTONE_RETENTION, stone.token)

    def put_job_tombstone(self, stone: JobTombstone) -> None:
        self.job_tombstones.put(stone.job, stone)
        self.due.note(JOB_TOMBSTONE_RETENTION, stone.job)

    # ---- views, digest, restore ----------------------------------------------------------------

    def table(self, name: str) -> Table[Any, Any]:
        assert name in TABLES
        table: Table[Any, Any] = getattr(self, name)
        return table

    def meta(self) -> Meta:
        """The cluster's own record."""
        return Meta(
            cluster_id=self.cluster_id,
            incarnation=self.incarnation,
            founded=self.founded,
            next_job=self.next_job,
            next_incident=self.next_incident,
            clock_ms=self.clock_ms,
            wall_ms=self.wall_ms,
            index=self.index,
            term=self.term,
            leader=self.leader,
            takeovers=self.takeovers,
            settings=dict(self.overrides),
            counters=dict(self.counters),
            old_lease_ms=self.old_lease_ms,
            old_lease_until_ms=self.old_lease_until_ms,
        )

    def view(self) -> StateView:
        """The state as it is now. Costs some list copies, whatever its size."""
        return StateView(self.meta(), {name: self.table(name).view() for name in TABLES})

    def digest(self) -> str:
        """Digest of every record, as hex: equal on all replicas at equal indexes.

        Costs what changed since it was last asked for.
        """
        total = hash_record("meta", self.meta())
        for name in TABLES:
            total += self.table(name).digest
        return f"{total % DIGEST_MODULUS:032x}"

    def load(self, meta: Meta, rows: Iterable[tuple[str, list[Any]]]) -> None:
        """Take over a snapshot's records, by table. The state was empty; `rebuild` must follow."""
        self.cluster_id, self.incarnation = meta.cluster_id, meta.incarnation
        self.founded, self.next_job = meta.founded, meta.next_job
        self.next_incident = meta.next_incident
        self.clock_ms, self.wall_ms, self.index = meta.clock_ms, meta.wall_ms, meta.index
        self.term, self.leader, self.takeovers = meta.term, meta.leader, meta.takeovers
        self.overrides, self.counters = dict(meta.settings), dict(meta.counters)
        self.old_lease_ms = meta.old_lease_ms
        self.old_lease_until_ms = meta.old_lease_until_ms
        for name, part in rows:
            self.table(name).load(part, _KEY_OF[name])

    def dismantle(self) -> None:
        """Let go of a state that nobody uses any more, some records at a time. Any thread.

        A million records freed at once would stop every thread; and the state refers to itself, so
        that only the garbage collector would ever free it.
        """
        for name in TABLES:
            self.table(name).dismantle()
        while self.tokens:
            self.tokens.popitem()
        self._clear_indexes()

    def rebuild(self) -> None:
        """Make every index again from the records."""
        self._clear_indexes()
        for node in self.nodes.sorted_rows():
            self.put_node(node)
        self.node_names = self.nodes.sorted_keys()
        jobs, attempts = list(self.jobs.sorted_rows()), list(self.attempts.sorted_rows())
        for job in jobs:
            self.jobs_by_phase[job.phase] = self.jobs_by_phase.get(job.phase, 0) + 1
            if job.phase in TERMINAL:
                self.due.note(JOB_RETENTION, job.id)
            else:
                self.live_jobs[job.id] = None
        for attempt in attempts:
            if attempt.placed is not None:
                self._index_placed(attempt.key, None, attempt)
            if is_waiting(attempt):
                self._index_waiting(attempt.key, attempt)
            if attempt.mark is not None:
                self.due.note(MARKED, attempt.key)
        for queue in self.registry.sorted_rows():
            self._count_registry(queue, len(queue.reports))
            self.registry_nodes.setdefault(queue.token, {})[queue.node] = None
            self.due.note(REGISTRY, queue.key)
        for key in self.keys.sorted_keys():
            self.due.note(KEY_RETENTION, key)
        for token in self.tombstones.sorted_keys():
            self.due.note(TOMBSTONE_RETENTION, token)
        for job_id in self.job_tombstones.sorted_keys():
            self.due.note(JOB_TOMBSTONE_RETENTION, job_id)


#: Table name -> how a row's key is made.
_KEY_OF: Final[dict[str, Callable[[Any], Any]]] = {
    "jobs": attrgetter("id"),
    "workers": attrgetter("job", "task", "index"),
    "attempts": attrgetter("job", "task", "index", "number"),
    "nodes": attrgetter("name"),
    "keys": attrgetter("principal", "key"),
    "registry": attrgetter("token", "node"),
    "tombstones": attrgetter("token"),
    "job_tombstones": attrgetter("job"),
    "orphans": attrgetter("token"),
    "event_logs": attrgetter("object"),
    "incidents": attrgetter("number"),
}
