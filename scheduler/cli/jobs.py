"""Looking at jobs: `jobs`, `job`, `workers`, `attempts`, `history`, `why`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import click

from scheduler.cli.base import (
    Document,
    common,
    id_argument,
    quiet_option,
    session,
)
from scheduler.cli.failure import usage
from scheduler.cli.render import ago, fields, lasted, phase_of, size, span, table
from scheduler.client.errors import NotAvailable

PHASES: Final = ("Pending", "Running", "Succeeded", "Failed", "Killed", "Stopped")
#: Jobs of a list unless --limit says otherwise.
JOBS_DEFAULT: Final = 50
#: Most jobs of one request; longer lists take several.
PAGE_MAX: Final = 1000
#: Seconds between two looks of `--watch`.
WATCH_S: Final = 1.0


@click.command()
@click.option("--state", metavar="S,...", help=f"Of these phases: {', '.join(PHASES)}.")
@click.option("--user", metavar="U", help="Of this user.")
@click.option("--queue", metavar="Q", help="Of this queue.")
@click.option("--name", metavar="GLOB", help="Whose name matches, such as 'train-*'.")
@click.option(
    "--overdue", is_flag=True, help="With an attempt that should be decided; always none."
)
@click.option("--limit", type=click.IntRange(1), default=JOBS_DEFAULT, show_default=True)
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@quiet_option
@common
def jobs(state: str | None, *, limit: int, watch: bool, **filters: Any) -> None:
    """List jobs, newest first."""
    states = _states(state)

    def look() -> Document:
        return _pages(limit, state=states, **filters)

    if watch:
        _watch(look)
    elif session().is_json:
        session().print_json(look())
    elif session().is_quiet:
        session().print_ids(look()["jobs"])
    else:
        found = look()
        print(_jobs_table(found["jobs"]))
        if found.get("next"):
            session().say(f"(the newest {limit}; --limit shows more)")


@click.command()
@id_argument()
@common
def job(target: str) -> None:
    """Show a job."""
    found = session()
    job_id = _job_part(found.resolve(target))
    view = found.client.job(job_id)
    if found.is_json:
        found.print_json(view)
        return
    tasks = view.get("spec", {}).get("tasks", {})
    print(
        fields(
            [
                ("job", view["id"]),
                ("name", view.get("name")),
                ("phase", phase_of(view)),
                ("cause", view.get("cause")),
                ("exit code", view.get("exit_code")),
                ("by", view.get("by")),
                ("why", view.get("why")),
                ("message", view.get("message")),
                *((f"task {name}", _command(task)) for name, task in tasks.items()),
                ("user", view.get("user")),
                ("queue", view.get("queue")),
                ("priority", view.get("priority") or None),
                ("submitted", _when(view.get("submitted_at"))),
                ("started", _when(view.get("started_at"))),
                ("ended", _when(view.get("ended_at"))),
                ("lasted", lasted(view.get("started_at"), view.get("ended_at"))),
                *(("pending", _reason(one)) for one in view.get("pending_reasons") or ()),
                ("conditions", ", ".join(map(str, view.get("conditions") or ()))),
            ]
        )
    )


@click.command()
@id_argument()
@click.option("--failed", is_flag=True, help="Only those that failed.")
@quiet_option
@common
def workers(target: str, *, failed: bool) -> None:
    """List the workers of a job."""
    target = session().resolve(target)
    document = session().client.workers(target)
    if failed:
        document["workers"] = [one for one in document["workers"] if one["phase"] == "Failed"]
    _print_list(
        document,
        "workers",
        ("ID", "PHASE", "ATTEMPT", "NODE", "PROGRESS", "READY", "PENDING"),
        lambda one: (
            one["id"],
            phase_of(one),
            f"#{one['attempt']} of {one['attempts']}" if one.get("attempts") else None,
            one.get("node"),
            _progress(one.get("progress")),
            one.get("ready"),
            "; ".join(_reason(reason) for reason in one.get("pending_reasons") or ()),
        ),
        flexible=("PENDING",),
    )


@click.command()
@id_argument()
@quiet_option
@common
def attempts(target: str) -> None:
    """List the attempts of a job, worker by worker."""
    target = session().resolve(target)
    _print_list(
        session().client.attempts(target),
        "attempts",
        ("ID", "PHASE", "CAUSE", "EVIDENCE", "EXIT", "NODE", "STARTED", "LASTED", "PEAK", "WHY"),
        lambda one: (
            one["id"],
            phase_of(one),
            one.get("cause"),
            one.get("evidence"),
            one.get("signal") if one.get("exit_code") is None else one["exit_code"],
            one.get("node"),
            ago(one.get("started_at")),
            lasted(one.get("started_at"), one.get("ended_at")),
            size(one.get("peak_rss_bytes")),
            one.get("why"),
        ),
        flexible=("WHY",),
    )


@click.command()
@id_argument()
@common
def history(target: str) -> None:
    """Show what happened to a job, worker or attempt, step by step."""
    target = session().resolve(target)
    print_events(session().client.history(target))


@click.command()
@id_argument()
@common
def why(target: str) -> None:
    """Tell why a job is pending, or by which rule and when its end will be decided."""
    found = session()
    target = found.resolve(target)
    view = found.client.why(target)
    if found.is_json:
        found.print_json(view)
        return
    unknown = view.get("unknown")
    pairs: list[tuple[str, object]] = [
        ("id", view.get("id")),
        ("phase", phase_of(view)),
        ("cause", view.get("cause")),
        ("evidence", view.get("evidence")),
        ("by", view.get("by")),
        ("why", view.get("why")),
        ("message", view.get("message")),
    ]
    if isinstance(unknown, Mapping):
        pairs += [
            ("unknown since", _when(unknown.get("transient_since"))),
            ("decided at", _when(unknown.get("deadline"))),
        ]
    decided = view.get("decided_by")
    if isinstance(decided, Mapping):
        pairs.append(("decided by", f"{decided.get('rule')}, {_when(decided.get('at'))}"))
    pairs += [("pending", _reason(one)) for one in view.get("pending_reasons") or ()]
    print(fields(pairs))


def print_events(document: Document) -> None:
    """`{"events": […]}` as a timeline."""
    if session().is_json:
        session().print_json(document)
        return
    print(table(EVENT_HEADERS, map(event_row, document["events"]), flexible=("WHY",)))


EVENT_HEADERS: Final = ("TIME", "OBJECT", "WHAT", "CAUSE", "BY", "WHY")


def event_row(event: Document) -> tuple[Any, ...]:
    """An event as a row of EVENT_HEADERS."""
    change = event.get("kind")
    if event.get("from") or event.get("to"):
        change = f"{event.get('from') or '–'} → {event.get('to') or '–'}"
    return (
        _clock(event.get("time")),
        event.get("object"),
        change,
        event.get("cause"),
        event.get("by"),
        event.get("why") or _details(event.get("details")),
    )


def _states(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    found = []
    for word in filter(None, (one.strip() for one in text.split(","))):
        phase = next((one for one in PHASES if one.lower() == word.lower()), None)
        if phase is None:
            raise usage(
                f"{word!r} is no phase",
                why=f"jobs are in one of {', '.join(PHASES)}",
                hint="write --state Pending,Running",
                code="bad_option",
            )
        found.append(phase)
    return tuple(found)


def _pages(limit: int, **filters: Any) -> Document:
    """The newest `limit` jobs, by as many requests as that takes."""
    client = session().client
    answer = client.jobs(limit=min(limit, PAGE_MAX), **filters)
    while answer.get("next") and (left := limit - len(answer["jobs"])) > 0:
        page = client.jobs(limit=min(left, PAGE_MAX), after=answer["next"], **filters)
        answer = {**page, "jobs": answer["jobs"] + page["jobs"]}
    return answer


def _watch(look: Callable[[], Document]) -> None:
    found, seen = session(), None
    while True:
        try:
            listed = look()["jobs"]
        except NotAvailable as error:
            # An election is no reason to end: the next look may reach a leader.
            found.say(f"({error.message})")
        else:
            if found.is_json:
                if listed != seen:
                    found.print_line({"jobs": listed})
            elif sys.stdout.isatty():
                print(f"\x1b[H\x1b[2J{_jobs_table(listed)}", flush=True)
            elif listed != seen:
                print(_jobs_table(listed), flush=True)
            seen = listed
        time.sleep(WATCH_S)  # the pace of reading, not a wait for a condition


def _jobs_table(listed: Iterable[Document]) -> str:
    return table(
        ("ID", "NAME", "PHASE", "CAUSE", "EXIT", "USER", "SUBMITTED", "LASTED", "MESSAGE"),
        (
            (
                one["id"],
                one.get("name"),
                phase_of(one),
                one.get("cause"),
                one.get("exit_code"),
                one.get("user"),
                ago(one.get("submitted_at")),
                lasted(one.get("started_at"), one.get("ended_at")),
                one.get("message") or _first_reason(one),
            )
            for one in listed
        ),
        flexible=("NAME", "MESSAGE"),
    )


def _print_list(
    document: Document,
    name: str,
    headers: tuple[str, ...],
    row: Callable[[Document], tuple[Any, ...]],
    *,
    flexible: tuple[str, ...],
) -> None:
    if session().is_json:
        session().print_json(document)
    elif session().is_quiet:
        session().print_ids(document[name])
    else:
        print(table(headers, map(row, document[name]), flexible=flexible))


def _job_part(target: str) -> str:
    return target.partition("/")[0].partition("#")[0]


def _command(task: Mapping[str, Any]) -> str:
    import shlex

    return str(task["shell"]) if task.get("shell") else shlex.join(task.get("command") or ())


def _when(value: str | None) -> str:
    return f"{value} ({ago(value)})" if value else ""


def _clock(value: str | None) -> str:
    return (value or "").replace("T", " ").replace("+00:00", "Z")


def _reason(reason: Mapping[str, Any]) -> str:
    count = reason.get("count")
    times = f" (×{count})" if isinstance(count, int) and count > 1 else ""
    return f"{reason.get('code')}: {reason.get('message')}{times}"


def _first_reason(view: Document) -> str:
    reasons = view.get("pending_reasons") or ()
    return _reason(reasons[0]) if reasons else ""


def _progress(progress: Mapping[str, Any] | None) -> str:
    if not progress:
        return ""
    told = f"{progress.get('done')}/{progress.get('total')} {progress.get('text') or ''}".rstrip()
    left = progress.get("eta_s")
    return told + (f", {span(left)} left" if isinstance(left, int | float) else "")


def _details(details: object) -> str:
    if not isinstance(details, Mapping):
        return ""
    return ", ".join(f"{name}={value}" for name, value in details.items())
