"""`kill`: jobs, workers and attempts, for good."""

from __future__ import annotations

import click

from scheduler.cli.base import common, id_argument, quiet_option, session
from scheduler.cli.failure import failure_of
from scheduler.client.errors import ApiError


@click.command()
@id_argument(is_many=True, name="targets")
@click.option("--why", default="", metavar="TEXT", help="The reason, kept in the history.")
@quiet_option
@common
def kill(targets: tuple[str, ...], why: str) -> None:
    """End jobs, workers or attempts for good.

    Returns once the decision is committed; `pertinax wait` waits for the processes' end. Of several
    targets all are tried; the exit code is that of the first that was refused.
    """
    found = session()
    results, refused = [], None
    for target in [found.resolve(target) for target in targets]:
        try:
            answer = found.client.kill(target, why=why)
        except ApiError as error:
            if len(targets) == 1:
                raise
            failure = failure_of(error)
            assert failure is not None
            refused = refused or failure
            results.append({"target": target, **failure.document()})
            found.say(f"{target}: {failure.what}")
        else:
            results.append({"target": target, **answer})
            found.say(f"{target}: {answer.get('message') or _told(answer.get('is_done'))}")
    if found.is_json:
        found.print_json(results[0] if len(targets) == 1 else {"results": results})
    if refused is not None:
        found.exit_code = refused.exit_code


def _told(is_done: object) -> str:
    return "killed" if is_done else "being ended"
