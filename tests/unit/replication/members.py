"""Whole members in one process, on loopback, for the tests of this directory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from replication.config import ReplicationConfig, TlsFiles
from replication.errors import ProposalError
from replication.interface import Applied, SnapshotView
from replication.node import RaftLog, found_member

#: The machines that run this are slow and loaded.
PATIENCE_S = 60.0


class Ledger:
    """A state machine: the list of its commands. Answers with their count."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def apply(self, index: int, term: int, command: bytes) -> object:
        self.commands.append(command)
        return len(self.commands)

    def snapshot_view(self) -> SnapshotView:
        return LedgerView(tuple(self.commands))

    def restore(self, chunks: Iterable[bytes], *, index: int, term: int) -> None:
        data = b"".join(chunks)
        self.commands = data.split(b"\n") if data else []


class LedgerView:
    def __init__(self, commands: tuple[bytes, ...]) -> None:
        self._commands = commands

    def chunks(self) -> Iterator[bytes]:
        data = b"\n".join(self._commands)
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` holds; fails with `what` after a generous time."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.01)


class Members:
    """A cluster of members that can be stopped and started one by one."""

    def __init__(
        self,
        directory: Path,
        names: str = "abc",
        tls: dict[str, TlsFiles] | None = None,
        **more: int,
    ) -> None:
        self.directory = directory
        self.tls = tls
        self.more = more
        ports = free_ports(len(names))
        self.addresses = {
            name: ("127.0.0.1", port) for name, port in zip(names, ports, strict=True)
        }
        self.logs: dict[str, RaftLog] = {}
        self.ledgers: dict[str, Ledger] = {}

    def config(self, name: str) -> ReplicationConfig:
        return ReplicationConfig(
            name=name,
            cluster_id="test",
            incarnation=1,
            members=self.addresses,
            listen=self.addresses[name],
            data_dir=self.directory / name,
            tls=None if self.tls is None else self.tls[name],
            segment_bytes=16 * 1024 * 1024,
            version="1.2.3",
            **self.more,  # type: ignore[arg-type]
        )

    def found(self) -> None:
        for name in self.addresses:
            found_member(self.config(name))

    async def start(self, *names: str) -> None:
        for name in names or self.addresses:
            ledger = Ledger()
            log = RaftLog(self.config(name), ledger)
            await log.start()
            self.logs[name], self.ledgers[name] = log, ledger

    async def stop(self, *names: str) -> None:
        for name in names or list(self.logs):
            await self.logs.pop(name).close()

    async def leader(self) -> RaftLog:
        def found() -> RaftLog | None:
            leaders = [log for log in self.logs.values() if log.is_leader]
            return max(leaders, key=lambda log: log.leadership.term, default=None)

        await until(found, "a leader")
        leader = found()
        assert leader is not None
        return leader

    async def propose(self, command: bytes) -> Applied:
        """Propose on whoever leads until it is applied."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            leader = await self.leader()
            try:
                return await leader.propose(command)
            except ProposalError:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.05)

    async def propose_all(self, commands: list[bytes]) -> int:
        """Propose all at once, each until it is applied; returns the last index."""
        applied = await asyncio.gather(*[self.propose(command) for command in commands])
        return max(outcome.index for outcome in applied)

    async def barrier(self, log: RaftLog) -> int:
        """A read barrier, tried again while leadership moves."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                return await log.read_barrier(timeout_s=PATIENCE_S)
            except ProposalError:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.05)

    async def until_all_applied(self, index: int) -> None:
        await until(
            lambda: all(log.applied_index >= index for log in self.logs.values()),
            f"entry {index} applied everywhere",
        )
