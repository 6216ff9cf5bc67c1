"""`run`: submit, follow the output, and end as the job did."""

from __future__ import annotations

import re
import sys
import threading
from time import monotonic, sleep
from typing import Any, Final

import click

from scheduler.cli.base import Document, Session, common, session
from scheduler.cli.failure import Exit, Failure
from scheduler.cli.options import job_document, job_options
from scheduler.cli.output import OutputWriter
from scheduler.cli.submit import send
from scheduler.client.errors import ClientError, LogLost, WaitTimeout

#: Exit codes of shells for what could not be started.
NOT_FOUND_CODE: Final = 127
NOT_EXECUTABLE_CODE: Final = 126
TIMED_OUT_CODE: Final = 124
#: Killed, or the scheduler is to blame and not the job.
NOT_THE_JOB_CODE: Final = 125
OUT_OF_MEMORY_CODE: Final = 137
#: Seconds after the job's end in which the rest of its output must have come.
DRAIN_S: Final = 30.0
#: Seconds between two looks whether somebody still reads the output (`run … | head`).
READER_CHECK_S: Final = 5.0
#: Seconds after the first Ctrl-C in which a second one kills the job.
SECOND_INTERRUPT_S: Final = 2.0


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--up", "is_up", is_flag=True, help="Start a cluster here if none is found.")
@job_options
@common
def run(command: tuple[str, ...], key: str | None, *, is_up: bool, **values: Any) -> None:
    """Submit, follow output, exit with the job's exit code.

    0 exactly when it succeeded; 1 when a check failed after exit code 0; 128+n when signal n
    ended it; 124 for its time limit; 125 when it was killed, or the scheduler is to blame; 126 or
    127 when it could not be started. Ctrl-C leaves it running, a second one kills it.
    """
    found = session()
    document = job_document(command, values)
    if is_up:
        _ensure_cluster(found)
    _, [job] = send([document], key)
    if sys.stderr.isatty():
        found.say(f"job {job['id']}")
    try:
        final = _follow(found, str(job["id"]))
    except KeyboardInterrupt:
        found.exit_code = _interrupted(found, str(job["id"]))
        return
    found.exit_code = exit_code_of(final)
    if found.is_json:
        found.print_json(final)
    elif final["phase"] != "Succeeded" and (told := explain(final)):
        found.say(told)


def exit_code_of(job: Document) -> int:
    """The exit code of `run` for a final job."""
    if job["phase"] == "Succeeded":
        return Exit.DONE
    if job["phase"] != "Failed":
        return NOT_THE_JOB_CODE
    match job.get("cause"):
        case "exit_nonzero":
            return int(job.get("exit_code") or 1)
        case "signal":
            return _of_signal(job)
        case "oom":
            return OUT_OF_MEMORY_CODE
        case "timeout" | "stalled":
            return TIMED_OUT_CODE
        case "output_check":
            return int(job.get("exit_code") or 1)
        case "launch_error":
            why = str(job.get("why") or job.get("message") or "")
            is_missing = re.search(r"ENOENT|[Nn]o such file|not found", why) or not why
            return NOT_FOUND_CODE if is_missing else NOT_EXECUTABLE_CODE
        case _:
            return NOT_THE_JOB_CODE


def explain(job: Document) -> str:
    """Why a job that did not succeed ended, unless its exit code says it all."""
    if job.get("cause") == "exit_nonzero":
        return ""
    parts = [f"job {job['id']}: {job['phase']} {job.get('cause') or ''}".rstrip()]
    if job.get("by"):
        parts.append(f"by {job['by']}")
    if job.get("why"):
        parts.append(str(job["why"]))
    return ", ".join(parts) + f" (pertinax history {job['id']})"


def _of_signal(job: Document) -> int:
    import signal

    name = job.get("signal") or _attempt_signal(job)
    try:
        return 128 + signal.Signals[str(name)]
    except KeyError:
        return NOT_THE_JOB_CODE


def _attempt_signal(job: Document) -> object:
    """The job's record names no signal: its newest attempt's does."""
    attempts = session().client.attempts(job["id"])["attempts"]
    return attempts[-1].get("signal") if attempts else None


def _follow(found: Session, job_id: str) -> Document:
    """Write the job's output until it is final; returns the job."""
    if found.is_json:
        return found.client.wait([job_id])[0]
    followers = [_Follower(found, job_id, name) for name in ("stdout", "stderr")]
    for follower in followers:
        follower.start()
    final = None
    while final is None:
        try:
            final = found.client.wait([job_id], timeout_s=READER_CHECK_S)[0]
        except WaitTimeout:
            if any(follower.is_reader_gone for follower in followers):
                found.say(f"nobody reads the output any more; job {job_id} goes on")
                raise BrokenPipeError from None
    ends_at = monotonic() + DRAIN_S
    for follower in followers:
        follower.join(max(0.0, ends_at - monotonic()))
        follower.report()
    return final


class _Follower(threading.Thread):
    """Writes one stream of a job, with a client of its own."""

    def __init__(self, found: Session, job_id: str, stream: str) -> None:
        super().__init__(name=f"follow-{stream}", daemon=True)
        self._context = found.found.context
        self._say = found.say
        self._job_id = job_id
        self._stream = stream
        self._error: Exception | None = None
        target = sys.stdout if stream == "stdout" else sys.stderr
        self._writer = OutputWriter(target, is_raw=False, marks_attempts=sys.stderr.isatty())

    def run(self) -> None:
        from scheduler.client.client import Client

        try:
            with Client(self._context) as client:
                self._writer.write_all(client.logs(self._job_id, stream=self._stream, follow=True))
        except (ClientError, OSError) as error:
            self._error = error

    @property
    def is_reader_gone(self) -> bool:
        """True when what the output is piped into has ended."""
        return isinstance(self._error, BrokenPipeError)

    def report(self) -> None:
        """Say what of the output is missing. The job's own end decides the exit code."""
        if self.is_reader_gone:
            return  # the reader went away: it wanted no more
        if isinstance(self._error, LogLost) and self._is_empty():
            return  # asked just between its end and the record of it
        if self._error is not None:
            self._say(f"(its {self._stream} is not complete: {self._error})")
        elif self.is_alive():
            self._say(f"(its {self._stream} is not complete: it did not come within {DRAIN_S:g} s)")

    def _is_empty(self) -> bool:
        attempts = session().client.attempts(self._job_id)["attempts"]
        kept = attempts[-1].get(self._stream) if attempts else None
        return isinstance(kept, dict) and kept.get("bytes") == 0


def _interrupted(found: Session, job_id: str) -> int:
    found.say(
        f"\ndetached: job {job_id} goes on. Come back with `pertinax logs -f {job_id}` and"
        f" `pertinax wait {job_id}`; Ctrl-C again kills it"
    )
    try:
        sleep(SECOND_INTERRUPT_S)
    except KeyboardInterrupt:
        found.client.kill(job_id, why="interrupted by Ctrl-C")
        found.say(f"job {job_id} is being killed")
    return Exit.INTERRUPTED


def _ensure_cluster(found: Session) -> None:
    """Start the cluster that is found here when it does not run, or make one when none is."""
    from scheduler.cli.local import default_root, ensure_up

    try:
        _ = found.found
    except Failure as failure:
        if failure.code not in ("no_cluster", "not_running") or found.cluster:
            raise
        ensure_up(default_root())
