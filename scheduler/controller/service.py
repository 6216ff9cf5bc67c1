"""All that the HTTP API may ask of a controller (specification 6.4). Event loop only.

Writes are proposed here when this controller leads and raise NotLeaderHere when it does not: the
API forwards them. Reads show this controller's own state; await `read` first.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from replication.errors import NotLeader, ProposalError
from replication.interface import ReplicatedLog
from scheduler.controller.config import ControllerConfig, parse_setting, settings_mistakes
from scheduler.controller.errors import (
    NotLeaderHere,
    ServiceError,
    from_proposal,
    from_rejection,
)
from scheduler.controller.leader import Leader
from scheduler.controller.metrics import Metrics
from scheduler.controller.sessions import AgentPort
from scheduler.controller.state_machine import ClusterMachine
from scheduler.controller.status import cluster_view
from scheduler.controller.urgency import is_urgent
from scheduler.controller.watch import EventHub
from scheduler.core import queries
from scheduler.core.commands import (
    ConfigChanged,
    Entry,
    KillRequested,
    NodeChanged,
    SubmitJobs,
    SubmittedJob,
)
from scheduler.core.results import Done, KillAnswer, Rejected, Submitted
from scheduler.protocol.spec import JobSpec

#: A read waits this long for a quorum or for its index, then says that there is none.
READ_TIMEOUT_S: Final = 5.0
#: A page's cursor: the id below which it goes on.
CURSOR: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
#: Jobs of a page, unless told.
JOBS_PAGE: Final = 100
#: A write waits this long for a takeover that has begun.
TAKEOVER_TIMEOUT_S: Final = 2.0

View = dict[str, Any]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class AsOf:
    """The point in the log that an answer shows."""

    index: int
    #: Wall-clock label of that entry, Unix ms.
    time_ms: int
    leader: str | None


class Service:
    """One controller, as the API sees it."""

    def __init__(
        self,
        *,
        config: ControllerConfig,
        log: ReplicatedLog,
        machine: ClusterMachine,
        leader: Leader,
        port: AgentPort,
        hub: EventHub,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._log = log
        self._machine = machine
        self._leader = leader
        self._port = port
        self._hub = hub
        self._metrics = metrics

    # ---- writes --------------------------------------------------------------------------------

    async def submit(
        self, specs: Sequence[JobSpec], *, user: str, key: str, body_digest: str
    ) -> tuple[Submitted, int]:
        """Submit jobs, all or nothing. Returns once they are committed and applied here.

        Raises ServiceError; with `outcome_unknown` the same `key` finds out what became of it.
        """
        jobs = tuple(SubmittedJob(spec=spec, user=user) for spec in specs)
        entry = SubmitJobs(jobs=jobs, key=key, body_digest=body_digest)
        return await self._propose(entry, Submitted, user=user)

    async def kill(
        self,
        target: str,
        *,
        user: str,
        why: str,
        if_version: int | None,
        cause: str = "user_cancel",
    ) -> tuple[KillAnswer, int]:
        """End a job, worker or attempt for good. Raises ServiceError."""
        entry = KillRequested(target=target, cause=cause, why=why, if_version=if_version)
        return await self._propose(entry, KillAnswer, user=user)

    async def configure(self, changes: dict[str, int | str], *, user: str) -> int:
        """Change cluster-wide settings, all or nothing. Returns the index. Raises ServiceError."""
        parsed: dict[str, int | str] = {}
        mistakes = []
        for name, value in changes.items():
            try:
                parsed[name] = parse_setting(name, value)
            except ValueError as error:
                mistakes.append(f"{name}: {error}")
        if not mistakes:
            mistakes = settings_mistakes({**self.settings(), **parsed})
        if mistakes:
            raise ServiceError("invalid_setting", "; ".join(mistakes), kind="invalid")
        _, index = await self._propose(ConfigChanged(changes=parsed), Done, user=user)
        return index

    async def change_node(self, name: str, *, unschedulable: bool, why: str, user: str) -> int:
        """Cordon or uncordon a node. Returns the index. Raises ServiceError."""
        entry = NodeChanged(node=name, unschedulable=unschedulable, why=why)
        _, index = await self._propose(entry, Done, user=user)
        return index

    async def _propose(
        self, entry: Entry, answer: type[Answer], *, user: str
    ) -> tuple[Answer, int]:
        # Just elected, the takeover is a matter of milliseconds: better waited for than refused.
        duties = await self._leader.wait_open(timeout_s=TAKEOVER_TIMEOUT_S)
        if duties is None:
            raise self._not_leader()
        command = duties.lead.encode(entry, actor=f"user:{user}")
        try:
            with self._metrics.propose_s.time():
                applied = await self._log.propose(command, is_urgent=is_urgent(entry))
        except ProposalError as error:
            raise from_proposal(error, leader_http=self.leader_http()) from None
        if isinstance(applied.result, Rejected):
            raise from_rejection(applied.result)
        assert isinstance(applied.result, answer), applied.result
        return applied.result, applied.index

    def _not_leader(self) -> ServiceError:
        leader = self._log.leadership.leader
        if leader == self._config.name:
            # Elected, and still taking over: nobody else can be asked.
            return NotLeaderHere(None, None)
        return NotLeaderHere(leader, self.leader_http())

    # ---- reads ---------------------------------------------------------------------------------

    async def read(
        self,
        *,
        consistency: Literal["linearizable", "stale"] = "linearizable",
        min_index: int | None = None,
    ) -> AsOf:
        """Wait until this controller's state is recent enough; the views then show it.

        Linearizable: every write acknowledged anywhere before this call. `min_index`: at least that
        entry. Raises ServiceError (no leader, no quorum, or the index did not come in time).
        """
        try:
            if consistency == "linearizable":
                await self._log.read_barrier(timeout_s=READ_TIMEOUT_S)
            if min_index is not None and min_index > self._log.applied_index:
                await self._log.wait_applied(min_index, timeout_s=READ_TIMEOUT_S)
        except NotLeader:
            raise NotLeaderHere(None, None) from None
        except ProposalError as error:
            # A read changes nothing, so it may always be repeated.
            raise ServiceError(
                "no_quorum",
                f"the read was not confirmed: {error}",
                hint="?consistency=stale shows what this controller knows",
                kind="unavailable",
                retry_after_s=1.0,
            ) from None
        except TimeoutError:
            raise ServiceError(
                "index_not_reached",
                f"index {min_index} is not applied here yet (at {self._log.applied_index})",
                kind="unavailable",
                retry_after_s=1.0,
            ) from None
        return self.as_of()

    def as_of(self) -> AsOf:
        """What the views show now."""
        return AsOf(
            self._log.applied_index, self._machine.state.wall_ms, self._log.leadership.leader
        )

    def job(self, job_id: int) -> View | None:
        return queries.job_view(self._machine.state, job_id)

    def jobs(
        self,
        *,
        states: Iterable[str] = (),
        user: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        is_overdue: bool = False,
        limit: int = JOBS_PAGE,
        after: str | None = None,
    ) -> tuple[list[View], str | None]:
        """A page of jobs, newest first, and the cursor of the next. Raises ServiceError."""
        if after is not None and not CURSOR.fullmatch(after):
            raise ServiceError("bad_cursor", f"{after[:40]!r} is no cursor", kind="invalid")
        return queries.jobs_page(
            self._machine.state,
            states=states,
            user=user,
            queue=queue,
            name=name,
            is_overdue=is_overdue,
            limit=limit,
            after=after,
            now_ms=self._log_now_ms(),
        )

    def workers(self, target: str) -> list[View] | None:
        """The workers that an id names; None when it names nothing."""
        return queries.workers_view(self._machine.state, target)

    def attempts(self, target: str) -> list[View] | None:
        """The attempts that an id names, numbers ascending; None when it names nothing."""
        return queries.attempts_view(self._machine.state, target, now_ms=self._log_now_ms())

    def history(self, target: str) -> list[View] | None:
        """The timeline of a job, worker, attempt, `node:NAME` or `cluster`."""
        return queries.history_view(self._machine.state, target)

    def nodes(self) -> list[View]:
        """All nodes, by name."""
        return [view for name in self._machine.state.node_names if (view := self.node(name))]

    def node(self, name: str) -> View | None:
        """A node; with `last_heard_s` where this controller leads and hears it."""
        view = queries.node_view(self._machine.state, name)
        duties = self._leader.duties
        contact = None if duties is None else duties.lead.contacts.get(name)
        if view is not None and duties is not None and contact is not None:
            view["last_heard_s"] = max(0, duties.now_ms() - contact.heard_at_ms) / 1000
        return view

    def _log_now_ms(self) -> int | None:
        """Log time now where this controller leads; else views go by the newest entry's."""
        duties = self._leader.duties
        return None if duties is None else duties.lead.log_time.now_ms()

    def settings(self) -> Mapping[str, int | str]:
        """The cluster-wide settings in force."""
        return dict(self._machine.state.settings)

    def cluster_status(self) -> View:
        """Answered locally, with `quorum` false when there is none (6.3)."""
        return cluster_view(self._log.status(), self._machine)

    def watch(self, from_index: int) -> AsyncIterator[View]:
        """Events of entries after `from_index`, as they are applied here. Raises Lagged."""
        return self._hub.watch(from_index)

    # ---- logs ----------------------------------------------------------------------------------

    async def open_log(
        self,
        attempt_token: str,
        stream: str,
        *,
        offset: int = 0,
        tail_bytes: int | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """(offset, bytes) of an attempt's stdout or stderr, from its node.

        Raises ServiceError: not_found, node_unreachable, log_missing, log_interrupted; and
        NotLeaderHere on a follower.
        """
        duties = await self._leader.wait_open(timeout_s=TAKEOVER_TIMEOUT_S)
        if duties is None:
            raise self._not_leader()
        node = self._node_of(attempt_token)
        if self._is_known_empty(attempt_token, stream):
            return
        contact = duties.lead.contacts.get(node)
        if contact is None or contact.link is None or not contact.is_live:
            raise ServiceError(
                "node_unreachable",
                f"node {node}, which keeps this output, is not connected",
                hint="it is readable again when the node is back",
                kind="unavailable",
                retry_after_s=2.0,
            )
        chunks = self._port.streams.read(
            contact.link,
            node=node,
            token=attempt_token,
            stream=stream,
            offset=offset,
            tail_bytes=tail_bytes or 0,
            is_following=follow,
        )
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    def _is_known_empty(self, token: str, stream: str) -> bool:
        """An attempt that printed nothing leaves no file, so its node has nothing to tell of it."""
        attempt = self._machine.state.attempt_of_token(token)
        if attempt is None or attempt.ended is None or attempt.ended.finish is None:
            return False
        finish = attempt.ended.finish
        facts = finish.stdout if stream == "stdout" else finish.stderr
        # Without a hash nobody counted: a status that is lost says nothing of the output.
        return facts.size_bytes == 0 and facts.sha256 != ""

    def _node_of(self, token: str) -> str:
        state = self._machine.state
        attempt = state.attempt_of_token(token)
        if attempt is not None and attempt.placed is not None:
            return attempt.placed.node
        tombstone = state.tombstones.get(token)
        if tombstone is not None:
            return tombstone.node
        raise ServiceError("unknown_attempt", f"there is no attempt {token}", kind="not_found")

    # ---- about this controller -----------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Elected: writes are taken here, and wait for the takeover where it is not applied yet."""
        return self._log.is_leader

    def leader_http(self) -> str | None:
        """Base URL of the leader's API; None while there is none."""
        member = self._config.members.get(self._log.leadership.leader or "")
        return None if member is None else member.http

    def is_ready(self) -> bool:
        """Knows a leader and the cluster's founding: its answers make sense."""
        return self._log.leadership.leader is not None and self._machine.is_founded

    def metrics_text(self) -> str:
        """Prometheus' text format."""
        status = self._log.status()
        metrics, state = self._metrics, self._machine.state
        metrics.commit_index.set(status.commit_index)
        metrics.applied_index.set(status.applied_index)
        metrics.apply_lag_ms.set(status.apply_lag_ms)
        metrics.log_bytes.set(status.log.size_bytes)
        metrics.registry_size.set(state.registry_size)
        for phase, count in state.jobs_by_phase.items():
            metrics.jobs.labels(phase).set(count)
        for name, value in state.counters.items():
            metrics.replicated.labels(name).set(value)
        online = sum(1 for _ in self._machine.online_nodes())
        metrics.nodes.labels("Online").set(online)
        metrics.nodes.labels("Offline").set(len(state.nodes) - online)
        return metrics.text()
