"""`version` and `completion`."""

from __future__ import annotations

import click

from scheduler.cli.base import json_option, session
from scheduler.cli.failure import usage

SHELLS = ("bash", "zsh", "fish")


@click.command()
@json_option
def version() -> None:
    """Print the version."""
    print_version()


def print_version() -> None:
    """The installed version, as text or JSON."""
    import platform
    from importlib.metadata import version as version_of

    found = version_of("pertinax")
    if session().is_json:
        session().print_json({"version": found, "python": platform.python_version()})
    else:
        print(f"pertinax {found}")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
      bash:  eval "$(pertinax completion bash)"
      zsh:   eval "$(pertinax completion zsh)"
      fish:  pertinax completion fish | source
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    if kind is None:
        raise usage(
            f"{shell} is not supported",
            why="completion exists for some shells only",
            hint=f"one of {', '.join(SHELLS)}",
        )
    script = kind(root, {}, "pertinax", "_PERTINAX_COMPLETE").source()
    if session().is_json:
        session().print_json({"shell": shell, "script": script})
    else:
        print(script)
