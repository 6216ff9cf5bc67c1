"""Whether all controllers hold the same state; who does not, stops (specification 2.5).

    every member   remembers its digest at the first entry of each block, and its newest one
    the leader     asks all of them every few seconds, and compares at equal log indexes
    a difference   the members that a majority contradicts stop; without a majority all stop

A difference is a bug or bad memory: the same log must give the same state. Whoever has the wrong
one would answer wrongly, and order wrongly once it leads, so it stops for good: a marker in its
data directory keeps it from starting again with what may be stored wrongly, too. Only members of
one release are compared, because a release may add fields to the records that are hashed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol

import msgspec

from replication.errors import ReplicationError
from replication.interface import MemberRequests, ReplicatedLog
from scheduler.controller import logs
from scheduler.controller.metrics import Metrics
from scheduler.controller.state_machine import ClusterMachine
from scheduler.core.apply import Applied

REPORT_KIND: Final = "agreement.report"
STOP_KIND: Final = "agreement.stop"
#: Log indexes per block; each member takes its digest at the first entry of every block.
BLOCK_ENTRIES: Final = 256
#: Digests a member remembers: a follower may lag by so many blocks and is still compared.
KEPT_MAX: Final = 256
#: Digests in one report, the newest ones: some 3 KB.
REPORTED_MAX: Final = 64
#: Seconds between two comparisons.
PERIOD_S: Final = 5.0
#: Seconds between two while members differ and it is still open who is right.
RETRY_S: Final = 1.0
#: So many comparisons it may be open, for a member to come back that could decide it.
OPEN_ROUNDS_MAX: Final = 15
ANSWER_TIMEOUT_S: Final = 2.0
#: Its presence in a data directory means: this state differs from the others'.
MARKER_NAME: Final = "diverged"


class Diverged(Exception):
    """This controller's state is not that of the others; it must not serve."""


class Log(ReplicatedLog, MemberRequests, Protocol):
    """The log together with its side channel."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of its state: the release that hashed it, and digests by log index."""

    release: str
    digests: dict[int, str]


class Stop(msgspec.Struct, frozen=True, array_like=True):
    """To a member whose digest at `index` is `digest`, and wrong; `why` is for people."""

    index: int
    digest: str
    why: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Members that differ at one log index."""

    index: int
    #: By member, of those that reported this index.
    digests: dict[str, str]
    #: Those that a majority contradicts; all that reported when no majority agrees.
    wrong: tuple[str, ...]
    has_majority: bool
    #: Members that did not report this index could still make a majority.
    is_open: bool


_REPORTS: Final = msgspec.msgpack.Decoder(Report)
_STOPS: Final = msgspec.msgpack.Decoder(Stop)


def judge(tables: Mapping[str, Mapping[int, str]], *, members: int) -> Difference | None:
    """Who is wrong, by the digests that each member reported; None when nobody differs.

    `members` is how many the cluster has: only a majority of all of them proves anybody wrong.
    """
    by_index: dict[int, dict[str, str]] = {}
    for member in sorted(tables):
        for index, digest in tables[member].items():
            by_index.setdefault(index, {})[member] = digest
    found = [
        _difference(index, digests, members)
        for index, digests in by_index.items()
        if len(set(digests.values())) > 1
    ]
    # Where a majority decides comes first: it spares those that are right.
    return max(found, key=lambda one: (one.has_majority, len(one.digests), one.index), default=None)


def _difference(index: int, digests: dict[str, str], members: int) -> Difference:
    quorum = members // 2 + 1
    [(most, count)] = Counter(digests.values()).most_common(1)
    has_majority = count >= quorum
    wrong = tuple(name for name, one in digests.items() if not has_majority or one != most)
    is_open = not has_majority and count + members - len(digests) >= quorum
    return Difference(index, digests, wrong, has_majority, is_open)


def agreed_index(tables: Mapping[str, Mapping[int, str]]) -> int:
    """The newest log index that all of `tables` have; 0 when there is none."""
    common = set.intersection(*(set(table) for table in tables.values()))
    return max(common, default=0)


def refuse_marked(data_dir: Path) -> None:
    """Raise Diverged when this directory's state was found to differ from the others'."""
    try:
        said = (data_dir / MARKER_NAME).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return
    raise Diverged(said)


class Agreement:
    """One member's part. Event loop."""

    def __init__(
        self,
        *,
        log: Log,
        machine: ClusterMachine,
        metrics: Metrics,
        data_dir: Path,
        release: str = "",
    ) -> None:
        self._log = log
        self._machine = machine
        self._metrics = metrics
        self._data_dir = data_dir
        self._release = release or metadata.version("pertinax")
        self._on_fatal: list[Callable[[BaseException], None]] = []
        #: Digest by log index, in the order taken; at most KEPT_MAX.
        self._kept: dict[int, str] = {}
        self._block = 0
        self._open_rounds = 0
        machine.on_applied(self._note_applied)
        log.on_request(REPORT_KIND, self._answer_report)
        log.on_request(STOP_KIND, self._answer_stop)

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        """Call back when this member's state was found wrong: the process must end."""
        self._on_fatal.append(callback)

    async def run(self) -> None:
        """Compare all members while this one leads, until cancelled."""
        while True:
            await asyncio.sleep(RETRY_S if self._open_rounds else PERIOD_S)
            if self._log.is_leader:
                await self.compare()
            else:
                self._open_rounds = 0

    async def compare(self) -> Difference | None:
        """Ask every member once and see to it that wrong ones stop; returns what was found."""
        self._take()
        tables = {self._log.name: dict(self._kept)}
        peers = [member for member in self._log.members() if member != self._log.name]
        answers = await asyncio.gather(*(self._ask(member) for member in peers))
        tables.update(
            (member, table)
            for member, table in zip(peers, answers, strict=True)
            if table is not None
        )
        difference = judge(tables, members=len(peers) + 1)
        if difference is None:
            self._open_rounds = 0
            if len(tables) > 1:
                self._metrics.digest_agreed_index.set(agreed_index(tables))
        else:
            await self._settle(difference)
        return difference

    # ---- own digests ---------------------------------------------------------------------------

    def _note_applied(self, applied: Applied) -> None:
        """Called for each entry: one comparison, and per block one digest of what changed."""
        del applied
        block = self._machine.state.index // BLOCK_ENTRIES
        if block != self._block:
            self._block = block
            self._take()

    def _take(self) -> None:
        # The index that the state itself holds: no other can be mistaken for it after a snapshot.
        self._kept[self._machine.state.index] = self._machine.digest()
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    async def _answer_report(self, member: str, body: bytes) -> bytes:
        del member, body
        self._take()
        newest = sorted(self._kept)[-REPORTED_MAX:]
        return msgspec.msgpack.encode(
            Report(self._release, {index: self._kept[index] for index in newest})
        )

    # ---- the leader's part ---------------------------------------------------------------------

    async def _ask(self, member: str) -> dict[int, str] | None:
        """A member's digests; None when it does not answer, or hashes another release's records."""
        try:
            body = await self._log.request(member, REPORT_KIND, b"", timeout_s=ANSWER_TIMEOUT_S)
            report = _REPORTS.decode(body)
        except (ReplicationError, TimeoutError, msgspec.DecodeError) as error:
            logs.debug("digest_not_reported", member=member, error=error)
            return None
        return report.digests if report.release == self._release else None

    async def _settle(self, difference: Difference) -> None:
        self._metrics.digest_mismatches.inc()
        told = " ".join(f"{name}:{one}" for name, one in sorted(difference.digests.items()))
        logs.error(
            "states_differ", index=difference.index, digests=told, wrong=",".join(difference.wrong)
        )
        if difference.is_open and self._open_rounds < OPEN_ROUNDS_MAX:
            self._open_rounds += 1
            return
        # The others first: this member's own end must not keep them from hearing of theirs.
        for member in difference.wrong:
            if member != self._log.name:
                await self._order_stop(member, difference)
        if self._log.name in difference.wrong:
            self._stop(self._why(self._log.name, difference))

    async def _order_stop(self, member: str, difference: Difference) -> None:
        order = Stop(difference.index, difference.digests[member], self._why(member, difference))
        try:
            await self._log.request(
                member, STOP_KIND, msgspec.msgpack.encode(order), timeout_s=ANSWER_TIMEOUT_S
            )
        except (ReplicationError, TimeoutError) as error:
            logs.warning("stop_not_delivered", member=member, error=error)

    def _why(self, member: str, difference: Difference) -> str:
        told = ", ".join(f"{name} has {one}" for name, one in sorted(difference.digests.items()))
        where = f"the state of controller {member} differs at log index {difference.index}: {told}."
        if difference.has_majority:
            return (
                f"{where} It must not serve with this data; `pertinax cluster replace {member}`"
                " brings it back from the others"
            )
        return (
            f"{where} No majority agrees, so none of them may serve. Keep all data directories,"
            " find the right one with `pertinax verify`, and follow the runbook"
            " 'Replace a controller'"
        )

    # ---- the end of a wrong one ----------------------------------------------------------------

    async def _answer_stop(self, member: str, body: bytes) -> bytes:
        order = _STOPS.decode(body)
        if member != self._log.leadership.leader:
            raise ValueError(f"{member} does not lead")
        if self._kept.get(order.index) != order.digest:
            raise ValueError(f"the digest at {order.index} is another one here")
        self._stop(order.why)
        return b""

    def _stop(self, why: str) -> None:
        """End this member for good, before it acknowledges anything more."""
        logs.error("state_diverged", why=why)
        error = Diverged(why)
        self._machine.refuse_all(error)
        try:
            (self._data_dir / MARKER_NAME).write_text(why + "\n", encoding="utf-8")
        except OSError as failure:
            # It ends all the same; without the marker it is found again after its next start.
            logs.error("marker_not_written", error=failure)
        for callback in self._on_fatal:
            callback(error)
