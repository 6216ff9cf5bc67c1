"""Apply is total: no entry that decodes makes it raise or breaks an invariant."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.core import commands as c
from scheduler.core.apply import apply
from scheduler.core.invariants import check_state, check_step
from scheduler.core.lifecycle import CAUSES, EVIDENCE, OFFLINE_REASONS
from scheduler.core.settings import SETTINGS
from scheduler.core.snapshot import restore_state, snapshot_chunks
from scheduler.protocol.messages import Capacity, FinishFacts, Report, StartFacts
from scheduler.protocol.spec import JobSpec, Resources, Retry, TaskSpec
from tests.unit.core.harness import INCARNATION, Core

names = st.sampled_from(("a1", "a2", "", "zz"))
uuids = st.sampled_from(("a1-uuid", "a2-uuid", "x"))
numbers = st.integers(-3, 12) | st.sampled_from((2**40, -(2**40)))
texts = st.sampled_from(("", "x", "\ud7ff", "user:a"))
attempts = st.sampled_from(("1/main/0#1", "2/main/0#1", "3/main/0#1", "1/main/0#2", "x", "9"))
tokens = st.builds(
    lambda index, ordinal: f"{INCARNATION}.{index:016x}.{ordinal:06x}",
    st.integers(1, 14),
    st.integers(0, 2),
) | st.just("rubbish")

starts = st.builds(
    StartFacts,
    started_at_ms=numbers,
    pid=st.none() | numbers,
    worker=st.sampled_from(("1/main/0", "", "x", "2/main/0")),
)
finishes = st.builds(
    FinishFacts,
    cause=st.sampled_from((*CAUSES, "killed", "made_up", "")),
    ended_at_ms=numbers,
    start=st.none() | starts,
    exit_code=st.none() | st.integers(0, 3),
    evidence=st.sampled_from((*sorted(EVIDENCE), "hearsay")),
    cleanup=st.sampled_from(("", "stuck", "fenced")),
    is_tree_gone=st.booleans(),
    was_signalled=st.booleans(),
)
reports = st.builds(
    Report,
    kind=st.sampled_from(
        ("started", "finished", "not_started", "progress", "ready", "tree_gone", "odd")
    ),
    token=tokens,
    sequence=numbers,
    start=st.none() | starts,
    finish=st.none() | finishes,
    text=texts,
)
several = st.lists(reports, max_size=4).map(tuple)
tasks = st.builds(
    TaskSpec,
    command=st.just(("x",)),
    resources=st.builds(
        Resources, cpu_millis=st.sampled_from((0, 1000, 10**9)), gpu=st.integers(0, 2)
    ),
    replicas=st.integers(1, 3),
    retry=st.builds(Retry, limit=st.integers(0, 2), node_limit=st.integers(0, 2)),
    pending_timeout_ms=st.none() | st.integers(0, 5),
    on_disconnect=st.sampled_from((None, "fail", "unknown")),
    on_lease_end=st.sampled_from((None, "run", "kill", "freeze")),
)
jobs = st.builds(
    c.SubmittedJob,
    spec=st.builds(
        JobSpec,
        tasks=st.dictionaries(st.sampled_from(("main", "b")), tasks, min_size=1, max_size=2),
        fail_fast=st.sampled_from((None, False, True)),
        wait_for_capacity=st.booleans(),
        retention_ms=st.integers(0, 5),
        node=st.sampled_from((None, "a1", "zz")),
    ),
)
capacities = st.builds(
    Capacity, cpu_millis=st.integers(0, 9000), memory_bytes=st.just(0), gpu_count=st.integers(0, 2)
)
values = st.integers(-1, 9000) | st.sampled_from(("fail", "unknown", "adopt", "record", "x"))
changes = st.dictionaries(st.sampled_from((*SETTINGS, "odd")), values, max_size=2)

entries = st.one_of(
    st.builds(
        c.SubmitJobs,
        jobs=st.lists(jobs, max_size=2).map(tuple),
        key=st.sampled_from(("", "k")),
        body_digest=st.sampled_from(("d", "e")),
    ),
    st.builds(
        c.KillRequested,
        target=attempts | st.sampled_from(("1", "2", "1/main", "3#1")),
        cause=st.sampled_from(("user_cancel", "queue_purged", "odd")),
        why=texts,
        if_version=st.none() | numbers,
    ),
    st.builds(
        c.Placed,
        placements=st.lists(
            st.builds(
                c.Placement,
                attempt=attempts,
                node=names,
                gpu_indices=st.sampled_from(((), (0,), (1,), (0, 1), (-1,), (0, 0))),
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(c.AttemptReports, node=names, node_uuid=uuids, reports=several),
    st.builds(
        c.NodeJoined,
        name=names,
        node_uuid=uuids,
        start_number=numbers,
        nonce=texts,
        store_id=st.sampled_from(("s1", "s2")),
        boot_id=st.sampled_from(("b1", "b2")),
        agent_version=texts,
        capacity=capacities,
        is_old_session_heard=st.booleans(),
    ),
    st.builds(
        c.NodeInventory,
        node=names,
        node_uuid=uuids,
        session=st.integers(0, 14),
        items=several,
        lease_until_ms=numbers,
        is_last=st.booleans(),
    ),
    st.builds(
        c.NodeOffline,
        node=names,
        session=st.integers(0, 14),
        reason=st.sampled_from((*OFFLINE_REASONS, "odd")),
        lease_until_ms=numbers,
    ),
    st.builds(c.LeaderTookOver, term=numbers, leader=names),
    st.builds(c.DeadlinesPassed, limit=numbers),
    st.builds(
        c.NodeChanged,
        node=names,
        unschedulable=st.none() | st.booleans(),
        is_removed=st.booleans(),
        is_dead=st.booleans(),
    ),
    st.builds(c.ConfigChanged, changes=changes),
    st.builds(
        c.ClusterFounded,
        cluster_id=st.sampled_from(("c", "d")),
        incarnation=st.sampled_from((INCARNATION, "0123abcd0001")),
        settings=changes,
    ),
    st.builds(c.StartUnconfirmed, token=tokens, node=names),
    st.builds(c.Audit, what=texts),
)
stamped = st.tuples(entries, st.integers(-5, 400_000), st.sampled_from(("user:a", "", "agent:a1")))


def busy() -> Core:
    """A small cluster with a bit of everything under way."""
    core = Core()
    core.node("a1")
    core.given_running()
    core.node("a2")
    core.submit()
    core.place()
    core.submit(cpu=100_000, job={"wait_for_capacity": True})
    return core


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(stamped, min_size=1, max_size=10))
def test_no_entry_makes_apply_raise_or_breaks_an_invariant(
    history: list[tuple[c.Entry, int, str]],
) -> None:
    import msgspec

    core = busy()
    for entry, log_ms, actor in history:
        stamped_entry = msgspec.structs.replace(
            entry, log_time_ms=log_ms, wall_ms=log_ms, actor=actor
        )
        data = c.encode_entry(stamped_entry)
        before = core.state.view()
        apply(core.state, c.decode_entry(data), core.state.index + 1)
        assert check_state(core.state) + check_step(before, core.state) == []
    chunks = list(snapshot_chunks(core.state.view()))
    assert restore_state(chunks).digest() == core.state.digest()
