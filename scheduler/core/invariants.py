"""What must always hold (specification 4): `check_state` of one state, `check_step` of a change.

Both return violations as text, each beginning with the number of its invariant; an empty list is
good. Read only, and slow on purpose: they look at every record. Tests run them after every entry,
`scheduler.verify` over a whole log.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from scheduler.core import contact
from scheduler.core.aggregate import job_phase
from scheduler.core.lifecycle import (
    CAUSES,
    EVIDENCE,
    FAILED,
    KILLED,
    PENDING,
    PROVEN,
    RUNNING,
    SUCCEEDED,
    TERMINAL,
)
from scheduler.core.records import (
    Attempt,
    Job,
    Node,
    Worker,
    holds_place,
    is_waiting,
    needs_orders,
)
from scheduler.core.state import ClusterState, StateView
from scheduler.core.usage import Usage

SUCCESS_CAUSES = frozenset(name for name, cause in CAUSES.items() if cause.phase == SUCCEEDED)


def check_state(state: ClusterState) -> list[str]:
    """Violations that the state alone shows."""
    found: list[str] = []
    for attempt in state.attempts.sorted_rows():
        found += _check_attempt(state, attempt)
    for worker in state.workers.sorted_rows():
        found += _check_worker(state, worker)
    for job in state.jobs.sorted_rows():
        found += _check_job(state, job)
    for node in state.nodes.sorted_rows():
        found += _check_node(state, node)
    found += _check_registry(state)
    found += _check_keys(state)
    found += _check_indexes(state)
    return found


# ---- attempts ----------------------------------------------------------------------------------


def _check_attempt(state: ClusterState, attempt: Attempt) -> Iterator[str]:
    ended, started, placed = attempt.ended, attempt.started, attempt.placed
    if (attempt.phase in TERMINAL) != (ended is not None):
        yield f"3: {attempt} is {attempt.phase} but ended is {ended}"
    if attempt.phase == PENDING and started is not None:
        yield f"5: {attempt} is Pending but has started"
    if attempt.phase in (RUNNING, SUCCEEDED, FAILED) and started is None:
        yield f"5: {attempt} is {attempt.phase} and never passed through Running"
    if attempt.phase == RUNNING and placed is None:
        yield f"5: {attempt} runs nowhere"
    yield from _check_order(attempt)
    if ended is not None:
        yield from _check_end(state, attempt)
    if attempt.phase == RUNNING:
        unknown = contact.unknown_of(state, attempt)
        if unknown is not None and unknown.deadline_ms < unknown.since.log_ms:
            yield f"7: {attempt} is unknown with a deadline before its beginning"
    if placed is not None and state.tokens.get(placed.token) != attempt.key:
        yield f"3: token {placed.token} of {attempt} leads elsewhere"


def _check_order(attempt: Attempt) -> Iterator[str]:
    stamps = [attempt.created]
    stamps += [part.at for part in (attempt.placed, attempt.started, attempt.ended) if part]
    for earlier, later in pairwise(stamps):
        if later.index < earlier.index or later.log_ms < earlier.log_ms:
            yield f"5: the history of {attempt} goes back from {earlier} to {later}"


def _check_end(state: ClusterState, attempt: Attempt) -> Iterator[str]:
    ended = attempt.ended
    assert ended is not None
    cause = CAUSES.get(ended.cause)
    if cause is None or cause.phase != attempt.phase:
        yield f"6: {attempt} is {attempt.phase} with cause {ended.cause!r}"
    if ended.evidence not in EVIDENCE:
        yield f"6: {attempt} has evidence {ended.evidence!r}"
    if attempt.phase == KILLED and not ended.by:
        yield f"6: {attempt} is Killed by nobody"
    if attempt.kill is not None and attempt.phase != KILLED:
        yield f"2: {attempt} is {attempt.phase} although its kill was committed before"
    if attempt.phase == SUCCEEDED:
        yield from _check_success(state, attempt)


def _check_success(state: ClusterState, attempt: Attempt) -> Iterator[str]:
    ended = attempt.ended
    assert ended is not None
    if ended.evidence == "operator":
        return
    finish = ended.finish
    if ended.evidence not in PROVEN or finish is None:
        yield f"4: {attempt} is Succeeded by {ended.evidence}"
        return
    if finish.cause not in SUCCESS_CAUSES:
        yield f"4: {attempt} is Succeeded, its ledger says {finish.cause}"
    if attempt.adopts:
        number = int(attempt.adopts.rpartition("#")[2])
        lost = state.attempts.get((*attempt.worker, number))
        if lost is not None and (lost.late is None or lost.late.adopted_by != str(attempt)):
            yield f"4: {attempt} adopts {attempt.adopts}, which does not know of it"


# ---- workers and jobs --------------------------------------------------------------------------


def _check_worker(state: ClusterState, worker: Worker) -> Iterator[str]:
    current = state.attempts.get((*worker.key, worker.attempt))
    if current is None:
        yield f"3: {worker} has no attempt {worker.attempt}"
        return
    if worker.phase != current.phase:
        yield f"5: {worker} is {worker.phase}, its newest attempt {current.phase}"
    if (*worker.key, worker.attempt + 1) in state.attempts:
        yield f"3: {worker} has an attempt after its newest"
    for number in range(1, worker.attempt):
        attempt = state.attempts.get((*worker.key, number))
        if attempt is not None and attempt.ended is None:
            yield f"3: {attempt} lives beside {current}"
        if attempt is not None and attempt.replaced_by != number + 1:
            yield f"5: {attempt} was replaced by {attempt.replaced_by}"
    yield from _check_fences(state, worker)


def _check_fences(state: ClusterState, worker: Worker) -> Iterator[str]:
    expected = []
    for number in range(1, worker.attempt + 1):
        attempt = state.attempts.get((*worker.key, number))
        if attempt is None or attempt.ended is None:
            continue
        if attempt.is_unwanted or not attempt.ended.is_tree_gone:
            expected.append(number)
    if list(worker.fences) != expected:
        yield f"3: {worker} is fenced by {list(worker.fences)}, should be by {expected}"


def _check_job(state: ClusterState, job: Job) -> Iterator[str]:
    counts: dict[str, dict[str, int]] = {}
    for row in job.tasks:
        phases: dict[str, int] = {}
        for index in range(row.replicas):
            worker = state.workers.get((job.id, row.name, index))
            if worker is None:
                yield f"1: job {job.id} lacks worker {row.name}/{index}"
                continue
            phases[worker.phase] = phases.get(worker.phase, 0) + 1
        counts[row.name] = phases
        told = {
            PENDING: row.pending,
            RUNNING: row.running,
            SUCCEEDED: row.succeeded,
            FAILED: row.failed,
            KILLED: row.killed,
        }
        if {phase: count for phase, count in told.items() if count} != phases:
            yield f"5: task {job.id}/{row.name} counts {told}, has {phases}"
    if job.phase != job_phase(job):
        yield f"5: job {job.id} is {job.phase}, its workers say {job_phase(job)}"
    if (job.phase in TERMINAL) != (job.ended is not None):
        yield f"2: job {job.id} is {job.phase} but ended is {job.ended}"
    if job.phase in TERMINAL and not job.cause:
        yield f"6: job {job.id} is {job.phase} without a cause"
    if job.phase == KILLED and not job.by:
        yield f"6: job {job.id} is Killed by nobody"
    if job.id >= state.next_job:
        yield f"1: job {job.id} is beyond the counter {state.next_job}"


# ---- nodes, registry, keys ---------------------------------------------------------------------


def _check_node(state: ClusterState, node: Node) -> Iterator[str]:
    used = Usage()
    gpus: list[int] = []
    for key in sorted(state.on_node.get(node.name, ())):
        placed = state.attempts[key].placed
        assert placed is not None
        used.add(placed, 1)
        gpus += placed.gpu_indices
    if len(gpus) != len(set(gpus)):
        yield f"8: gpu indices of {node.name} are given twice: {sorted(gpus)}"
    told = state.usage.get(node.name, Usage())
    same = (
        used.cpu_millis == told.cpu_millis
        and used.memory_bytes == told.memory_bytes
        and used.disk_bytes == told.disk_bytes
        and used.gpu_indices == told.gpu_indices
        and {k: v for k, v in used.custom.items() if v}
        == {k: v for k, v in told.custom.items() if v}
    )
    if not same:
        yield f"8: allocations of {node.name} are {told}, its attempts say {used}"
    if node.phase == "Offline" and node.mark is None and node.claimed is not None:
        yield f"7: {node.name} is Offline without a mark"
    if node.phase == "Online" and node.claimed is None:
        yield f"7: {node.name} is Online and never told its inventory"


def check_capacity(state: ClusterState) -> list[str]:
    """Invariant 8's bound. Apart, since an agent may come back with less than it is running."""
    found = []
    for node in state.nodes.sorted_rows():
        used = state.usage.get(node.name, Usage())
        over = (
            used.cpu_millis > node.capacity.cpu_millis
            or used.memory_bytes > node.capacity.memory_bytes
            or len(used.gpu_indices) > node.capacity.gpu_count
        )
        if over:
            found.append(f"8: allocations of {node.name} exceed its capacity: {used}")
    return found


def _check_registry(state: ClusterState) -> Iterator[str]:
    total = 0
    by_node: dict[str, int] = {}
    for queue in state.registry.sorted_rows():
        total += len(queue.reports)
        by_node[queue.node] = by_node.get(queue.node, 0) + len(queue.reports)
        if queue.token in state.tokens:
            yield f"10: the registry holds {queue.token}, whose attempt exists"
    if total != state.registry_size or by_node != state.registry_by_node:
        yield f"10: the registry holds {total} {by_node}, counts {state.registry_size}"


def _check_keys(state: ClusterState) -> Iterator[str]:
    for key in state.keys.sorted_rows():
        jobs = [state.jobs.get(job_id) for job_id in key.job_ids]
        still_open = sum(job is not None and job.phase not in TERMINAL for job in jobs)
        if still_open != key.open_count:
            yield f"1: key {key.key!r} counts {key.open_count} open jobs, has {still_open}"


def _check_indexes(state: ClusterState) -> Iterator[str]:
    """The derived indexes say what the records say."""
    waiting = held = 0
    orders: set[tuple[str, object]] = set()
    for attempt in state.attempts.sorted_rows():
        if is_waiting(attempt):
            waiting += 1
            if attempt.key not in state.pending:
                yield f"12: {attempt} waits and nobody knows"
        held += holds_place(attempt)
        if needs_orders(attempt) and attempt.placed is not None:
            orders.add((attempt.placed.node, attempt.key))
    if waiting != len(state.pending):
        yield f"12: {len(state.pending)} attempts are indexed as waiting, {waiting} are"
    if held != sum(map(len, state.on_node.values())):
        yield "8: the index of places is wrong"
    indexed = {(node, key) for node, keys in state.todo.items() for key in keys}
    if indexed != orders:
        yield f"12: the index of orders is wrong: {indexed ^ orders}"
    counts: dict[str, int] = {}
    for job in state.jobs.sorted_rows():
        counts[job.phase] = counts.get(job.phase, 0) + 1
    if {phase: n for phase, n in state.jobs_by_phase.items() if n} != counts:
        yield f"5: jobs by phase are {counts}, the index says {state.jobs_by_phase}"


# ---- a step ------------------------------------------------------------------------------------


def check_step(before: StateView, after: ClusterState) -> list[str]:
    """Violations that one entry's change shows."""
    found: list[str] = []
    if after.clock_ms < before.meta.clock_ms:
        found.append(f"5: log time went back from {before.meta.clock_ms} to {after.clock_ms}")
    if after.next_job < before.meta.next_job:
        found.append("1: the job counter went back")
    for old in before.tables["attempts"].sorted_rows():
        found += _check_attempt_step(before, after, old)
    for job in before.tables["jobs"].sorted_rows():
        found += _check_job_step(after, job)
    return found


def _check_attempt_step(before: StateView, after: ClusterState, old: Attempt) -> Iterator[str]:
    new = after.attempts.get(old.key)
    if new is None:
        if old.ended is None:
            yield f"1: {old} vanished while it was {old.phase}"
        elif old.placed is not None and old.placed.token not in after.tombstones:
            yield f"1: {old} vanished without a tombstone"
        return
    if old.ended is not None:
        yield from _check_final_step(old, new)
        return
    if old.phase == RUNNING and new.phase == PENDING:
        yield f"5: {old} went back to Pending"
    if old.placed is not None and new.placed != old.placed:
        yield f"3: {old} was placed again"
    if old.kill is not None and new.kill != old.kill:
        yield f"2: the kill of {old} was changed"
    yield from _check_since(before, after, old, new)


def _check_final_step(old: Attempt, new: Attempt) -> Iterator[str]:
    assert old.ended is not None
    ended = new.ended
    if ended is None or new.phase != old.phase:
        yield f"2: {old} was {old.phase} and is {new.phase}"
        return
    same = (
        ended.cause == old.ended.cause
        and ended.evidence == old.ended.evidence
        and ended.by == old.ended.by
        and ended.at == old.ended.at
        and ended.finish == old.ended.finish
        and new.started == old.started
    )
    if not same:
        yield f"2: the end of {old} was changed from {old.ended} to {ended}"
    if old.ended.is_tree_gone and not ended.is_tree_gone:
        yield f"3: the tree of {old} was gone and lives again"


def _check_since(
    before: StateView, after: ClusterState, old: Attempt, new: Attempt
) -> Iterator[str]:
    """`transient_since` never moves forward while an attempt stays unknown."""
    if old.placed is None or new.ended is not None:
        return
    was_since = _since_in(before, old)
    unknown = contact.unknown_of(after, new)
    if was_since is None or unknown is None:
        return
    node = after.nodes.get(old.placed.node)
    was_node = before.tables["nodes"].get(old.placed.node)
    claimed = None if node is None else node.claimed
    if claimed is not None and was_node is not None and was_node.claimed != claimed:
        return  # It was claimed in between, or is marked by that very inventory.
    if unknown.since.log_ms > was_since:
        yield f"7: transient_since of {old} moved from {was_since} to {unknown.since.log_ms}"


def _since_in(before: StateView, attempt: Attempt) -> int | None:
    if attempt.mark is not None:
        return attempt.mark.since.log_ms
    assert attempt.placed is not None
    node = before.tables["nodes"].get(attempt.placed.node)
    if node is None:
        return None
    if node.mark is not None:
        since: int = node.mark.since.log_ms
        return since
    if node.claimed is None:
        return None
    for takeover in before.meta.takeovers:
        if takeover.at.index > node.claimed.index:
            return takeover.at.log_ms
    return None


def _check_job_step(after: ClusterState, old: Job) -> Iterator[str]:
    new = after.jobs.get(old.id)
    if new is None:
        if old.phase not in TERMINAL:
            yield f"1: job {old.id} vanished while it was {old.phase}"
        elif old.id not in after.job_tombstones:
            yield f"1: job {old.id} vanished without a tombstone"
        return
    if old.phase in TERMINAL and new != old:
        yield f"2: job {old.id} was {old.phase} and changed"
    if new.phase == FAILED and old.kill is not None:
        yield f"2: job {old.id} is Failed although it was killed before"


__all__ = ["check_capacity", "check_state", "check_step"]
