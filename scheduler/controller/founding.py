"""Founding: what makes an empty data directory a member of a cluster (specification 2.1).

An empty directory founds nothing. `found` writes the founding record, which names the cluster, its
first incarnation and the seeds of its settings, and then the identity that the log is opened with.
Every member gets the same record; the first leader that finds the state unfounded proposes it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from scheduler.controller.config import (
    ControllerConfig,
    default_settings,
    parse_setting,
    settings_mistakes,
)
from scheduler.protocol.ids import first_incarnation
from wal.identity import IDENTITY_NAME, Identity, create_directory

FOUNDING_NAME: Final = "founding.json"
CLUSTER_ID_BYTES: Final = 8


class NotFounded(Exception):
    """The data directory belongs to no cluster yet."""


@dataclass(frozen=True, slots=True)
class Founding:
    """What a cluster begins with; the same on every member."""

    cluster_id: str
    incarnation: str
    settings: dict[str, int | str] = field(default_factory=dict)


def draw_founding(
    settings: Mapping[str, object] | None = None, *, cluster_id: str = ""
) -> Founding:
    """A new cluster's record. Raises ValueError for settings that do not exist or fit."""
    seeds = {name: parse_setting(name, value) for name, value in (settings or {}).items()}
    mistakes = settings_mistakes({**default_settings(), **seeds})
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return Founding(
        cluster_id=cluster_id or secrets.token_hex(CLUSTER_ID_BYTES),
        incarnation=first_incarnation(secrets.randbits(32)),
        settings=seeds,
    )


def found(
    config: ControllerConfig,
    settings: Mapping[str, object] | None = None,
    *,
    founding: Founding | None = None,
) -> Founding:
    """Make `config.data_dir` the directory of this member; durable on return, and idempotent.

    Members of one cluster are given the same `founding`; without one it is drawn from the
    configuration's cluster id, its `[settings]` and `settings`. A directory that is founded already
    keeps its record. Raises wal.errors.WrongIdentity for another cluster's directory.
    """
    known = _read(config.data_dir)
    if known is None:
        known = founding or _with_seeds(
            draw_founding(settings, cluster_id=config.cluster_id), config.settings
        )
        config.data_dir.mkdir(parents=True, exist_ok=True)
        _write(config.data_dir, known)
    create_directory(config.data_dir, identity_of(config, known))
    return known


def found_replacement(config: ControllerConfig, founding: Founding) -> None:
    """Make `config.data_dir`, missing or empty, that of a member that lost its disk; durable.

    Until it has caught up, such a member neither votes nor counts. Interrupted at any point, the
    directory is no member's yet. Raises FileExistsError for a directory with something in it.
    """
    # Imported late: the whole of replication, for a name that only this part needs.
    from replication.node import JOINING_NAME, sync_directory

    directory = config.data_dir
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty")
    # Before the identity, which makes it a member: one that forgot that it forgets could vote.
    (directory / JOINING_NAME).touch()
    sync_directory(directory)
    found(config, founding=founding)


def is_founded(data_dir: Path) -> bool:
    """Whether the directory is a member's, whole or damaged; False for a lost or empty one."""
    return (data_dir / IDENTITY_NAME).exists()


def is_joining(data_dir: Path) -> bool:
    """Whether the directory is that of a replacement that has not caught up yet."""
    from replication.node import JOINING_NAME

    return (data_dir / JOINING_NAME).exists()


def read_founding(config: ControllerConfig) -> Founding:
    """The record of `config.data_dir`. Raises NotFounded, also for another cluster's record."""
    founding = _read(config.data_dir)
    if founding is None:
        raise NotFounded(
            f"{config.data_dir} belongs to no cluster; `pertinax cluster init` founds one, and"
            " `pertinax cluster replace` brings a member back"
        )
    if config.cluster_id and founding.cluster_id != config.cluster_id:
        raise NotFounded(
            f"{config.data_dir} belongs to cluster {founding.cluster_id}, but {config.path} is for"
            f" cluster {config.cluster_id}; correct data_dir or cluster_id"
        )
    return founding


def identity_of(config: ControllerConfig, founding: Founding) -> Identity:
    """Whose directory it is, for the log."""
    return Identity(founding.cluster_id, config.name, incarnation_number(founding.incarnation))


def incarnation_number(incarnation: str) -> int:
    """The incarnation as the number that the log's identity keeps; ordered alike."""
    return int(incarnation, 16)


def _with_seeds(founding: Founding, settings: dict[str, int | str]) -> Founding:
    """`founding` with the configuration's own seeds beneath its settings."""
    return replace(founding, settings={**settings, **founding.settings})


def _read(directory: Path) -> Founding | None:
    file = directory / FOUNDING_NAME
    try:
        document = json.loads(file.read_bytes())
        return Founding(
            str(document["cluster_id"]), str(document["incarnation"]), dict(document["settings"])
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise NotFounded(
            f"{file} is damaged ({error}); copy it from another member of the cluster"
        ) from None


def _write(directory: Path, founding: Founding) -> None:
    aside = directory / f".{FOUNDING_NAME}.{os.getpid()}"
    with aside.open("w", encoding="utf-8") as file:
        json.dump(asdict(founding), file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(directory / FOUNDING_NAME)
