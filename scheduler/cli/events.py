"""`events`: what changes, as it changes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Final

import click

from scheduler.cli.base import Document, common, session
from scheduler.cli.jobs import EVENT_HEADERS, event_row, print_events
from scheduler.cli.render import visible
from scheduler.client.errors import ClientError

#: Without --follow: seconds without a further event after which the past is taken as complete.
QUIET_S: Final = 1.5
#: Events kept between the stream's reader and the printer.
WAITING_MAX: Final = 10_000


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--after", type=click.IntRange(0), metavar="INDEX", help="Later than this index.")
@click.option("--object", "objects", multiple=True, metavar="NAME", help="Of 42, node:a1 ... only.")
@common
def events(after: int | None, objects: tuple[str, ...], *, follow: bool) -> None:
    """Show what changes, as it changes.

    Without --follow what the controllers still have is printed. A job's whole story is in `pertinax
    history ID`.
    """
    if not follow:
        print_events({"events": list(_past(after or 0, objects))})
        return
    found = session()
    for event in found.client.follow(after=after, objects=objects):
        if found.is_json:
            found.print_line(event)
        else:
            cells = dict(zip(EVENT_HEADERS, event_row(event), strict=True))
            print(visible("  ".join(str(one) for one in cells.values() if one)), flush=True)


def _past(after: int, objects: tuple[str, ...]) -> Iterator[Document]:
    """Events up to now: the stream has no end, so a pause of QUIET_S is taken for it."""
    from scheduler.client.client import Client

    context = session().found.context
    found: queue.Queue[Document | ClientError] = queue.Queue(WAITING_MAX)

    def read() -> None:
        try:
            with Client(context) as client:
                for event in client.follow(after=after, objects=objects):
                    found.put(event)
        except ClientError as error:
            found.put(error)

    # The first answer may take its time: it is waited for before silence counts.
    session().client.cluster_status()
    threading.Thread(target=read, name="events", daemon=True).start()
    while True:
        try:
            event = found.get(timeout=QUIET_S)
        except queue.Empty:
            return
        if isinstance(event, ClientError):
            raise event
        yield event
