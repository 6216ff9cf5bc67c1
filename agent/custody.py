"""Custody of the keeper: start it, talk to it, replace it (specification 3.1, 3.8).

The keeper outlives the agent, so it is first looked for (its socket) and only started when nobody
listens there. It runs in a session of its own. One that does not answer for HUNG_TICKS is killed
and replaced, for the next one obeys the lease file first: that is also how leases are enforced
while a keeper is unresponsive. Loop thread only, but for the pidfd.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import agent
from agent.errors import KeeperFailed
from agent.events import Event, KeeperAnswered, KeeperAttached, KeeperLost, KeeperSaid
from agent.keeper import wire
from agent.logs import EventLog

#: A new keeper must listen within this time: it may have to look through a long ledger first.
START_S: Final = 30.0
#: Between two looks at its socket while it starts.
START_POLL_S: Final = 0.02
#: Keepers that die at once are started again ever more slowly, up to this.
RESTART_S_MAX: Final = 5.0
#: How often a keeper is watched. Ticks are counted, not time: an agent that was stopped itself
#: must first read what the keeper answered meanwhile.
TICK_S: Final = 0.5
#: Ticks without an answer after which it counts as hung (10 s).
HUNG_TICKS: Final = 20
#: The same when a lease has come to its end and the keeper must act (1 s).
HUNG_AT_LEASE_END_TICKS: Final = 2
#: An idle keeper is asked something every so many ticks (2 s).
PING_TICKS: Final = 4
#: Bytes waiting for the keeper; it reads all the time, so more means that it hangs.
SEND_BYTES_MAX: Final = 64 * 1024 * 1024

_PEER_CREDENTIALS: Final = struct.Struct("3i")
Feed = Callable[[list[Event]], None]


class KeeperLink(asyncio.Protocol):
    """One connection: requests out, their answers and the keeper's events in."""

    def __init__(self, feed: Feed) -> None:
        #: Who takes what comes; replaced once, before the attach.
        self.take = feed
        self._reader = wire.Reader()
        self._transport: asyncio.Transport | None = None
        #: Requests without an answer, by id, oldest first.
        self._open: dict[int, dict[str, Any]] = {}
        self._next_id = 0
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        #: Watch ticks since the oldest open request was sent or the last answer came.
        self.silent_ticks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport of a unix socket is one without inheriting from it.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        events: list[Event] = []
        try:
            for message in self._reader.feed(data):
                if message.get("is") == "answer":
                    events.append(self._match(message))
                else:
                    events.append(KeeperSaid(message))
        except wire.WireError as error:
            self.abort(f"the keeper sent no message: {error}")
        if events and not self.closed.done():
            self.take(events)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(str(exc or "closed by the keeper"))

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no answer yet; `stop` is answered when all jobs have ended."""
        return any(request["do"] != "stop" for request in self._open.values())

    def ask(self, request: dict[str, Any]) -> None:
        """Send one request; its answer is fed as KeeperAnswered."""
        if self._transport is None or self.closed.done():
            return
        self._next_id += 1
        if not self.is_waiting:
            self.silent_ticks = 0
        request = {**request, "id": self._next_id}
        try:
            self._transport.write(wire.encode(request))
        except wire.WireError as error:
            refusal = {"ok": False, "code": "bad_order", "message": str(error)}
            events: list[Event] = [KeeperAnswered(request, refusal)]
            asyncio.get_running_loop().call_soon(self.take, events)
            return
        self._open[self._next_id] = request
        if self._transport.get_write_buffer_size() > SEND_BYTES_MAX:
            self.abort("the keeper does not read")

    def abort(self, reason: str) -> None:
        """Cut the connection."""
        self._finish(reason)
        if self._transport is not None:
            self._transport.abort()

    def peer_pid(self) -> int:
        """Pid of the process that listens, from the kernel."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("socket")
        size = _PEER_CREDENTIALS.size
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(_PEER_CREDENTIALS.unpack(raw)[0])

    def _match(self, answer: dict[str, Any]) -> KeeperAnswered:
        request = self._open.pop(answer.get("id", -1), None)
        if request is None:
            raise wire.WireError("an answer to nothing that was asked")
        self.silent_ticks = 0
        return KeeperAnswered(request, answer)

    def _finish(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)


class Custody:
    """Keeps one keeper running and attached until released."""

    def __init__(
        self,
        *,
        directory: Path,
        socket_path: Path,
        log: EventLog,
        feed: Feed,
        attach_fields: Callable[[], dict[str, Any]],
        is_lease_over: Callable[[], bool],
        command: tuple[str, ...] = (sys.executable, "-m", "agent.keeper"),
    ) -> None:
        self._directory = directory
        self._socket_path = socket_path
        self._log = log
        self._feed = feed
        #: cluster_id, node and session for the attach.
        self._attach_fields = attach_fields
        #: Whether a live attempt's lease has ended, so that the keeper must have acted.
        self._is_lease_over = is_lease_over
        self._command = command
        #: Keepers started by this agent and not collected yet; the last is the newest.
        self._children: list[subprocess.Popen[bytes]] = []
        self._link: KeeperLink | None = None
        self._is_released = False
        self.pid: int | None = None

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request to the attached keeper; dropped without one (see AgentState)."""
        if self._link is not None:
            self._link.ask(request)

    def release(self) -> None:
        """The keeper leaves by order: start no other."""
        self._is_released = True

    async def run(self) -> None:
        """Until released: have a keeper attached. Never raises for a keeper's failures."""
        failures = 0
        while not self._is_released:
            try:
                link = await self._reach()
                reason = await self._serve(link)
                failures = 0
            except KeeperFailed as error:
                failures += 1
                reason = str(error)
                self._log.warning("keeper_failed", reason=reason, failures=failures)
                await asyncio.sleep(min(RESTART_S_MAX, 0.1 * 2 ** min(failures, 10)))
            self._reap()

    async def _serve(self, link: KeeperLink) -> str:
        """Attach, then watch until the connection is gone; return why it went."""
        pid = link.peer_pid()
        # Opened while the keeper holds the connection: it can never mean another process.
        pidfd = os.pidfd_open(pid)
        is_attached = False

        def take(events: list[Event]) -> None:
            nonlocal is_attached
            if is_attached:
                self._feed(events)
                return
            first, *rest = events
            if not isinstance(first, KeeperAnswered) or not first.answer.get("ok"):
                link.abort(f"the keeper refuses this agent: {first}")
                return
            is_attached = True
            self._link, self.pid = link, pid
            answer = first.answer
            attached = KeeperAttached(
                store_id=str(answer.get("store_id", "")),
                boot_id=str(answer.get("boot_id", "")),
                pid=int(answer.get("pid") or pid),
                limits=str(answer.get("limits", "sampled")),
                is_disk_low=bool(answer.get("is_disk_low")),
            )
            self._feed([attached, *rest])

        link.take = take
        link.ask({"do": "attach", **self._attach_fields()})
        try:
            await self._watch(link, pid, pidfd)
            reason = await link.closed
        finally:
            os.close(pidfd)
            self._link = self.pid = None
            link.abort("left")
        if not is_attached:
            raise KeeperFailed(reason)
        self._feed([KeeperLost(reason)])
        return reason

    async def _watch(self, link: KeeperLink, pid: int, pidfd: int) -> None:
        ticks = 0
        while not link.closed.done():
            await asyncio.wait([link.closed], timeout=TICK_S)
            ticks += 1
            if not link.is_waiting:
                if ticks % PING_TICKS == 0:
                    link.ask({"do": "forget", "tokens": []})
                continue
            link.silent_ticks += 1
            is_lease_over = self._is_lease_over()
            limit = HUNG_AT_LEASE_END_TICKS if is_lease_over else HUNG_TICKS
            if link.silent_ticks > limit:
                self._log.warning("keeper_hung", pid=pid, is_lease_over=is_lease_over)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                link.abort("the keeper did not answer and was killed")

    async def _reach(self) -> KeeperLink:
        """Connect to the keeper that listens, or start one. Raises KeeperFailed."""
        link = await self._connect()
        if link is not None:
            return link
        self._spawn()
        deadline = asyncio.get_running_loop().time() + START_S
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(START_POLL_S)
            link = await self._connect()
            if link is not None:
                return link
            if (code := self._children[-1].poll()) is not None:
                raise KeeperFailed(f"it ended with code {code}; see {self._log_path}")
        raise KeeperFailed(f"it does not listen on {self._socket_path} within {START_S} s")

    async def _connect(self) -> KeeperLink | None:
        loop = asyncio.get_running_loop()
        try:
            _, link = await loop.create_unix_connection(
                lambda: KeeperLink(self._feed), str(self._socket_path)
            )
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            raise KeeperFailed(f"{self._socket_path}: {error}") from None
        return link

    def _spawn(self) -> None:
        self._reap()
        arguments = ("--dir", str(self._directory), "--socket", str(self._socket_path))
        with self._log_path.open("ab") as output:
            try:
                child = subprocess.Popen(
                    [*self._command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # A terminal's or supervisor's signals to the agent's group must not reach it.
                    start_new_session=True,
                    # Lets `-m agent.keeper` find the package that this agent runs from.
                    cwd=Path(agent.__file__).parent.parent,
                )
            except OSError as error:
                raise KeeperFailed(f"it cannot be started: {error}") from None
        self._children.append(child)
        self._log.info("keeper_started", pid=child.pid)

    def _reap(self) -> None:
        """Collect keepers of ours that ended, so that they are no zombies."""
        for child in [child for child in self._children if child.poll() is not None]:
            self._log.info("keeper_ended", pid=child.pid, code=child.returncode)
            self._children.remove(child)

    @property
    def _log_path(self) -> Path:
        return self._directory / "keeper.log"
