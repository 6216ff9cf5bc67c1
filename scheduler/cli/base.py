"""What all commands share: their common options, the cluster's client, and how they print."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.complete import complete_jobs
from scheduler.cli.failure import Exit, Failure, usage

if TYPE_CHECKING:
    from scheduler.cli.find import Found
    from scheduler.client.client import Client

Document = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """One call of the command line."""

    def __init__(self) -> None:
        self.cluster: str | None = None
        self.is_json = False
        self.is_quiet = False
        #: Exit code of a command that is done but not all well (`wait`).
        self.exit_code: int = Exit.DONE
        self._found: Found | None = None
        self._client: Client | None = None

    @property
    def found(self) -> Found:
        """The cluster that is spoken to. Raises Failure when there is none."""
        from scheduler.cli.find import find_cluster

        if self._found is None:
            self._found = find_cluster(self.cluster)
        return self._found

    @property
    def client(self) -> Client:
        """One client for the whole call."""
        from scheduler.client.client import Client

        if self._client is None:
            self._client = Client(self.found.context)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def print_json(self, document: object) -> None:
        """One document."""
        print(json.dumps(document, indent=2), flush=True)

    def print_line(self, document: object) -> None:
        """One document of several, on a line of its own."""
        print(json.dumps(document, separators=(",", ":")), flush=True)

    def print_ids(self, rows: Iterable[Mapping[str, Any]], name: str = "id") -> None:
        for row in rows:
            print(row[name])

    def say(self, text: str) -> None:
        """Something said around the result: to stderr, and not to programs."""
        if not self.is_json and not self.is_quiet:
            print(text, file=sys.stderr, flush=True)

    # ---- ids ---------------------------------------------------------------------------------

    def resolve(self, text: str) -> str:
        """`42`, `42/main/0#1`, `@last` or `name:X` as an id the cluster knows. Raises Failure."""
        from scheduler.protocol.ids import BadId, Target

        if text == "@last":
            return self._last()
        if text.startswith("name:"):
            return self._newest(text.removeprefix("name:"))
        try:
            return str(Target.parse(text.removeprefix("job:")))
        except BadId:
            raise usage(
                f"{text!r} names no job",
                why="a job is a number such as 42, 42/main/0#1 its first attempt",
                hint="use a number, @last, or name:X for the newest job of that name",
                code="bad_id",
            ) from None

    def remember(self, job_id: int | str) -> None:
        """What `@last` means from here on. Not worth failing for: a submit was acknowledged."""
        path = self._memory_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside = path.with_name(f"{path.name}.{os.getpid()}")
            aside.write_text(f"{job_id}\n")
            aside.replace(path)
        except OSError as error:
            self.say(f"(@last is not remembered: {error})")

    def _memory_file(self) -> Path:
        import hashlib

        here = hashlib.sha256(os.fsencode(Path.cwd())).hexdigest()[:16]
        return self.found.memory / f"last-{here}"

    def _last(self) -> str:
        try:
            return self._memory_file().read_text().strip()
        except OSError:
            raise Failure(
                "there is no @last job",
                why="nothing was submitted from this directory to this cluster yet",
                hint="`pertinax jobs` lists all jobs",
                code="not_found",
                exit_code=Exit.NOT_FOUND,
            ) from None

    def _newest(self, name: str) -> str:
        escaped = "".join(f"[{one}]" if one in "*?[" else one for one in name)
        found = self.client.jobs(name=escaped, limit=1)["jobs"]
        if not found:
            raise Failure(
                f"there is no job named {name!r}",
                why="the cluster knows no job of that name (any more)",
                hint="`pertinax jobs` lists all jobs",
                code="not_found",
                exit_code=Exit.NOT_FOUND,
            )
        return str(found[0]["id"])


def session() -> Session:
    """The session of the running command."""
    found = click.get_current_context().find_root().obj
    assert isinstance(found, Session)
    return found


def _setter(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def set_(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        del parameter
        if value:
            setattr(context.find_root().obj, name, value)

    return set_


def json_option(function: F) -> F:
    """`--json`, on every command."""
    return click.option(
        "--json",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_setter("is_json"),
        help="Print JSON, for programs.",
    )(function)


def cluster_option(function: F) -> F:
    """`--cluster`, on every command that speaks to one."""
    return click.option(
        "--cluster",
        metavar="WHERE",
        expose_value=False,
        callback=_setter("cluster"),
        help="A URL, a directory made by `up`, or a context's name.",
    )(function)


def quiet_option(function: F) -> F:
    """`-q`: ids only."""
    return click.option(
        "-q",
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=_setter("is_quiet"),
        help="Print ids only.",
    )(function)


def common(function: F) -> F:
    """The options of a command that speaks to a cluster."""
    return json_option(cluster_option(function))


def id_argument(*, is_many: bool = False, name: str = "target") -> Callable[[F], F]:
    """The argument that names a job, worker or attempt."""
    return functools.partial(
        click.argument(
            name,
            metavar="ID..." if is_many else "ID",
            nargs=-1 if is_many else 1,
            required=True,
            shell_complete=complete_jobs,
        )
    )
