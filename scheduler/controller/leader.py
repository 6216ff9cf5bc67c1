"""From an election to the duties of a leader, and back, as often as it comes.

    elected ─► read barrier: everything earlier is applied here ─► log time counts on from there
            ─► ClusterFounded, if the state is unfounded ─► LeaderTookOver applied
            ─► duties and agents' port, until the term or the role changes

Nothing is concluded, ordered or acknowledged before the takeover entry is applied: a new leader
may still have a long backlog to apply (specification 4, B3).
"""

from __future__ import annotations

import asyncio
from typing import Final

from replication.errors import ProposalError
from replication.interface import Leadership, ReplicatedLog, Role
from scheduler.controller import logs
from scheduler.controller.clock import Clock, LogTime
from scheduler.controller.config import ControllerConfig
from scheduler.controller.contacts import Contacts
from scheduler.controller.context import Lead
from scheduler.controller.duties import Duties, Suspended
from scheduler.controller.founding import Founding
from scheduler.controller.metrics import Metrics
from scheduler.controller.sessions import AgentPort
from scheduler.controller.state_machine import ClusterMachine
from scheduler.core.commands import ClusterFounded, LeaderTookOver
from scheduler.core.results import Rejected

#: Wait before taking over again in the same term, after a barrier or proposal failed.
RETRY_S: Final = 0.1


class Leader:
    """Runs the leaderships of this controller, one after the other. Event loop."""

    def __init__(
        self,
        *,
        config: ControllerConfig,
        founding: Founding,
        log: ReplicatedLog,
        machine: ClusterMachine,
        clock: Clock,
        metrics: Metrics,
        port: AgentPort,
    ) -> None:
        self._config = config
        self._founding = founding
        self._log = log
        self._machine = machine
        self._clock = clock
        self._metrics = metrics
        self._port = port
        self._changed = asyncio.Event()
        #: Set, and replaced, whenever duties begin or end or leadership changes.
        self._opened = asyncio.Event()
        #: The duties while they are done; None between.
        self.duties: Duties | None = None
        log.on_leadership(self._on_leadership)

    async def wait_open(self, *, timeout_s: float) -> Duties | None:
        """The duties once they are begun; None when this controller does not lead by then."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.duties is None and self._log.is_leader:
                    await self._opened.wait()
        except TimeoutError:
            return None
        return self.duties

    async def run(self) -> None:
        """Lead whenever this controller is elected, until cancelled."""
        while True:
            self._changed.clear()
            leadership = self._log.leadership
            if leadership.role is not Role.LEADER:
                await self._changed.wait()
                continue
            await self._lead_until_changed(leadership.term)

    def _on_leadership(self, leadership: Leadership) -> None:
        duties = self.duties
        if duties is not None and (
            leadership.role is not Role.LEADER or leadership.term != duties.lead.term
        ):
            # At once, in this very call: a deposed leader gives no further order.
            self._end(duties)
        if leadership.role is not Role.LEADER:
            self._port.end_leadership()
        self._metrics.is_leader.set(leadership.role is Role.LEADER)
        self._changed.set()
        self._tell()

    async def _lead_until_changed(self, term: int) -> None:
        """Lead in `term`; returns when leadership changed or is to be taken over again."""
        async with asyncio.TaskGroup() as group:
            leading = group.create_task(self._lead(term), name=f"lead in term {term}")
            changed = group.create_task(self._wait_changed(term), name="leadership")
            await asyncio.wait({leading, changed}, return_when=asyncio.FIRST_COMPLETED)
            leading.cancel()
            changed.cancel()

    async def _wait_changed(self, term: int) -> None:
        while self._log.is_leader and self._log.leadership.term == term:
            await self._changed.wait()
            self._changed.clear()

    async def _lead(self, term: int) -> None:
        try:
            duties = await self._take_over(term)
            await self._do(duties)
        except* ProposalError as errors:
            logs.warning("leadership_interrupted", term=term, error=errors.exceptions[0])
            await asyncio.sleep(RETRY_S)
        except* Suspended as errors:
            # Another leader may have come meanwhile, which the barrier will tell. Alone, this one
            # takes over again: what it had heard before the pause counts no more (2.4).
            logs.warning("leader_was_suspended", term=term, error=errors.exceptions[0])

    async def _take_over(self, term: int) -> Duties:
        await self._log.read_barrier()
        log_time = LogTime(self._clock)
        log_time.take_over(self._machine.clock_ms)
        lead = Lead(
            config=self._config,
            log=self._log,
            machine=self._machine,
            clock=self._clock,
            log_time=log_time,
            metrics=self._metrics,
            contacts=Contacts(started_at_ms=self._clock.boottime_ms()),
            term=term,
        )
        if not self._machine.is_founded:
            await self._found(lead)
        takeover = LeaderTookOver(term=term, leader=self._config.name)
        applied = await self._log.propose(lead.encode(takeover), is_urgent=True)
        self._metrics.takeovers.inc()
        logs.info("leader_took_over", term=term, index=applied.index, digest=self._machine.digest())
        return Duties(lead)

    async def _found(self, lead: Lead) -> None:
        founding = self._founding
        entry = ClusterFounded(
            cluster_id=founding.cluster_id,
            incarnation=founding.incarnation,
            settings=founding.settings,
        )
        applied = await self._log.propose(lead.encode(entry))
        if isinstance(applied.result, Rejected):
            logs.warning("founding_refused", code=applied.result.code)
            return
        logs.info("cluster_founded", cluster=founding.cluster_id, index=applied.index)

    async def _do(self, duties: Duties) -> None:
        self.duties = duties
        duties.lead.is_open = True
        self._port.begin_leadership(duties)
        self._tell()
        try:
            await duties.run()
        finally:
            self._end(duties)

    def _end(self, duties: Duties) -> None:
        if self.duties is not duties:
            return
        self.duties = None
        duties.lead.is_open = False
        duties.orders.stop()
        self._port.end_leadership()
        self._tell()

    def _tell(self) -> None:
        opened, self._opened = self._opened, asyncio.Event()
        opened.set()
