"""The data directory of a controller that is replaced: the old one set aside, a new one that joins.

Nothing is deleted here, and a directory that a controller is using is not touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.local.errors import LocalError
from scheduler.local.files import Layout, Plan

if TYPE_CHECKING:
    from scheduler.controller.founding import Founding


@dataclass(frozen=True, slots=True)
class Replaced:
    """What became of the member."""

    name: str
    data_dir: str
    #: Where its old data is; None when there was none.
    moved_to: str | None
    #: None on a host where only the directory was made.
    pid: int | None = None


def prepare(config_file: Path, name: str, *, founding_file: Path | None) -> Replaced:
    """On the host of a member that does not run: move its data aside and make it join at its start.

    The founding record comes from `founding_file`, another member's, or from the old directory if
    it can still be read. Whether the others have a majority cannot be seen from here: without one
    the member waits for it. Raises LocalError.
    """
    from scheduler.controller.config import ConfigMistakes, load_config
    from scheduler.controller.founding import (
        Founding,
        NotFounded,
        found_replacement,
        read_founding,
    )

    try:
        config = load_config(config_file)
        if config.name != name:
            raise ValueError(f"{config_file} is that of {config.name!r}, not of {name!r}")
        if founding_file is not None:
            founding = Founding(**json.loads(founding_file.read_bytes()))
        else:
            founding = read_founding(config)
        if config.cluster_id not in ("", founding.cluster_id):
            raise ValueError(f"{founding_file} is that of cluster {founding.cluster_id}")
    except (OSError, ConfigMistakes, NotFounded, ValueError, TypeError) as error:
        raise LocalError(
            "the member was not replaced",
            why=" ".join(str(error).split()),
            hint="--config names the member's own file, --founding another member's founding.json",
            kind="usage",
            code="not_replaced",
        ) from None
    with directory_errors(config.data_dir), _unused(config.data_dir):
        moved = move_aside(config.data_dir)
        found_replacement(config, founding)
    return Replaced(name, str(config.data_dir), str(moved) if moved else None)


def move_aside(data_dir: Path) -> Path | None:
    """Rename a data directory to `….replaced-N`, durably; None when there is nothing in it.

    Raises OSError.
    """
    if not data_dir.exists() or (data_dir.is_dir() and not any(data_dir.iterdir())):
        return None
    pattern = re.compile(re.escape(data_dir.name) + r"\.replaced-(\d+)")
    taken = [
        int(found[1])
        for path in data_dir.parent.iterdir()
        if (found := pattern.fullmatch(path.name))
    ]
    aside = data_dir.with_name(f"{data_dir.name}.replaced-{max(taken, default=0) + 1}")
    data_dir.rename(aside)
    descriptor = os.open(data_dir.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return aside


def founding_of_another(layout: Layout, plan: Plan, name: str) -> Founding:
    """The founding record of a member but `name`. Raises LocalError when none can be read."""
    from scheduler.controller.config import ConfigMistakes, load_config
    from scheduler.controller.founding import NotFounded, read_founding

    tried = []
    for one in plan.controllers:
        if one.name == name:
            continue
        try:
            return read_founding(load_config(layout.config_file("controller", one.name)))
        except (ConfigMistakes, NotFounded, OSError) as error:
            tried.append(str(error))
    raise LocalError(
        f"controller {name} is not replaced",
        why=f"no other member's founding record can be read: {'; '.join(tried)}",
        hint=f"put founding.json back into a controller's data directory in {layout.root}",
        kind="refused",
        code="no_founding",
    )


@contextmanager
def directory_errors(data_dir: Path) -> Iterator[None]:
    """What the file system refuses, as a LocalError."""
    try:
        yield
    except OSError as error:
        raise LocalError(
            f"{data_dir} cannot be replaced",
            why=str(error),
            hint="see to its permissions and its file system, and call again",
            kind="failed",
            code="bad_directory",
        ) from None


@contextmanager
def _unused(data_dir: Path) -> Iterator[None]:
    """Hold the lock that a controller holds on its data. Raises LocalError when one does."""
    try:
        descriptor = os.open(data_dir / "lock", os.O_RDWR)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LocalError(
            f"{data_dir} is not replaced",
            why="a controller is using it",
            hint="stop that controller, and call again",
            kind="refused",
            code="member_runs",
        ) from None
    finally:
        os.close(descriptor)
