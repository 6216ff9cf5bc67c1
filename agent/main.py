"""`python -m agent --config FILE [--leave] [--set KEY=VALUE]...`: the node's daemon.

    SIGTERM, SIGINT   as `on_sigterm` says: restart (jobs go on) or leave (they are ended first)
    SIGUSR1           restart, whatever `on_sigterm` says
    SIGUSR2           leave, whatever `on_sigterm` says

`--leave` tells the agent that runs on the data directory to leave and waits for it; without one it
starts, leaves, and ends. Exit codes: 0 done · 1 failed · 2 usage or configuration · 4 refused by
the cluster for good, or another agent runs here · 6 left, but not every end could be committed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from agent.config import AgentConfig, load_config
from agent.core import EXIT_UNCOMMITTED
from agent.daemon import data_directory, open_agent
from agent.errors import AlreadyRunning, ConfigError
from agent.logs import EventLog
from agent.node import DirectoryLock, running_agent
from agent.places import Places
from wal.errors import WalError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_CONFLICT: Final = 4
#: Seconds a killed predecessor may take to let go of the directory.
PREDECESSOR_S: Final = 3.0
#: What `--leave` waits beyond leave_timeout for the other process to end.
LEAVE_EXTRA_S: Final = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Run the agent; return its exit code."""
    options = _parse(arguments)
    try:
        config = load_config(options.config, overrides=options.overrides)
        directory = data_directory(config)
        if options.leave and (pid := running_agent(directory)) is not None:
            return _leave_other(pid, config)
        lock = DirectoryLock.take(directory, wait_s=PREDECESSOR_S)
    except ConfigError as error:
        return _fail(EXIT_USAGE, *error.mistakes)
    except AlreadyRunning as error:
        return _fail(EXIT_CONFLICT, f"{error}; `--leave` tells it to leave")
    except OSError as error:
        return _fail(EXIT_FAILED, f"the data directory cannot be used: {error}")
    try:
        log = EventLog.open(config.log_file, is_json=config.log_format == "json")
        return uvloop.run(_run(config, log, is_leave=options.leave))
    except (WalError, ValueError, OSError) as error:
        return _fail(EXIT_FAILED, f"{type(error).__name__}: {error}")
    except ExceptionGroup as group:
        # One of the tasks broke: a failed sync, whose recovery is a restart, or a bug of ours.
        traceback.print_exception(group)
        return _fail(EXIT_FAILED, *(f"{type(e).__name__}: {e}" for e in group.exceptions))
    finally:
        lock.release()


async def _run(config: AgentConfig, log: EventLog, *, is_leave: bool) -> int:
    agent = open_agent(config, log)
    loop = asyncio.get_running_loop()
    leaves = config.on_sigterm == "leave"
    for number, is_leaving in (
        (signal.SIGTERM, leaves),
        (signal.SIGINT, leaves),
        (signal.SIGUSR1, False),
        (signal.SIGUSR2, True),
    ):
        stop = partial(agent.stop, is_leave=is_leaving, why=f"signal {number.name}")
        loop.add_signal_handler(number, stop)
    if is_leave:
        agent.stop(is_leave=True, why="agent --leave")
    return await agent.run()


def _leave_other(pid: int, config: AgentConfig) -> int:
    """Tell the agent `pid` to leave, wait for its end, and return the code it ended with."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return EXIT_FAILED
    try:
        # The lock was held after its holder wrote this pid: it is the agent, not a later process.
        if running_agent(config.data_dir) != pid:
            return _fail(EXIT_FAILED, "the agent changed meanwhile; try again")
        signal.pidfd_send_signal(pidfd, signal.SIGUSR2)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if not poller.poll(config.leave_timeout_ms + LEAVE_EXTRA_S * 1000):
            return _fail(EXIT_UNCOMMITTED, f"agent {pid} has not left within leave_timeout")
    finally:
        os.close(pidfd)
    try:
        status = json.loads(Places(config.data_dir).status.read_text())
    except (OSError, ValueError):
        return EXIT_FAILED
    return int(status.get("exit_code", EXIT_FAILED)) if status.get("pid") == pid else EXIT_FAILED


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agent", description="The daemon of one compute node.")
    parser.add_argument("--config", required=True, type=Path, metavar="FILE")
    parser.add_argument("--leave", action="store_true", help="end all jobs, say goodbye, exit")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    return parser.parse_args(arguments)


def _fail(code: int, *lines: str) -> int:
    for line in lines:
        sys.stderr.write(f"agent: {line}\n")
    return code
