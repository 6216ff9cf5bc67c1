"""`cluster status|members|init|replace|config` and `config show`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Final

import click

from scheduler.cli.base import Document, common, json_option, session
from scheduler.cli.failure import Exit, Failure, usage
from scheduler.cli.render import fields, size, table
from scheduler.protocol.units import format_duration

#: Commands of later releases, refused by name.
NOT_YET: Final = ("transfer", "backup", "restore", "ca")


class _ClusterGroup(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in NOT_YET:
            from scheduler.cli.main import refused

            return refused(f"`pertinax cluster {cmd_name}`")
        return super().get_command(ctx, cmd_name)


@click.group(cls=_ClusterGroup)
def cluster() -> None:
    """The controllers and the cluster's settings."""


@cluster.command()
@common
def status() -> None:
    """Show leader, quorum, members and log. Exit code 0 also without a quorum."""
    found = session()
    view = found.client.cluster_status()
    if found.is_json:
        found.print_json(view)
        return
    log, registry = view.get("log") or {}, view.get("registry") or {}
    jobs = view.get("jobs_by_phase") or {}
    span = f"{log.get('first_index')} to {log.get('last_index')}"
    print(
        fields(
            [
                ("cluster", view.get("cluster_id")),
                ("leader", view.get("leader") or "none"),
                ("term", view.get("term")),
                ("quorum", view.get("quorum")),
                ("log", f"{span}, {size(log.get('bytes'))}"),
                ("snapshot", log.get("snapshot_index")),
                ("registry", f"{registry.get('size', 0)} unknown reports"),
                ("jobs", ", ".join(f"{jobs[phase]} {phase}" for phase in jobs if jobs[phase])),
            ]
        )
    )
    print()
    print(_members_table(view))


@cluster.command()
@common
def members() -> None:
    """List the controllers."""
    found = session()
    view = found.client.cluster_status()
    if found.is_json:
        found.print_json({"members": view.get("members", []), "as_of": view.get("as_of")})
    else:
        print(_members_table(view))


@cluster.command()
@click.option("--config", "config_file", required=True, metavar="FILE", help="A controller's.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A first setting.")
@click.option("--founding", metavar="FILE", help="founding.json of the first member.")
@json_option
def init(config_file: str, settings: tuple[str, ...], founding: str | None) -> None:
    """Found a cluster: make a controller's data directory one of its members.

    On the first host without --founding; then copy DATA_DIR/founding.json to the others, and give
    it there. An empty directory that was never founded starts no cluster.
    """
    from scheduler.local.found import found_member

    record = found_member(
        Path(config_file),
        settings=pairs("--set", settings),
        founding_file=Path(founding) if founding else None,
    )
    if session().is_json:
        session().print_json(record)
    else:
        print(record["cluster_id"])
        session().say(f"founded {record['data_dir']}; start it with `pertinax controller`")


@cluster.command()
@click.argument("name")
@click.option("--dir", "directory", metavar="DIR", help="The local cluster's; as for `up`.")
@click.option("--force", is_flag=True, help="Also a healthy member.")
@click.option("--config", "config_file", metavar="FILE", help="On its own host: its file.")
@click.option("--founding", metavar="FILE", help="With --config: another's founding.json.")
@common
def replace(
    *, name: str, directory: str | None, force: bool, config_file: str | None, founding: str | None
) -> None:
    """Bring a dead or damaged controller back from the others, with an empty disk.

    In a local cluster it is stopped, started and waited for, too. Elsewhere, call it with --config
    on the member's host, and then start its controller. Its old data is set aside, never deleted.
    """
    from scheduler.cli.local import StatusLine

    if config_file is not None:
        from scheduler.local.directories import prepare

        done = prepare(Path(config_file), name, founding_file=Path(founding) if founding else None)
        after = "it joins when its controller is started"
    else:
        if founding is not None:
            raise usage(
                "--founding is of use with --config only",
                why="in a local cluster the record is found by itself",
                hint=f"pertinax cluster replace {name}",
                code="bad_option",
            )
        from scheduler.local.replace import replace as replace_member

        with StatusLine() as line:
            done = replace_member(_local_root(directory), name, is_forced=force, say=line.show)
        after = "it runs and has caught up"
    if session().is_json:
        session().print_json(dataclasses.asdict(done))
    else:
        aside = f"; its old data is {done.moved_to}" if done.moved_to else ""
        session().say(f"replaced {name}: {after}{aside}")


def _local_root(directory: str | None) -> Path:
    """The directory of the local cluster that is meant. Raises Failure when another is."""
    from scheduler.cli.local import default_root

    given = directory or session().cluster
    named = given or os.environ.get("PERTINAX_CLUSTER", "")
    if "://" in named:
        raise usage(
            f"{named} is no cluster of this machine",
            why="a controller is replaced on its own host, where its data is",
            hint="call it there with --config FILE, or give the --dir of a local cluster",
            code="not_local",
        )
    return Path(given).expanduser().absolute() if given else default_root()


@cluster.group(name="config")
def cluster_config() -> None:
    """Cluster-wide settings, kept in the replicated state."""


@cluster_config.command(name="show")
@common
def show_settings() -> None:
    """Show all settings in force."""
    _print_settings(session().client.config())


@cluster_config.command(name="get")
@click.argument("name")
@common
def get_setting(name: str) -> None:
    """Print one setting."""
    settings = session().client.config()["settings"]
    if name not in settings:
        from scheduler.protocol.specread import suggestion

        raise Failure(
            f"there is no setting {name!r}",
            why="the cluster knows no setting of that name",
            hint=suggestion(name, settings),
            code="not_found",
            exit_code=Exit.NOT_FOUND,
        )
    if session().is_json:
        session().print_json({name: settings[name]})
    else:
        print(_shown(name, settings[name]))


@cluster_config.command(name="set")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@common
def set_settings(changes: tuple[str, ...]) -> None:
    """Change settings, all or none; durations as 30s."""
    wanted: dict[str, int | str] = {
        name: int(value) if value.isascii() and value.isdigit() and _is_count(name) else value
        for name, value in pairs("KEY=VALUE", changes).items()
    }
    _print_settings(session().client.configure(wanted))


@click.group()
def config() -> None:
    """The settings in force and where they come from."""


@config.command(name="show")
@common
def show_config() -> None:
    """Show which cluster is used, where that comes from, and its settings."""
    found = session()
    where = found.found
    answer = found.client.config()
    if found.is_json:
        used = {"source": where.source, "urls": where.context.urls, "user": where.context.user}
        found.print_json({"client": used, "settings": answer["settings"]})
        return
    print(
        fields(
            [
                ("cluster", where.source),
                ("controllers", " ".join(where.context.urls)),
                ("user", where.context.user),
                ("ca", where.context.ca_file or "the system's"),
            ]
        )
    )
    print()
    _print_settings(answer)


def pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` texts as a dictionary. Raises Failure."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise usage(
                f"{text!r} cannot be read as {option}",
                why="it has no `=` between a name and a value",
                hint="write heartbeat_timeout=30s",
                code="bad_option",
            )
        found[name] = value
    return found


#: Endings of settings that are durations in milliseconds.
_DURATIONS: Final = (
    "_interval",
    "_timeout",
    "_grace",
    "_settle",
    "_ttl",
    "_retention",
    "kill_limit",
)


def _is_count(name: str) -> bool:
    # A bare number would be taken as milliseconds; a duration needs its unit.
    return not name.endswith(_DURATIONS)


def _shown(name: str, value: Any) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith(_DURATIONS):
        return format_duration(value)
    return value


def _print_settings(answer: Document) -> None:
    if session().is_json:
        session().print_json(answer)
        return
    rows = [(name, _shown(name, value)) for name, value in sorted(answer["settings"].items())]
    print(table(("SETTING", "VALUE"), rows))


def _members_table(view: Document) -> str:
    return table(
        ("MEMBER", "ROLE", "HEALTHY", "COMMIT", "APPLIED", "LAG", "VERSION"),
        (
            (
                one["name"],
                one.get("role"),
                one.get("healthy"),
                one.get("commit_index"),
                one.get("applied_index"),
                one.get("lag_entries"),
                one.get("version"),
            )
            for one in view.get("members", ())
        ),
    )
