"""`submit` and `validate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from scheduler.cli.base import Document, common, json_option, quiet_option, session
from scheduler.cli.failure import Exit, Failure, invalid, usage
from scheduler.cli.options import given_options, job_document, job_options


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="TOML, YAML or JSON.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait until it is final, as `wait` does.")
@job_options
@quiet_option
@common
def submit(
    files: tuple[str, ...],
    command: tuple[str, ...],
    key: str | None,
    *,
    is_waiting: bool,
    **values: Any,
) -> None:
    """Submit a job, print its id.

    \b
      pertinax submit --name first -- sh -c 'sleep 5; exit 3'
      pertinax submit -f train.yaml        several documents are submitted all or none
    """
    if files:
        _refuse_both(command, values)
        documents = [document for file in files for document in read_documents(file)]
    else:
        documents = [job_document(command, values)]
    answer, jobs = send(documents, key)
    if is_waiting:
        from scheduler.cli.wait import wait_for

        jobs = wait_for([str(job["id"]) for job in jobs], timeout_s=None, is_any=False)
        answer = {"jobs": jobs} if "jobs" in answer else {"job": jobs[0]}
    if session().is_json:
        session().print_json(answer)
    else:
        session().print_ids(jobs)


def send(documents: list[Document], key: str | None) -> tuple[Document, list[Document]]:
    """Submit one or several documents; returns the answer and its jobs. Remembers the last."""
    client = session().client
    if len(documents) == 1:
        answer = client.submit(documents[0], key=key)
        jobs = [answer["job"]]
    else:
        answer = client.submit_many(documents, key=key)
        jobs = list(answer["jobs"])
    session().remember(jobs[-1]["id"])
    return answer, jobs


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@json_option
def validate(files: tuple[str, ...]) -> None:
    """Check a specification file, change nothing.

    All mistakes are told at once, each with its path. Needs no cluster.
    """
    from scheduler.cli.failure import vars_of
    from scheduler.protocol.errors import InvalidSpec
    from scheduler.protocol.specfile import job_from_document

    mistakes, count = [], 0
    for file in files:
        for number, document in enumerate(read_documents(file), 1):
            count += 1
            try:
                job_from_document(document)
            except InvalidSpec as error:
                place = {"file": file, "document": number}
                mistakes += [place | vars_of(one) for one in error.mistakes]
    if mistakes:
        raise invalid(mistakes, source=", ".join(dict.fromkeys(str(m["file"]) for m in mistakes)))
    if session().is_json:
        session().print_json({"valid": True, "jobs": count})
    else:
        print(f"valid: {count} job{'s' if count > 1 else ''}")


def read_documents(file: str) -> list[Document]:
    """The documents in `file`, or in standard input for `-`. Raises Failure."""
    from scheduler.cli.failure import vars_of
    from scheduler.protocol.errors import InvalidSpec
    from scheduler.protocol.spectext import FORMATS, TEXT_BYTES_MAX, documents_from_text

    try:
        if file == "-":
            data = sys.stdin.buffer.read(TEXT_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as source:
                data = source.read(TEXT_BYTES_MAX + 1)
        if len(data) > TEXT_BYTES_MAX:
            raise ValueError(f"it is larger than {TEXT_BYTES_MAX} bytes")
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise Failure(
            f"there is no file {file}",
            why="a specification is read from it",
            hint="give the path of a TOML, YAML or JSON file, or - for standard input",
            code="no_file",
            exit_code=Exit.NOT_FOUND,
        ) from None
    except (OSError, ValueError) as error:
        raise usage(
            f"{file} cannot be read",
            why=str(error),
            hint="give a TOML, YAML or JSON file in UTF-8",
            code="bad_file",
        ) from None
    # Standard input has no suffix: YAML takes JSON, too.
    form = FORMATS.get(Path(file).suffix.lower(), "yaml")
    try:
        return documents_from_text(text, form)
    except InvalidSpec as error:
        place = {"file": file, "document": 1}
        raise invalid([place | vars_of(one) for one in error.mistakes], source=file) from None


def _refuse_both(command: tuple[str, ...], values: dict[str, Any]) -> None:
    used = given_options(values)
    if command or used:
        what = used[0] if used else "a command"
        raise usage(
            f"-f and {what} exclude each other",
            why="the file says what the job is",
            hint="write it into the file, or leave -f away",
            code="file_and_options",
        )
