"""`logs`: what a job printed."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING

import click

from scheduler.cli.base import Document, common, id_argument, session
from scheduler.cli.output import OutputWriter

if TYPE_CHECKING:
    from scheduler.client.follow import LogChunk


@click.command()
@id_argument()
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is final.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Of this attempt; the newest.")
@click.option("--stderr", "is_stderr", is_flag=True, help="Standard error instead of output.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Begin with the last N lines.")
@click.option("--raw", is_flag=True, help="On a terminal, too, exactly the bytes.")
@common
def logs(
    target: str,
    attempt: int | None,
    tail: int | None,
    *,
    follow: bool,
    is_stderr: bool,
    raw: bool,
) -> None:
    """Show what a job printed.

    With --json each piece is one line: {"attempt", "stream", "offset", "text"}, or "base64" where
    the bytes are no UTF-8.
    """
    found = session()
    target = found.resolve(target)
    chunks = found.client.logs(
        target,
        stream="stderr" if is_stderr else "stdout",
        attempt=attempt,
        tail_lines=tail,
        follow=follow,
    )
    if found.is_json:
        for document in map(_document, chunks):
            found.print_line(document)
        return
    OutputWriter(sys.stdout, is_raw=raw, marks_attempts=follow).write_all(chunks)


def _document(chunk: LogChunk) -> Document:
    document: Document = {
        "attempt": chunk.attempt,
        "stream": chunk.stream,
        "offset": chunk.offset,
        "lost_bytes": chunk.lost_bytes,
    }
    try:
        document["text"] = chunk.data.decode()
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(chunk.data).decode()
    return document
