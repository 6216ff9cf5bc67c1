"""Commit, then apply: the loop that joins proposals, log, disk, peers and state machine.

One *turn* does, in this order:

    drain proposals -> append -> send to followers -> start a sync in the worker
        -> commit what a majority and the own disk hold -> apply for at most 2 ms -> resolve

and when the sync is done: the durable index moves, held acknowledgements leave, and the next turn
begins. Turns are started by whatever happened (a message, a proposal, a finished sync) and by a
timer; several causes before a turn make one turn. While a sync is under way no proposals are
drained: what arrives meanwhile is the next batch, and a lone proposal waits for nothing.

Invariants
  * Nothing is acknowledged, committed or applied here beyond `durable_index`.
  * An entry is given to the state machine once, in order. What it raises is a bug: the member stops
    before anything of it is acknowledged, and so it does when a sync fails.
  * Every proposal resolves (`proposals.py`).

Event loop only, except the sync itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from replication.config import ReplicationConfig
from replication.core import RaftCore
from replication.entries import command_of, encode_command
from replication.errors import DiskFull, NotLeader, OutcomeUnknown
from replication.guard import Guard
from replication.interface import Leadership, Role, StateMachine
from replication.journal import Batch
from replication.messages import RaftMessage
from replication.proposals import RETRY_AFTER_S, Done, Proposals
from replication.reads import ReadIndex
from replication.runtime import Runtime
from wal.errors import OutOfSpace

logger = logging.getLogger(__name__)

#: Longest stretch of applying in one turn: heartbeats and clients wait behind it.
APPLY_SLICE_S: Final = 0.002
#: Entries fetched from the log at a time while applying.
APPLY_FETCH: Final = 256
#: Proposals and bytes appended in one turn; the rest is the next batch.
DRAIN_ENTRIES_MAX: Final = 4_096
DRAIN_BYTES_MAX: Final = 8 * 1024 * 1024
#: Period of the turns that nothing else causes.
TICK_S: Final = 0.01
#: Followers learn a commit with the next append; without one, after this long.
COMMIT_NEWS_S: Final = 0.004
#: A batch that found no room on the disk is written again after this long.
RETRY_WRITE_S: Final = 0.5
#: A full disk is told of this often, at most: the log of the process may be on it, too.
FULL_NEWS_S: Final = 10.0
#: Commit times kept for the measured lag from commit to apply.
COMMIT_MARKS_MAX: Final = 4_096


class Pump:
    """Drives one member. `wake` may be called as often as one likes."""

    def __init__(
        self,
        config: ReplicationConfig,
        core: RaftCore,
        guard: Guard,
        machine: StateMachine,
        runtime: Runtime,
        *,
        applied_index: int,
        applied_term: int,
        on_applied: Callable[[int], None] = lambda _index: None,
        on_leadership: Callable[[Leadership], None] = lambda _leadership: None,
        on_fatal: Callable[[BaseException], None] = lambda _error: None,
    ) -> None:
        self._config = config
        self._core = core
        self._guard = guard
        self._machine = machine
        self._runtime = runtime
        self._on_applied = on_applied
        self._on_leadership = on_leadership
        self._on_fatal = on_fatal
        self.proposals = Proposals(config)
        self.reads = ReadIndex(core)
        self.applied_index = applied_index
        self.applied_term = applied_term
        #: Payload applied since the start; the snapshot engine's measure.
        self.applied_bytes = 0
        core.set_applied(applied_index)
        self.leadership = Leadership(term=core.term, role=Role.FOLLOWER, leader=None)
        self.apply_lag_ms = 0.0
        self._commit_marks: deque[tuple[int, float]] = deque(maxlen=COMMIT_MARKS_MAX)
        self._commit_seen = core.commit_index
        self._commit_told = core.commit_index
        self._commit_news_at = 0.0
        self._is_scheduled = False
        self._is_syncing = False
        #: A batch found no room on the disk and is tried again: nothing is appended meanwhile.
        self._is_write_waiting = False
        self._full_news_at = 0.0
        self._handover_at = 0.0
        self._handovers = 0
        guard.has_room = self._has_room
        self._is_stopped = False
        #: Set while leadership is handed over: nothing new is appended.
        self.is_paused = False
        self.syncs = 0
        self.error: BaseException | None = None

    # Inputs.

    def start(self) -> None:
        """Begin with the timer's turns."""
        self._tick()

    def wake(self) -> None:
        """Ask for a turn."""
        if not self._is_scheduled and not self._is_stopped:
            self._is_scheduled = True
            self._runtime.call_soon(self._turn)

    def propose(self, command: bytes, done: Done, *, is_urgent: bool = False) -> None:
        """Queue a command; `done` is called once, never from within this call."""
        refusal: Exception | None
        if self._is_stopped:
            refusal = OutcomeUnknown("this member has stopped")
        elif not self._core.is_leading:
            refusal = NotLeader(self.leadership.leader)
        elif self._is_write_waiting:
            refusal = _disk_full()
        else:
            refusal = self.proposals.refusal(command)
        if refusal is not None:
            error = refusal
            self._runtime.call_soon(lambda: done(error))
            return
        deadline = self._runtime.now() + self._config.proposal_deadline_ms / 1000
        self.proposals.add(command, done, deadline=deadline, is_urgent=is_urgent)
        self.wake()

    def receive(self, member: str, message: RaftMessage) -> None:
        """Handle a peer's message."""
        if self._is_stopped:
            return
        try:
            self._guard.receive(member, message)
        except OutOfSpace as error:
            # What did not fit is not acknowledged; the leader sends it again.
            self._tell_full(error)
        except Exception as error:  # noqa: BLE001 - fail-stop, whatever it was
            self.fail(error)
            return
        self._note_leadership()
        self.wake()

    def set_connected(self, member: str, *, is_connected: bool) -> None:
        if not self._is_stopped:
            self._guard.set_connected(member, is_connected=is_connected)
            self._note_leadership()
            self.wake()

    def stop(self, reason: str) -> None:
        """Take no further part. Idempotent."""
        if not self._is_stopped:
            self._is_stopped = True
            self.proposals.fail_all(reason)
            self.reads.fail(OutcomeUnknown(reason))

    def fail(self, error: BaseException) -> None:
        """Stop because of `error`, before anything else is acknowledged."""
        if self._is_stopped:
            return
        logger.critical("member_failed error=%r", error, exc_info=error)
        self.error = error
        self.stop(f"this member failed: {error}")
        self._on_fatal(error)

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    @property
    def is_syncing(self) -> bool:
        """Whether a batch is in the worker."""
        return self._is_syncing

    def note_installed(self, index: int, term: int) -> None:
        """The state machine was replaced by a snapshot at (index, term)."""
        self._core.jump_to_snapshot(index)
        self.applied_index, self.applied_term = index, term
        self._commit_marks.clear()
        self._commit_seen = max(self._commit_seen, index)
        self.proposals.resolve_jumped(index)
        self._guard.note_installed(index)
        self._on_applied(index)
        self.wake()

    def note_committed(self, index: int) -> None:
        """Everything up to `index`, which is in the log, is known to be committed."""
        self._core.note_committed(index)
        self._guard.note_installed(index)
        self.wake()

    # Turns.

    def _tick(self) -> None:
        if not self._is_stopped:
            now = self._runtime.now()
            self.proposals.expire(now)
            self.reads.expire(now)
            self._yield_if_full(now)
            self.wake()
            self._runtime.call_later(TICK_S, self._tick)

    def _turn(self) -> None:
        self._is_scheduled = False
        if self._is_stopped:
            return
        try:
            self._append_proposals()
            self._guard.tick()
            self._send()
            self._start_sync()
            self._note_leadership()
            self._apply_slice()
            self.reads.advance()
        except Exception as error:  # noqa: BLE001 - fail-stop, whatever it was
            self.fail(error)

    def _append_proposals(self) -> None:
        core = self._core
        if self._is_syncing or self.is_paused or not core.is_leading:
            return
        size = 0
        for _ in range(DRAIN_ENTRIES_MAX):
            proposal = self.proposals.take()
            if proposal is None:
                return
            payload = encode_command(proposal.command)
            try:
                index = core.append(payload, may_use_reserve=proposal.is_urgent)
            except OutOfSpace as error:
                # Nothing was appended, so the proposer may try again when there is room. What is
                # urgent and waits behind it may still fit.
                self._tell_full(error)
                proposal.done(_disk_full())
                continue
            self.proposals.note_appended(proposal, index=index, term=core.term)
            size += len(payload)
            if size >= DRAIN_BYTES_MAX:
                return

    def _send(self) -> None:
        core = self._core
        if not core.is_leading:
            return
        now = self._runtime.now()
        commit_index = core.commit_index
        if core.has_unsent():
            core.broadcast()
            self._commit_told = commit_index
        elif commit_index == self._commit_told:
            self._commit_news_at = now + COMMIT_NEWS_S
        elif now >= self._commit_news_at:
            core.broadcast()
            self._commit_told = commit_index

    def _start_sync(self) -> None:
        if self._is_syncing:
            return
        storage = self._core.journal.storage
        batch = storage.take_batch()
        if batch is None:
            return
        self._is_syncing = True
        self._write(batch)

    def _write(self, batch: Batch) -> None:
        storage = self._core.journal.storage
        self._runtime.run_in_worker(
            lambda: storage.write_batch(batch), lambda error: self._finish_sync(batch, error)
        )

    def _finish_sync(self, batch: Batch, error: BaseException | None) -> None:
        if self._is_stopped:
            return
        if isinstance(error, OutOfSpace):
            self._tell_full(error)
            self._is_write_waiting = True
            while (proposal := self.proposals.take()) is not None:
                proposal.done(_disk_full())
            self._runtime.call_later(RETRY_WRITE_S, lambda: self._write(batch))
            return
        self._is_syncing = self._is_write_waiting = False
        if error is not None:
            # What a failed sync left in the page cache may read back well and never reach the
            # disk, so nothing of the batch may ever count: stop, and recover from disk or peers.
            self.fail(error)
            return
        self.syncs += 1
        try:
            self._core.journal.storage.finish_batch(batch)
            self._guard.release_acks()
        except Exception as raised:  # noqa: BLE001 - fail-stop, whatever it was
            self.fail(raised)
            return
        self._turn()

    def _has_room(self) -> bool:
        return not self._is_write_waiting and self._core.journal.storage.has_room

    def _yield_if_full(self, now: float) -> None:
        """A leader that can record nothing more hands over; a member in the same need declines."""
        core = self._core
        if not core.is_leading or self._has_room() or now < self._handover_at:
            return
        self._handover_at = now + RETRY_WRITE_S
        peers = core.connected_peers()
        # One at a time, each in its turn: two candidates would split the votes.
        turn = self._handovers % max(1, len(peers))
        self._handovers += 1
        for member in peers[turn:] + peers[:turn]:
            if core.hand_over(member):
                logger.warning("full_disk_hands_over target=%s", member)
                return

    def _tell_full(self, error: OutOfSpace) -> None:
        now = self._runtime.now()
        if now >= self._full_news_at:
            self._full_news_at = now + FULL_NEWS_S
            logger.error("disk_full error=%s", error)

    def _apply_slice(self) -> None:
        core = self._core
        now = self._runtime.now()
        if core.commit_index > self._commit_seen:
            self._commit_seen = core.commit_index
            self._commit_marks.append((core.commit_index, now))
        limit = min(core.commit_index, core.journal.durable_index)
        first = self.applied_index + 1
        if first > limit:
            return
        end = now + APPLY_SLICE_S
        while self.applied_index < limit:
            start = self.applied_index + 1
            stop = min(limit, self.applied_index + APPLY_FETCH) + 1
            for payload, index, term in core.journal.storage.entries(start, stop):
                self._apply(payload, index, term)
                if self._runtime.now() >= end:
                    break
            if self._runtime.now() >= end:
                break
        core.set_applied(self.applied_index)
        self._measure_lag()
        self._on_applied(self.applied_index)
        if self.applied_index < limit:
            self.wake()

    def _apply(self, payload: bytes, index: int, term: int) -> None:
        assert index == self.applied_index + 1
        command = command_of(payload)
        result = None if command is None else self._machine.apply(index, term, command)
        self.applied_index, self.applied_term = index, term
        self.applied_bytes += len(payload)
        self.proposals.resolve_applied(index, term, result)

    def _measure_lag(self) -> None:
        marks = self._commit_marks
        while marks and marks[0][0] <= self.applied_index:
            _, committed_at = marks.popleft()
            self.apply_lag_ms = (self._runtime.now() - committed_at) * 1000

    def _note_leadership(self) -> None:
        core = self._core
        leader = self._guard.elections.known_leader()
        was = self.leadership
        if was.role is core.role and was.term == core.term and was.leader == leader:
            return
        self.leadership = Leadership(term=core.term, role=core.role, leader=leader)
        if core.is_leading:
            self.proposals.note_leading()
        elif was.role is Role.LEADER:
            self.is_paused = False
            self.proposals.note_deposed(leader, now=self._runtime.now())
        logger.info("leadership term=%d role=%s leader=%s", core.term, core.role, leader)
        self._on_leadership(self.leadership)


def _disk_full() -> DiskFull:
    return DiskFull("the disk of the leader's log is full", retry_after_s=RETRY_AFTER_S)
