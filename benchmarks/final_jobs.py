"""A member's directory whose snapshot holds as many final jobs as one likes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from replication.config import ReplicationConfig
from replication.node import SNAPSHOTS_DIRECTORY, found_member, identity_of
from scheduler.core.snapshot import snapshot_chunks
from scheduler.core.state import ClusterState
from tests.unit.core.harness import Core
from wal.log import WriteAheadLog
from wal.snapshots import SnapshotInfo, SnapshotStore

#: Where the log goes on.
INDEX, TERM = 1_000, 1
#: Rows loaded at a time.
SLICE = 1_000


def state_of(count: int) -> ClusterState:
    """One succeeded job, driven through the state machine, and copies of its records."""
    core = Core()
    job_id, token = core.given_running()
    core.report(core.finished(token, "exit_zero", exit_code=0))
    (job,) = core.state.jobs.sorted_rows()
    (worker,) = core.state.workers.sorted_rows()
    (attempt,) = core.state.attempts.sorted_rows()
    first = attempt.placed
    assert job_id == job.id
    assert first is not None
    replace = msgspec.structs.replace

    def rows() -> Iterator[tuple[str, list[Any]]]:
        for name in ("nodes", "event_logs"):
            yield name, list(core.state.table(name).sorted_rows())
        for start in range(1, count + 1, SLICE):
            ids = range(start, min(start + SLICE, count + 1))
            yield "jobs", [replace(job, id=n, decided_by=f"{n}/main/0#1") for n in ids]
            yield "workers", [replace(worker, job=n) for n in ids]
            # A token of its own for each: the index of tokens is part of the cost.
            placed = [replace(first, token=f"{n:032x}") for n in ids]
            yield (
                "attempts",
                [replace(attempt, job=n, placed=p) for n, p in zip(ids, placed, strict=True)],
            )

    state = ClusterState()
    meta = replace(core.state.meta(), next_job=count + 1, index=INDEX, term=TERM)
    state.load(meta, rows())
    return state


def write_state(directory: Path, count: int) -> SnapshotInfo:
    """A snapshot file of such a state in `directory`."""
    store = SnapshotStore(directory)
    store.open()
    with store.writer(INDEX, TERM) as writer:
        for chunk in snapshot_chunks(state_of(count).view()):
            writer.write(chunk)
        return writer.commit()


def found_with(config: ReplicationConfig, info: SnapshotInfo) -> None:
    """Make the member's directory, with the snapshot as all that it holds."""
    found_member(config)
    store = SnapshotStore(config.data_dir / SNAPSHOTS_DIRECTORY)
    store.open()
    with info.path.open("rb") as file:
        store.install(iter(lambda: file.read(1 << 20), b""))
    log = WriteAheadLog.open(config.data_dir, identity=identity_of(config))
    log.reset(info.index, info.term)
    log.set_hard_state(info.term, None)
    log.sync()
    log.close()
