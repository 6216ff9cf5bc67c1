"""The files of a local cluster's directory, and `cluster.json`, which lists its processes.

    DIR/cluster.json   every process and the leader; replaced atomically, readable at any moment
    DIR/local.json     the plan: names, ports, settings; written before anything else is made
    DIR/admin.token    the admin's bearer token, mode 0600
    DIR/tls/           the CA and one certificate per member
    DIR/controllers/NAME, DIR/agents/NAME   configuration, log file and data of each member

`local.json` is changed only by `up` under the operation lock. `cluster.json` is changed by `up`,
`down` and the watcher, each under the short file lock. Standard library only, cheap to import.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from scheduler.local.errors import LocalError

DIRECTORY_NAME: Final = ".pertinax"
CLUSTER_NAME: Final = "cluster.json"
PLAN_NAME: Final = "local.json"
#: Written by `up` into the plan; a plan of a newer release is refused.
PLAN_VERSION: Final = 1
#: What `up` makes in a directory, and `--fresh` removes.
OURS: Final = (
    CLUSTER_NAME, PLAN_NAME, "admin.token", "tls", "controllers", "agents", "client",
    "watch.log", "operation.lock", "file.lock",
)  # fmt: skip
#: Seconds between two looks at a lock that another call holds.
LOCK_POLL_S: Final = 0.05

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedController:
    """A controller's name and ports, kept for the cluster's life."""

    name: str
    http_port: int
    agents_port: int
    raft_port: int


@dataclass(slots=True)
class Plan:
    """What the cluster consists of. Members are never renamed; agents may be added."""

    cluster_id: str
    controllers: list[PlannedController]
    agents: list[str]
    #: Keys of the controllers' own configuration, and of the agents'.
    controller_settings: dict[str, str] = field(default_factory=dict)
    agent_settings: dict[str, str] = field(default_factory=dict)
    #: Seeds of the replicated settings, as texts.
    settings: dict[str, str] = field(default_factory=dict)
    #: True once every controller's directory was founded. Afterwards an empty one is a loss.
    is_founded: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths inside the directory of a local cluster; `root` is absolute."""

    root: Path

    @property
    def cluster_file(self) -> Path:
        return self.root / CLUSTER_NAME

    @property
    def plan_file(self) -> Path:
        return self.root / PLAN_NAME

    @property
    def token_file(self) -> Path:
        return self.root / "admin.token"

    @property
    def tls(self) -> Path:
        return self.root / "tls"

    @property
    def ca_file(self) -> Path:
        return self.tls / "ca.pem"

    def member(self, kind: str, name: str) -> Path:
        """Directory of a member; `kind` is `controller` or `agent`."""
        return self.root / f"{kind}s" / name

    def data_dir(self, kind: str, name: str) -> Path:
        return self.member(kind, name) / "data"

    def config_file(self, kind: str, name: str) -> Path:
        return self.member(kind, name) / f"{kind}.toml"

    def log_file(self, kind: str, name: str) -> Path:
        return self.member(kind, name) / f"{kind}.log"


def read_plan(layout: Layout) -> Plan | None:
    """The plan, None when the directory holds no cluster. Raises LocalError when it is damaged."""
    try:
        document = json.loads(layout.plan_file.read_bytes())
        version = document.pop("version")
        if version == PLAN_VERSION:
            controllers = [PlannedController(**one) for one in document.pop("controllers")]
            return Plan(controllers=controllers, **document)
        why = f"it has version {version}, this release knows {PLAN_VERSION}"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) or type(error).__name__
    raise LocalError(
        f"{layout.plan_file} cannot be used",
        why=why,
        hint=f"`pertinax up --fresh --dir {layout.root}` begins anew, without the old jobs",
        kind="refused",
        code="bad_directory",
    )


def write_plan(layout: Layout, plan: Plan) -> None:
    """Replace the plan, durably."""
    replace_json(layout.plan_file, {"version": PLAN_VERSION, **asdict(plan)})


def read_cluster(layout: Layout) -> Document:
    """What `cluster.json` says; empty when there is none or it is damaged (`up` rebuilds it)."""
    try:
        document = json.loads(layout.cluster_file.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def change_cluster(layout: Layout, change: Callable[[Document], None]) -> Document:
    """Let `change` edit the document and replace the file when it differs; returns it."""
    with locked(layout.root / "file.lock", wait_s=30):
        before = read_cluster(layout)
        after: Document = json.loads(json.dumps(before))
        change(after)
        if after != before:
            replace_json(layout.cluster_file, after)
    return after


def members_of(document: Document) -> Iterator[tuple[str, Document]]:
    """(kind, member) of each member in a `cluster.json`."""
    for kind in ("controller", "agent"):
        for member in document.get(f"{kind}s", ()):
            yield kind, member


def read_status(data_dir: str | Path) -> Document:
    """What a member last said of itself in `status.json`; empty when nothing usable."""
    try:
        document = json.loads((Path(data_dir) / "status.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def replace_json(path: Path, document: object) -> None:
    """Write aside, sync and rename: a reader sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


@contextmanager
def locked(path: Path, *, wait_s: float) -> Iterator[None]:
    """Hold the lock on `path`. Raises LocalError when another process keeps it for `wait_s`."""
    deadline = time.monotonic() + wait_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LocalError(
                        f"another call works on {path.parent}",
                        why=f"it has held {path.name} for {wait_s:g} s",
                        hint="wait for that `up` or `down` to end, or end it, and try again",
                        kind="refused",
                        code="busy",
                    ) from None
                time.sleep(LOCK_POLL_S)  # flock offers no wait with a deadline
        yield
