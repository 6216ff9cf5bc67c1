"""`wait`: until jobs are final."""

from __future__ import annotations

import sys
from typing import Any

import click

from scheduler.cli.base import Document, common, id_argument, quiet_option, session
from scheduler.cli.failure import Exit, usage
from scheduler.cli.render import table, visible
from scheduler.client.errors import WaitTimeout
from scheduler.protocol.units import BadQuantity, parse_duration_ms

#: Fewer jobs than this finish before a progress bar would be of use.
PROGRESS_JOBS_MIN = 2


@click.command()
@id_argument(is_many=True, name="targets")
@click.option("--timeout", metavar="D", help="Give up after that long, with exit code 8.")
@click.option("--any", "is_any", is_flag=True, help="Until one of them is final.")
@quiet_option
@common
def wait(targets: tuple[str, ...], timeout: str | None, *, is_any: bool) -> None:
    """Wait until jobs are final.

    Exit code 0 when all succeeded (with --any: the one that is final), 1 when not, 8 when the time
    was up before.
    """
    found = session()
    timeout_s = None if timeout is None else seconds("--timeout", timeout)
    ids = [found.resolve(target).partition("/")[0].partition("#")[0] for target in targets]
    jobs = wait_for(ids, timeout_s=timeout_s, is_any=is_any)
    if found.is_json:
        found.print_json({"jobs": jobs})
    elif found.is_quiet:
        found.print_ids(job for job in jobs if job["phase"] in FINAL)
    else:
        print(table(("ID", "NAME", "PHASE", "CAUSE", "EXIT"), [_row(job) for job in jobs]))


FINAL = ("Succeeded", "Failed", "Killed")


def wait_for(ids: list[str], *, timeout_s: float | None, is_any: bool) -> list[Document]:
    """The jobs once they are final, setting the exit code. WaitTimeout names those that are not."""
    found = session()
    try:
        with _Progress(len(set(ids))) as progress:
            jobs = found.client.wait(
                ids, timeout_s=timeout_s, is_any=is_any, on_change=progress.note
            )
    except WaitTimeout as error:
        left = [str(job["id"]) for job in error.jobs if job["phase"] not in FINAL]
        error.message = f"not final within the time: {', '.join(left)}"
        error.details["jobs"] = left
        error.hint = f"wait on with `pertinax wait {' '.join(left)}`"
        raise
    decided = [job for job in jobs if job["phase"] in FINAL]
    if any(job["phase"] != "Succeeded" for job in decided):
        found.exit_code = Exit.FAILED
    return jobs


def seconds(option: str, text: str) -> float:
    """A duration of the command line. Raises Failure."""
    try:
        return parse_duration_ms(float(text) if text.isdigit() else text) / 1000
    except BadQuantity as error:
        raise usage(
            f"{option} {text} cannot be read",
            why=str(error),
            hint=f"write {option} 30s, 5m or 1h30m",
            code="bad_option",
        ) from None


def _row(job: Document) -> tuple[Any, ...]:
    return (job["id"], job.get("name"), job["phase"], job.get("cause"), job.get("exit_code"))


class _Progress:
    """A bar on a terminal while several jobs are waited for; silent otherwise."""

    def __init__(self, count: int) -> None:
        self._final: set[Any] = set()
        self._bar: Any = None
        if count >= PROGRESS_JOBS_MIN and sys.stderr.isatty() and not session().is_json:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("waiting", total=count)

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, job: Document) -> None:
        if self._bar is None:
            return
        if job["phase"] in FINAL:
            self._final.add(job["id"])
        told = visible(f"{job['id']} {job['phase']}")
        self._bar.update(self._task, completed=len(self._final), description=told)
