"""Entry of `pertinax`: which command is meant, and what its end means for the shell.

Commands are imported when they are called, not before: `pertinax jobs` has to start fast.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import click

from scheduler.cli.base import Session
from scheduler.cli.failure import Exit, Failure, failure_of, usage

#: name -> (module, attribute, what it does). In the order in which the help lists them.
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "submit": ("submit", "submit", "Submit a job, print its id."),
    "run": ("run", "run", "Submit, follow output, exit with the job's exit code."),
    "validate": ("submit", "validate", "Check a specification file, change nothing."),
    "jobs": ("jobs", "jobs", "List jobs."),
    "job": ("jobs", "job", "Show a job."),
    "workers": ("jobs", "workers", "List the workers of a job."),
    "attempts": ("jobs", "attempts", "List the attempts of a job."),
    "history": ("jobs", "history", "Show what happened to a job, step by step."),
    "why": ("jobs", "why", "Tell why a job is pending, or how its end will be decided."),
    "logs": ("logs", "logs", "Show what a job printed."),
    "wait": ("wait", "wait", "Wait until jobs are final."),
    "kill": ("kill", "kill", "End jobs, workers or attempts for good."),
    "nodes": ("nodes", "nodes", "List the nodes."),
    "node": ("nodes", "node", "Show, cordon or uncordon a node."),
    "cluster": ("cluster", "cluster", "The controllers and the cluster's settings."),
    "events": ("events", "events", "Show what changes, as it changes."),
    "up": ("local", "up", "Start a cluster on this machine."),
    "down": ("local", "down", "Stop the cluster on this machine."),
    "verify": ("offline", "verify", "Check a controller's data directory by replaying it."),
    "wal": ("offline", "wal", "Check, dump or repair a write-ahead log."),
    "controller": ("offline", "controller", "Run a controller."),
    "agent": ("offline", "agent", "Run an agent."),
    "config": ("cluster", "config", "Show the settings in force and where they come from."),
    "completion": ("about", "completion", "Print the completion script of a shell."),
    "version": ("about", "version", "Print the version."),
}
#: Commands of later releases: refused by name, so that a script learns why.
NOT_YET: Final = (
    "plan", "stop", "resume", "hold", "release", "retry", "clone", "delete", "accept", "priority",
    "update", "workflow", "schedule", "queue", "addon", "token", "whoami", "audit", "metrics",
    "top", "web", "drill", "orphans", "incidents", "usage",
)  # fmt: skip


class LazyGroup(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from importlib import import_module

        del ctx
        if cmd_name in COMMANDS:
            module, attribute, _ = COMMANDS[cmd_name]
            found = getattr(import_module(f"scheduler.cli.{module}"), attribute)
            assert isinstance(found, click.Command)
            return found
        if cmd_name in NOT_YET:
            return refused(f"`pertinax {cmd_name}`")
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name in NOT_YET or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        near = get_close_matches(name, list(COMMANDS), n=1)
        raise usage(
            f"there is no command {name!r}",
            why="the first word names the command",
            hint=f"did you mean {near[0]!r}?" if near else "`pertinax --help` lists them",
            code="unknown_command",
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, _, told) in COMMANDS.items()])


def refused(what: str) -> click.Command:
    """A command of a later release: takes any arguments and is refused."""

    @click.command(
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def command() -> None:
        raise not_yet(what)

    return command


def not_yet(what: str) -> Failure:
    """The refusal of something that a later release will do."""
    return Failure(
        f"{what} is not supported by this release",
        why="it belongs to the specified commands, and is not built yet",
        hint="`pertinax --help` lists what there is; CHANGELOG.md says what changed",
        code="not_supported",
        exit_code=Exit.REFUSED,
    )


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.option("--cluster", metavar="WHERE", help="A URL, a directory made by `up`, or a context.")
@click.option("--version", "is_version", is_flag=True, help="Print the version.")
@click.pass_context
def cli(ctx: click.Context, cluster: str | None, *, is_version: bool) -> None:
    """Runs jobs on a cluster of your own; each comes to one truthful end.

    \b
      pertinax run --up -- echo hello     start a cluster here if there is none, and run a job
      id=$(pertinax submit -- ./work.sh)  submit, and go on
      pertinax history $id                what happened, when, and how it is known
    """
    if ctx.obj is None:  # the shell's completion comes without
        ctx.obj = Session()
    if cluster:
        ctx.obj.cluster = cluster
    if is_version:
        from scheduler.cli.about import print_version

        print_version()
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character gets it written out, instead of a traceback.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = run(list(sys.argv[1:] if argv is None else argv))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _broken_pipe()
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run one command; returns its exit code, having printed its error."""
    session = Session()
    try:
        cli.main(argv, prog_name="pertinax", standalone_mode=False, obj=session)
    except click.exceptions.Exit as error:
        return error.exit_code
    except BrokenPipeError:
        return _broken_pipe()
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except Exception as error:
        failure = _of_click(error) if isinstance(error, click.ClickException) else failure_of(error)
        if failure is None:
            raise
        _report(failure, is_json=session.is_json or _asks_json(argv))
        return failure.exit_code
    finally:
        session.close()
    return session.exit_code


def _report(failure: Failure, *, is_json: bool) -> None:
    if is_json:
        import json

        text = json.dumps(failure.document(), indent=2)
    else:
        from scheduler.cli.render import harmless

        text = harmless(failure.lines())
    print(text, file=sys.stderr, flush=True)


def _of_click(error: click.ClickException) -> Failure:
    path = "pertinax --help"
    context = getattr(error, "ctx", None)
    if context is not None:
        path = f"{context.command_path} --help"
    message = " ".join(error.format_message().split())
    what, _, suggested = message.partition(" Did you mean ")
    return usage(
        what.rstrip("."),
        why="the command line cannot be understood",
        hint=f"did you mean {suggested.rstrip('?')}?" if suggested else f"see `{path}`",
    )


def _asks_json(argv: Sequence[str]) -> bool:
    """Whether a line that failed to parse asked for JSON; a job's own words do not count."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in words


def _broken_pipe() -> int:
    """The reader went away (`| head`): quiet, and the exit code of SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


if __name__ == "__main__":
    main()
