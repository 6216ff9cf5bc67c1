"""From reports on a connection to entries of the log, and back to `committed at index`.

Nothing is judged here: whether an attempt is known is decided in apply, in log order (4, part A).
The checks before proposing only keep floods of unknown reports out of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from replication.interface import Applied
from scheduler.controller import logs
from scheduler.controller.contacts import Contact
from scheduler.controller.context import Lead
from scheduler.controller.urgency import is_urgent
from scheduler.core.commands import ENTRY_BYTES_MAX, AttemptReports
from scheduler.core.results import ReportAnswer
from scheduler.protocol.messages import ITEMS_MAX, Progress, Report, ReportsCommitted

#: Reports of one node that wait or are proposed. What exceeds it is dropped: it is in the node's
#: outbox, and comes again.
REPORTS_PENDING_MAX: Final = 4_000
#: Reports of attempts that the state does not know, per node and second, and at once.
UNKNOWN_PER_S: Final = 200
UNKNOWN_BURST: Final = 1_000
#: Longest progress line kept.
PROGRESS_CHARS_MAX: Final = 200
#: Sequence of a report that came in a heartbeat: it is in no outbox, and is not answered.
NOT_OF_THE_OUTBOX: Final = 0
#: When a node should send again what was refused.
RETRY_AFTER_MS: Final = 2_000


@dataclass(slots=True)
class _Intake:
    """What one session's reports wait for."""

    waiting: list[Report] = field(default_factory=list)
    proposed: int = 0
    allowance: float = UNKNOWN_BURST
    allowance_at_ms: int = 0


class ReportIntake:
    """Of one leadership. Event loop."""

    def __init__(self, lead: Lead, *, on_committed: Callable[[Contact], None]) -> None:
        self._lead = lead
        self._on_committed = on_committed
        self._by_contact: dict[Contact, _Intake] = {}

    def receive(self, contact: Contact, reports: Sequence[Report]) -> None:
        """Take a batch in. What one loop turn brings from a node becomes one entry."""
        intake = self._by_contact.get(contact)
        if intake is None:
            intake = self._by_contact[contact] = _Intake(
                allowance_at_ms=self._lead.clock.boottime_ms()
            )
        room = REPORTS_PENDING_MAX - intake.proposed - len(intake.waiting)
        if room < len(reports):
            self._lead.metrics.reports_deferred.inc(len(reports) - max(room, 0))
        taken = reports[: max(room, 0)]
        if taken and not intake.waiting:
            asyncio.get_running_loop().call_soon(self._lead.guard, self.flush, contact)
        intake.waiting.extend(taken)

    def receive_progress(self, contact: Contact, lines: Sequence[Progress]) -> None:
        """Take progress lines of a heartbeat into the log, as reports that nobody waits for."""
        known = [line for line in lines if self._lead.machine.knows_token(line.token)]
        if known:
            self.receive(
                contact,
                [
                    Report(kind="progress", token=line.token, text=line.text[:PROGRESS_CHARS_MAX])
                    for line in known
                ],
            )

    def flush(self, contact: Contact) -> None:
        """Propose what waits of `contact` now."""
        intake = self._by_contact.get(contact)
        if intake is None or not intake.waiting or not self._lead.is_open:
            return
        reports, intake.waiting = intake.waiting, []
        reports = self._refuse_floods(contact, intake, reports)
        for first in range(0, len(reports), ITEMS_MAX):
            self._propose(contact, intake, tuple(reports[first : first + ITEMS_MAX]))

    def forget(self, contact: Contact) -> None:
        """The session ended; its proposals resolve by themselves."""
        self._by_contact.pop(contact, None)

    def _refuse_floods(
        self, contact: Contact, intake: _Intake, reports: list[Report]
    ) -> list[Report]:
        machine = self._lead.machine
        unknown = [one for one in reports if not machine.knows_token(one.token)]
        if not unknown:
            return reports
        now_ms = self._lead.clock.boottime_ms()
        gained = (now_ms - intake.allowance_at_ms) * UNKNOWN_PER_S / 1000
        intake.allowance = min(UNKNOWN_BURST, intake.allowance + gained)
        intake.allowance_at_ms = now_ms
        room = min(int(intake.allowance), machine.registry_room(contact.name))
        intake.allowance -= min(room, len(unknown))
        if len(unknown) <= room:
            return reports
        refused = {id(one) for one in unknown[room:]}
        self._lead.metrics.reports_refused.inc(len(refused))
        sequences = tuple(one.sequence for one in unknown[room:])
        if contact.link is not None:
            contact.link.send(
                ReportsCommitted(
                    sequences=(),
                    index=self._lead.log.applied_index,
                    refused=sequences,
                    retry_after_ms=RETRY_AFTER_MS,
                )
            )
        return [one for one in reports if id(one) not in refused]

    def _propose(self, contact: Contact, intake: _Intake, reports: tuple[Report, ...]) -> None:
        lead = self._lead
        entry = AttemptReports(node=contact.name, node_uuid=contact.node_uuid, reports=reports)
        command = lead.encode(entry, actor=f"agent:{contact.name}")
        if len(command) > ENTRY_BYTES_MAX:
            self._propose_smaller(contact, intake, reports)
            return
        intake.proposed += len(reports)

        def done(outcome: Applied | Exception) -> None:
            intake.proposed -= len(reports)
            if isinstance(outcome, Applied):
                self._answer(contact, outcome)
            # Else the node hears nothing and sends again: to us, or to the next leader (A6).

        lead.log.propose_nowait(command, done, is_urgent=is_urgent(entry))

    def _propose_smaller(
        self, contact: Contact, intake: _Intake, reports: tuple[Report, ...]
    ) -> None:
        if len(reports) == 1:
            logs.warning("report_too_large", node=contact.name, token=reports[0].token)
            self._lead.metrics.reports_refused.inc()
            return
        half = len(reports) // 2
        self._propose(contact, intake, reports[:half])
        self._propose(contact, intake, reports[half:])

    def _answer(self, contact: Contact, applied: Applied) -> None:
        answers = applied.result
        assert isinstance(answers, tuple)
        committed: list[int] = []
        refused: list[int] = []
        disowned: list[str] = []
        for answer in answers:
            assert isinstance(answer, ReportAnswer)
            if answer.sequence == NOT_OF_THE_OUTBOX:
                continue
            if answer.answer == "registry_full":
                refused.append(answer.sequence)
                continue
            committed.append(answer.sequence)
            if answer.answer != "committed":
                # Not this node's to tell: it need not send it again, and nobody waits for it.
                disowned.append(answer.token)
        if committed:
            contact.committed_sequence = max(contact.committed_sequence, *committed)
        self._lead.metrics.reports.inc(len(committed))
        if contact.link is not None and (committed or refused):
            contact.link.send(
                ReportsCommitted(
                    sequences=tuple(committed),
                    index=applied.index,
                    refused=tuple(refused),
                    retry_after_ms=RETRY_AFTER_MS if refused else 0,
                    disowned=tuple(disowned),
                )
            )
        self._on_committed(contact)
