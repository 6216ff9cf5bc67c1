"""`nodes` and `node show|cordon|uncordon`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from scheduler.cli.base import Document, common, quiet_option, session
from scheduler.cli.complete import complete_nodes
from scheduler.cli.render import fields, size, span, table
from scheduler.protocol.units import cpu_number


@click.command()
@quiet_option
@common
def nodes() -> None:
    """List the nodes."""
    found = session()
    document = found.client.nodes()
    if found.is_json:
        found.print_json(document)
    elif found.is_quiet:
        found.print_ids(document["nodes"], "name")
    else:
        print(
            table(
                ("NAME", "PHASE", "HEARD", "CPU", "MEMORY", "GPU", "ATTEMPTS", "REMARK"),
                map(_row, document["nodes"]),
                flexible=("REMARK",),
            )
        )


@click.group()
def node() -> None:
    """Show, cordon or uncordon a node."""


NAME = click.argument("name", shell_complete=complete_nodes)
WHY = click.option("--why", default="", metavar="TEXT", help="The reason, kept in the history.")


@node.command()
@NAME
@common
def show(name: str) -> None:
    """Show a node."""
    _print_node(session().client.node(_bare(name)))


@node.command()
@NAME
@WHY
@common
def cordon(name: str, why: str) -> None:
    """Place nothing more on a node; what runs there goes on."""
    _print_node(session().client.cordon(_bare(name), why=why))


@node.command()
@NAME
@WHY
@common
def uncordon(name: str, why: str) -> None:
    """Let a node receive work again."""
    _print_node(session().client.uncordon(_bare(name), why=why))


def _bare(name: str) -> str:
    return name.removeprefix("node:")


def _row(one: Document) -> tuple[object, ...]:
    total, used = one.get("capacity") or {}, one.get("allocated") or {}
    return (
        one["name"],
        one["phase"],
        _heard(one),
        _share(used, total, "cpu"),
        f"{size(_bytes(used)) or '0 B'} of {size(_bytes(total))}",
        _share(used, total, "gpu"),
        one.get("attempts"),
        _remark(one),
    )


def _print_node(view: Document) -> None:
    if session().is_json:
        session().print_json(view)
        return
    labels = view.get("labels") or {}
    print(
        fields(
            [
                ("node", view["name"]),
                ("phase", view["phase"]),
                ("remark", _remark(view)),
                ("heard", _heard(view)),
                ("cpu", _share(view.get("allocated") or {}, view.get("capacity") or {}, "cpu")),
                ("memory", size(_bytes(view.get("capacity") or {}))),
                ("attempts", view.get("attempts")),
                ("labels", ", ".join(f"{key}={value}" for key, value in labels.items())),
                ("uid", view.get("uid")),
                ("boot id", view.get("boot_id")),
                ("agent", view.get("agent_version")),
            ]
        )
    )


def _remark(one: Document) -> str:
    parts = []
    if one.get("offline_reason"):
        parts.append(str(one["offline_reason"]))
    if one.get("unschedulable"):
        reason = one.get("unschedulable_reason")
        parts.append("cordoned" + (f": {reason}" if reason else ""))
    return "; ".join(parts)


def _heard(one: Document) -> str:
    heard = one.get("last_heard_s")
    return f"{span(heard)} ago" if isinstance(heard, int | float) else ""


def _share(used: Mapping[str, object], total: Mapping[str, object], name: str) -> str:
    taken, there = _amount(used, name), _amount(total, name)
    return f"{taken or 0:g} of {there:g}" if there else ""


def _amount(resources: Mapping[str, object], name: str) -> float | None:
    """`cpu` may be given in cores or, as `cpu_millis`, in thousandths."""
    value = resources.get(name)
    if isinstance(value, int | float):
        return float(value)
    millis = resources.get(f"{name}_millis", resources.get(f"{name}_count"))
    if not isinstance(millis, int):
        return None
    return float(cpu_number(millis)) if f"{name}_millis" in resources else float(millis)


def _bytes(resources: Mapping[str, object]) -> object:
    return resources.get("memory_bytes", resources.get("memory"))
