"""A whole cluster of real processes in a directory of its own, driven through its command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).parents[2]

#: Generous on purpose: a loaded machine is slow, and only a hang should fail a test.
PATIENCE_S = 90.0
#: Short times of the cluster, so that silence is noticed within a test.
FAST = {
    "heartbeat_interval": "1s",
    "heartbeat_timeout": "5s",
    "transient_timeout": "15s",
    "rejoin_grace": "8s",
}


class CommandFailed(Exception):
    """A command ended with an exit code nobody expected."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        super().__init__(
            f"{' '.join(map(str, done.args[3:]))}: exit {done.returncode}\n"
            f"stdout: {done.stdout[-1500:]}\nstderr: {done.stderr[-1500:]}"
        )
        self.code = done.returncode
        self.stderr = done.stderr


def wait_until(
    condition: Callable[[], T], what: str, *, timeout_s: float = PATIENCE_S, every_s: float = 0.1
) -> T:
    """The first true value of `condition`; what it said last is told when it never was."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen: object
        try:
            value = condition()
            if value:
                return value
            seen = value
        except (
            CommandFailed,
            subprocess.TimeoutExpired,
            OSError,
            LookupError,
            ValueError,
        ) as error:
            seen = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; last seen: {seen!r:.600}")
        time.sleep(every_s)


def start_ticks(pid: int) -> int | None:
    """When a live process began, in clock ticks; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def pids_with(text: str) -> list[int]:
    """Live processes that have `text` in their environment or command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            content = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in content and start_ticks(int(entry.name)) is not None:
            found.append(int(entry.name))
    return found


class LocalCluster:
    """`pertinax up` in a fresh directory; ended and removed on exit."""

    def __init__(
        self,
        *,
        controllers: int = 3,
        agents: int = 2,
        settings: dict[str, str] | None = None,
        agent_settings: dict[str, str] | None = None,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pertinax-test-"))
        self.controllers = controllers
        self.agents = agents
        self.settings = settings or {}
        self.agent_settings = agent_settings or {}

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._show_logs()
        self._remove()

    def _remove(self) -> None:
        try:
            self.run("down", codes=None, timeout_s=PATIENCE_S)
        finally:
            for pid in pids_with(str(self.directory)):
                _signal(pid, signal.SIGKILL)
            shutil.rmtree(self.directory, ignore_errors=True)

    def _show_logs(self) -> None:
        for path in sorted(self.directory.rglob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-25:]
            print(f"--- {path.name}", *lines, sep="\n", file=sys.stderr)

    # ---- commands ------------------------------------------------------------------------------

    def command(self, *args: object) -> list[str]:
        return [sys.executable, "-m", "scheduler.cli.main", *map(str, args)]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PERTINAX_CLUSTER": str(self.directory), "NO_COLOR": "1"}

    def run(
        self,
        *args: object,
        codes: Iterable[int] | None = (0,),
        timeout_s: float = PATIENCE_S,
        text_input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """One call of the command line; `codes=None` takes every exit code."""
        done = subprocess.run(
            self.command(*args),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout_s,
            env=self.environment(),
            cwd=ROOT,
            input=text_input,
            check=False,
        )
        if codes is not None and done.returncode not in set(codes):
            raise CommandFailed(done)
        return done

    def json(self, *args: object, codes: Iterable[int] = (0,)) -> Any:
        return json.loads(self.run(*args, "--json", codes=codes).stdout)

    def up(self) -> None:
        args: list[object] = ["up", "--detach", "--dir", self.directory]
        args += ["--controllers", self.controllers, "--agents", self.agents]
        for key, value in self.settings.items():
            args += ["--set", f"{key}={value}"]
        for key, value in self.agent_settings.items():
            args += ["--agent-set", f"{key}={value}"]
        self.run(*args, timeout_s=2 * PATIENCE_S)

    def submit(self, *args: object) -> int:
        return int(self.run("submit", *args).stdout.split()[0])

    def job(self, job: int) -> dict[str, Any]:
        found: dict[str, Any] = self.json("job", job)
        return found

    def attempts(self, job: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("attempts", job)["attempts"]
        return found

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("nodes")["nodes"]
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json("cluster", "status")
        return found

    def leader(self) -> str:
        return wait_until(lambda: self.status()["leader"], "a leader")

    def wait_running(self, job: int) -> dict[str, Any]:
        wait_until(lambda: self.job(job)["phase"] == "Running", f"job {job} runs")
        return self.attempts(job)[-1]

    def wait_final(self, job: int, *, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The job's record once it is final, through any change of leader."""

        def final() -> dict[str, Any] | None:
            job_now = self.job(job)
            return job_now if job_now["phase"] in ("Succeeded", "Failed", "Killed") else None

        return wait_until(final, f"job {job} is final", timeout_s=timeout_s)

    # ---- members -------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "cluster.json").read_text())
        return found

    def member(self, name: str) -> dict[str, Any]:
        info = self.info()
        return next(m for m in [*info["controllers"], *info["agents"]] if m["name"] == name)

    def signal(self, name: str, number: signal.Signals) -> None:
        _signal(self.member(name)["pid"], number)

    def kill(self, *names: str) -> None:
        """SIGKILL to all of them at once; returns when they are gone."""
        pids = [self.member(name)["pid"] for name in names]
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        wait_until(lambda: all(start_ticks(pid) is None for pid in pids), f"{names} are gone")

    def start(self, name: str) -> None:
        self.run("up", "--only", name, "--dir", self.directory)

    def wait_healthy(self) -> None:
        """Every controller caught up, every node Online."""

        def healthy() -> bool:
            return all(m["healthy"] for m in self.status()["members"]) and all(
                n["phase"] == "Online" for n in self.nodes()
            )

        wait_until(healthy, "every member is healthy and every node Online")


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
