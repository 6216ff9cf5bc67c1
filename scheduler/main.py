"""One controller process: wires log, state machine, leader, agents' port and HTTP together.

    python -m scheduler.main --config FILE

Writes `data_dir/status.json` whenever its part changes. SIGTERM and SIGINT stop it in good order;
it exits non-zero, with one line on stderr, when it cannot start or must not go on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import uvloop

from replication.config import ReplicationConfig, TlsFiles
from replication.errors import ReplicationError
from replication.interface import Leadership, ReplicatedLog
from replication.node import RaftLog
from scheduler.controller import logs
from scheduler.controller.agreement import Agreement, Diverged, refuse_marked
from scheduler.controller.certs import CONTROLLER, read_token_file, server_context
from scheduler.controller.clock import SystemClock
from scheduler.controller.config import ConfigMistakes, ControllerConfig, load_config
from scheduler.controller.founding import (
    Founding,
    NotFounded,
    incarnation_number,
    read_founding,
)
from scheduler.controller.leader import Leader
from scheduler.controller.metrics import Metrics
from scheduler.controller.predecessor import wait_for_predecessor
from scheduler.controller.service import Service
from scheduler.controller.sessions import AgentPort
from scheduler.controller.state_machine import ClusterMachine
from scheduler.controller.watch import EventHub
from scheduler.core.views import event_view
from wal.errors import WalError
from wal.opening import LOCK_NAME

STATUS_NAME: Final = "status.json"
EXIT_FATAL: Final = 1
EXIT_CONFIG: Final = 2
#: On SIGTERM a leader hands over first; longer than this it does not wait.
TRANSFER_TIMEOUT_S: Final = 1.0


class Fatal(Exception):
    """This process must not go on: the log failed, or a duty met a bug."""


@dataclass(slots=True)
class Controller:
    """The parts of one controller. Event loop."""

    config: ControllerConfig
    log: ReplicatedLog
    machine: ClusterMachine
    leader: Leader
    port: AgentPort
    hub: EventHub
    service: Service
    agreement: Agreement


def build(config: ControllerConfig, founding: Founding) -> Controller:
    """All parts, wired and not started. Raises ReplicationError for settings out of order."""
    metrics, hub = Metrics(), EventHub(render=event_view)
    machine = ClusterMachine(hub, metrics)
    log = RaftLog(replication_config(config, founding), machine)
    port = AgentPort(config, log, metrics)
    leader = Leader(
        config=config,
        founding=founding,
        log=log,
        machine=machine,
        clock=SystemClock(),
        metrics=metrics,
        port=port,
    )
    service = Service(
        config=config,
        log=log,
        machine=machine,
        leader=leader,
        port=port,
        hub=hub,
        metrics=metrics,
    )
    agreement = Agreement(log=log, machine=machine, metrics=metrics, data_dir=config.data_dir)
    return Controller(config, log, machine, leader, port, hub, service, agreement)


def replication_config(config: ControllerConfig, founding: Founding) -> ReplicationConfig:
    """What the log needs of the configuration."""
    tls = None
    if config.tls is not None:
        tls = TlsFiles(
            ca=config.tls.ca,
            cert=config.tls.cert,
            key=config.tls.key,
            name_prefix=f"{CONTROLLER}:",
        )
    return ReplicationConfig(
        name=config.name,
        cluster_id=founding.cluster_id,
        incarnation=incarnation_number(founding.incarnation),
        members={name: member.raft for name, member in config.members.items()},
        listen=config.member.raft,
        data_dir=config.data_dir,
        tls=tls,
        version=metadata.version("pertinax"),
        election_timeout_min_ms=config.election_timeout_min_ms,
        election_timeout_max_ms=config.election_timeout_max_ms,
        snapshot_every_entries=config.snapshot_entries,
        segment_bytes=config.segment_bytes,
    )


async def run(config: ControllerConfig, founding: Founding) -> None:
    """Run one controller until SIGTERM or SIGINT. Raises Fatal, OSError and ReplicationError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    controller = build(config, founding)
    status = StatusFile(config.data_dir / STATUS_NAME, controller.log)
    failure: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failure.append(error)
        stop.set()

    controller.log.on_fatal(fail)
    controller.agreement.on_fatal(fail)
    controller.log.on_leadership(status.write)
    async with _serving(controller):
        status.write(controller.log.leadership)
        logs.info("controller_started", name=config.name, pid=os.getpid())
        tasks = [
            asyncio.create_task(controller.leader.run(), name="leader"),
            asyncio.create_task(controller.agreement.run(), name="agreement"),
        ]
        for task in tasks:
            task.add_done_callback(lambda ended: _note_end(ended, fail))
        try:
            await stop.wait()
            if not failure:
                await _hand_over(controller.log)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    status.remove()
    if failure:
        raise Fatal(f"{type(failure[0]).__name__}: {failure[0]}") from failure[0]
    logs.info("controller_stopped", name=config.name)


@contextlib.asynccontextmanager
async def _serving(controller: Controller) -> AsyncIterator[None]:
    """The log, the agents' port and the API, up; and down again in the other order."""
    config = controller.config
    context, files = None, config.tls
    if files is not None:
        context = server_context(ca=files.ca, cert=files.cert, key=files.key)
    await controller.log.start()
    # What the start left behind lives as long as the process: no collection needs to walk it.
    gc.collect()
    gc.freeze()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(controller.log.close)
        await controller.port.listen(context)
        stack.push_async_callback(controller.port.close)
        stack.callback(controller.hub.close)
        await stack.enter_async_context(_http(controller))
        yield


@contextlib.asynccontextmanager
async def _http(controller: Controller) -> AsyncIterator[None]:
    # Imported late: the web stack is the largest part of a controller's start.
    from scheduler.http.app import make_app
    from scheduler.http.auth import AdminTokenAuth
    from scheduler.http.forward import Forwarder
    from scheduler.http.server import listen, serve

    config, tls = controller.config, controller.config.tls
    if config.admin_token_file is None:
        raise Fatal(f"{config.path}: [auth] admin_token_file is missing; nobody could log in")
    auth = AdminTokenAuth(read_token_file(config.admin_token_file))
    forwarder = Forwarder(
        name=config.name,
        tls=None if tls is None else ssl.create_default_context(cafile=str(tls.ca)),
    )
    app = make_app(controller.service, auth, forwarder=forwarder)
    cert, key = (None, None) if tls is None else (tls.cert, tls.key)
    try:
        async with serve(app, listen(*config.member.http_address), cert=cert, key=key):
            yield
    finally:
        await forwarder.close()


async def _hand_over(log: ReplicatedLog) -> None:
    """A leader that stops makes another one first, so that nobody waits for an election."""
    if log.is_leader and len(log.members()) > 1:
        with contextlib.suppress(ReplicationError):
            await log.transfer_leadership(timeout_s=TRANSFER_TIMEOUT_S)


def _note_end(task: asyncio.Task[None], fail: object) -> None:
    assert callable(fail)
    if not task.cancelled() and (error := task.exception()) is not None:
        logs.error("task_failed", task=task.get_name(), cause=error)
        fail(error)


class StatusFile:
    """`status.json`, replaced atomically: who this process is and what it knows of leadership."""

    def __init__(self, path: Path, log: ReplicatedLog) -> None:
        self._path = path
        self._log = log

    def write(self, leadership: Leadership) -> None:
        """Write it anew. Small, on the local disk and without a sync: a hint for tools."""
        document = {
            "pid": os.getpid(),
            "name": self._log.name,
            "role": leadership.role.value,
            "term": leadership.term,
            "leader": leadership.leader,
        }
        aside = self._path.with_name(f".{self._path.name}.new")
        try:
            aside.write_text(json.dumps(document) + "\n", encoding="utf-8")
            aside.replace(self._path)
        except OSError as error:
            logs.warning("status_not_written", path=self._path, error=error)

    def remove(self) -> None:
        """The process is about to end in good order."""
        self._path.unlink(missing_ok=True)


def raise_descriptor_limit() -> None:
    """Let this process open as many files as it may: each agent and client is a descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 after an orderly stop, 1 on a fatal fault, 2 for a bad configuration."""
    parser = argparse.ArgumentParser(prog="pertinax controller", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config)
        founding = read_founding(config)
        refuse_marked(config.data_dir)
    except (ConfigMistakes, NotFounded, Diverged, OSError) as error:
        print(f"pertinax controller: {error}", file=sys.stderr)  # noqa: T201 -- before logs exist
        return EXIT_FATAL if isinstance(error, Diverged) else EXIT_CONFIG
    logs.set_up(level=config.log_level, file=config.log_file)
    raise_descriptor_limit()
    member = config.member
    wait_for_predecessor(
        (member.raft, member.agents, member.http_address), config.data_dir / LOCK_NAME
    )
    try:
        uvloop.run(run(config, founding))
    except (Fatal, OSError, ReplicationError, WalError, ValueError) as error:
        logs.error("controller_fatal", error=error)
        print(  # noqa: T201 -- the one line for whoever started it
            f"pertinax controller {config.name}: {error}", file=sys.stderr
        )
        return EXIT_FATAL
    return 0


if __name__ == "__main__":
    sys.exit(main())
