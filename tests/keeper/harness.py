"""A real keeper process and a client of its socket, for tests. Waits have deadlines, no sleeps."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent.keeper.clock import boottime_ms
from agent.keeper.processes import read_marker, snapshot
from agent.keeper.wire import Reader, encode

ROOT = Path(__file__).parents[2]
#: The machines are slow and loaded: a deadline tells "never" from "late", nothing else.
DEADLINE_S = 60.0
_NUMBERS = itertools.count(1)

Message = dict[str, Any]
T = TypeVar("T")


class KeeperProcess:
    """Starts, kills and restarts one keeper over one directory; at most one client at a time."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.options = options
        self.cluster_id = f"test-{os.getpid()}-{next(_NUMBERS)}"
        self.log = directory / "keeper.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.client: Client | None = None

    @property
    def socket_path(self) -> Path:
        return self.directory / "k.sock"

    @property
    def keeper_directory(self) -> Path:
        return self.directory / "keeper"

    def start(self) -> Client:
        """Start the process and attach a client."""
        command = [sys.executable, "-m", "agent.keeper"]
        command += ["--dir", str(self.keeper_directory), "--socket", str(self.socket_path)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.options], cwd=ROOT, stdin=subprocess.DEVNULL, stderr=log
            )
        return self.attach()

    def attach(self) -> Client:
        """A new connection, attached; the one before is closed."""
        if self.client is not None:
            self.client.close()
        self.client = self.connect()
        self.client.attach()
        return self.client

    def connect(self) -> Client:
        """A connection that is not attached: it can ask, and hears of no events."""

        def connect() -> socket.socket | None:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(str(self.socket_path))
            except OSError:
                sock.close()
                return None
            return sock

        return Client(eventually(connect), self.cluster_id)

    def kill(self) -> None:
        """SIGKILL the keeper, as a crash does; the attempts go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Leave nothing behind, however the test ended."""
        if self.client is not None:
            self.client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for _ in range(20):
            members = self.members()
            if not members:
                return
            for pid in members:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        assert eventually(lambda: not self.members())

    def members(self, token: str | None = None) -> list[int]:
        """Pids of living processes that carry this keeper's marker."""
        found = []
        for pid in snapshot():
            marker = read_marker(pid)
            if marker is not None and marker[1] == self.cluster_id and token in {None, marker[0]}:
                found.append(pid)
        return found


class Client:
    """The agent's end of the socket."""

    def __init__(self, sock: socket.socket, cluster_id: str) -> None:
        self._socket = sock
        self._reader = Reader()
        self._numbers = itertools.count(1)
        self._answers: dict[int, Message] = {}
        self.events: list[Message] = []
        self._cluster_id = cluster_id
        self.attached: Message = {}

    def attach(self) -> None:
        """Become the agent."""
        self.attached = self.ask("attach", cluster_id=self._cluster_id, node="node-a", session=1)

    def send(self, do: str, **fields: Any) -> int:
        number = next(self._numbers)
        self._socket.sendall(encode({"do": do, "id": number, **fields}))
        return number

    def ask(self, do: str, **fields: Any) -> Message:
        """Send and wait for the answer."""
        number = self.send(do, **fields)
        self.until(lambda: number in self._answers)
        return self._answers.pop(number)

    def start(
        self, token: str, *argv: str, lease_ms: int = 600_000, session: int = 1, **work: Any
    ) -> Message:
        """Order an attempt; refusals are the caller's to look at."""
        order = {"attempt": "42/main/0#1", "argv": list(argv)} | work
        return self.ask(
            "start",
            token=token,
            session=session,
            lease_until_boottime_ms=boottime_ms() + lease_ms,
            work=order,
        )

    def shell(self, token: str, line: str, **work: Any) -> Message:
        return self.start(token, line, is_shell=True, **work)

    def run(self, token: str, *argv: str, **work: Any) -> Message:
        """Order an attempt and return its finish."""
        assert self.start(token, *argv, **work)["ok"]
        return self.finish(token)

    def kill(self, token: str, *, grace_ms: int = 10_000, **fields: Any) -> Message:
        facts = {"by": "user:ana", "why": "typo", "cause": "user_cancel", "grace_ms": grace_ms}
        return self.ask("kill", token=token, **(facts | fields))

    def renew(self, token: str, lease_ms: int = 600_000) -> Message:
        return self.ask("lease", leases={token: boottime_ms() + lease_ms})

    def finish(self, token: str) -> Message:
        return dict(self.event("finished", token)["finish"])

    def event(self, kind: str, token: str) -> Message:
        """The first event of that kind for that attempt, now or later."""

        def find() -> Message | None:
            return next((e for e in self.events if e["is"] == kind and e["token"] == token), None)

        self.until(lambda: find() is not None)
        found = find()
        assert found is not None
        return found

    def entry(self, token: str) -> Message:
        """The attempt's item of `list`."""
        return {item["token"]: item for item in self.ask("list")["attempts"]}[token]

    def until(self, condition: Callable[[], object]) -> None:
        """Receive until `condition` holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, f"not in time; events: {self.events[-20:]}"
            if select.select([self._socket], [], [], min(left, 1.0))[0]:
                data = self._socket.recv(1 << 20)
                assert data, "the keeper closed the connection"
                for message in self._reader.feed(data):
                    if message["is"] == "answer":
                        self._answers[message["id"]] = message
                    else:
                        self.events.append(message)

    def is_closed(self) -> bool:
        """The keeper closed this connection."""
        if not select.select([self._socket], [], [], 0)[0]:
            return False
        try:
            return not self._socket.recv(1 << 20)
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()


def eventually(probe: Callable[[], T]) -> T:
    """The first true value of `probe`."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := probe()):
        assert time.monotonic() < deadline, "never became true"
        time.sleep(0.02)
    return value


def state_of(pid: int) -> str:
    """The state letter in /proc; empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[0]
