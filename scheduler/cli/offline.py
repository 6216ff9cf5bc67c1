"""What works without a cluster, in a process of its own: `verify`, `wal`, `controller`, `agent`.

The command line imports nothing of these: it replaces itself by `python -m MODULE`, whose exit code
and output are then the command's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from scheduler.cli.base import json_option, session

_ALL = {"ignore_unknown_options": True, "allow_interspersed_args": True}


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@json_option
def verify(directory: str) -> None:
    """Check a controller's data directory by replaying its log: exit code 0 or 1.

    Reads only, takes no lock: it can be used while the controller runs.
    """
    _become("scheduler.verify", [directory, *_json()])


@click.group()
def wal() -> None:
    """Check, dump or repair a write-ahead log (a controller's data directory)."""


def _wal_command(name: str, told: str) -> None:
    @wal.command(name=name, help=told, context_settings=_ALL)
    @click.argument("directory", type=click.Path(exists=True, file_okay=False))
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    @json_option
    def command(directory: str, rest: tuple[str, ...]) -> None:
        _become("wal", [name, directory, *rest, *_json()])


_wal_command("check", "Check every record: exit code 0 sound, 1 damaged.")
_wal_command("dump", "Print the records.")
_wal_command("stats", "Tell sizes and indexes.")
_wal_command("repair", "Repair; only what its options name is changed.")


@click.command(context_settings=_ALL)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
@click.option("--config", "config_file", required=True, metavar="FILE")
@json_option
def controller(config_file: str, rest: tuple[str, ...]) -> None:
    """Run a controller in the foreground."""
    _become("scheduler.main", ["--config", config_file, *rest])


@click.command(context_settings=_ALL)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
@click.option("--config", "config_file", required=True, metavar="FILE")
@click.option("--leave", is_flag=True, help="End every job in order, report it, and go.")
@json_option
def agent(config_file: str, rest: tuple[str, ...], *, leave: bool) -> None:
    """Run an agent in the foreground."""
    _become("agent", ["--config", config_file, *(["--leave"] if leave else []), *rest])


def _json() -> list[str]:
    return ["--json"] if session().is_json else []


def _become(module: str, args: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *args])  # noqa: S606  our own modules
