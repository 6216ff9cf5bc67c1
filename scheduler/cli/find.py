"""Which cluster a command speaks to (specification 6.1).

`--cluster` or PERTINAX_CLUSTER: a URL, a directory made by `up`, or a context's name. Otherwise the
nearest `.pertinax` upwards from the working directory, otherwise the default context.

Contexts are kept in `~/.config/pertinax/config.toml`:

    default = "lab"
    [contexts.lab]
    urls = ["https://c1:8443", "https://c2:8443", "https://c3:8443"]
    token_file = "~/.config/pertinax/lab.token"
    ca_file = "~/.config/pertinax/lab-ca.pem"
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scheduler.cli.failure import Exit, Failure
from scheduler.client.context import Context

LOCAL_NAME: Final = ".pertinax"
CLUSTER_NAME: Final = "cluster.json"


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster, where it was found, and where to remember things of it (`@last`)."""

    context: Context
    #: For people: `directory /x/.pertinax`, `context lab`, a URL.
    source: str
    memory: Path


def find_cluster(
    given: str | None, *, environment: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> Found:
    """The cluster to speak to. Raises Failure when there is none or it cannot be told."""
    user = _login_name()
    wanted = given or environment.get("PERTINAX_CLUSTER") or ""
    if wanted.startswith(("https://", "http://")):
        return _from_url(wanted, environment, user)
    if wanted and (os.sep in wanted or Path(wanted).is_dir()):
        return _from_directory(Path(wanted).expanduser().absolute(), user)
    if wanted:
        return _from_context(wanted, environment, user)
    directory = nearest_local(cwd or Path.cwd())
    if directory is not None:
        return _from_directory(directory, user)
    return _from_context(None, environment, user)


def nearest_local(cwd: Path) -> Path | None:
    """The nearest `.pertinax` with a cluster in it, from `cwd` upwards."""
    for directory in (cwd, *cwd.parents):
        if (directory / LOCAL_NAME / CLUSTER_NAME).is_file():
            return directory / LOCAL_NAME
    return None


def config_file(environment: Mapping[str, str]) -> Path:
    """Where the contexts are kept."""
    base = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "pertinax" / "config.toml"


def _from_directory(directory: Path, user: str) -> Found:
    try:
        cluster = json.loads((directory / CLUSTER_NAME).read_bytes())
        members = sorted(cluster["controllers"], key=lambda one: one["name"] != cluster["leader"])
        context = Context(
            urls=tuple(one["http"] for one in members),
            token=Path(cluster["token_file"]).read_text(encoding="utf-8").strip(),
            ca_file=cluster["ca_file"],
            user=user,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(
            f"no cluster can be reached by the directory {directory}",
            why=f"{CLUSTER_NAME} or the token there cannot be read: {error}",
            hint=f"start one there with `pertinax up --dir {directory}`, or name another directory",
            code="no_cluster",
            exit_code=Exit.UNAVAILABLE,
        ) from None
    _refuse_stopped(directory, members)
    return Found(context, f"directory {directory}", directory / "client")


def _refuse_stopped(directory: Path, members: list[dict[str, Any]]) -> None:
    """At once, instead of after trying for a while to reach somebody."""
    pids = [member.get("pid") for member in members]
    if any(pid is not None and Path(f"/proc/{pid}").exists() for pid in pids):
        return
    raise Failure(
        f"the cluster in {directory} does not run",
        why="none of its controllers does",
        hint=f"start it with `pertinax up --dir {directory}`",
        code="not_running",
        exit_code=Exit.UNAVAILABLE,
    )


def _from_url(urls: str, environment: Mapping[str, str], user: str) -> Found:
    token = environment.get("PERTINAX_TOKEN", "")
    if not token and (file := environment.get("PERTINAX_TOKEN_FILE")):
        token = _read_secret(Path(file).expanduser())
    context = Context(
        urls=tuple(one.strip().rstrip("/") for one in urls.split(",") if one.strip()),
        token=token,
        ca_file=environment.get("PERTINAX_CA_FILE") or None,
        user=user,
    )
    return Found(context, urls, _memory(environment, urls))


def _from_context(name: str | None, environment: Mapping[str, str], user: str) -> Found:
    import tomllib

    file = config_file(environment)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError) as error:
        raise _no_context(f"{file} cannot be read: {error}") from None
    name = name or document.get("default")
    contexts = document.get("contexts", {})
    chosen = contexts.get(name) if isinstance(contexts, dict) else None
    if name is None:
        raise _no_context(
            f"no {LOCAL_NAME} directory is here or above, and {file} names no default"
        )
    if not isinstance(chosen, dict):
        known = ", ".join(sorted(contexts)) or "none"
        raise _no_context(f"{name!r} is no directory, and no context in {file} (known: {known})")
    if "dir" in chosen:
        return _from_directory(Path(str(chosen["dir"])).expanduser().absolute(), user)
    return Found(_context(name, chosen, file, user), f"context {name}", _memory(environment, name))


def _context(name: str, chosen: Mapping[str, Any], file: Path, user: str) -> Context:
    urls = chosen.get("urls")
    if not isinstance(urls, list) or not urls or not all(isinstance(one, str) for one in urls):
        raise _no_context(f"context {name} in {file} has no urls, a list of texts")
    token = ""
    if token_file := chosen.get("token_file"):
        token = _read_secret(Path(str(token_file)).expanduser())
    ca_file = chosen.get("ca_file")
    return Context(
        urls=tuple(one.rstrip("/") for one in urls),
        token=token,
        ca_file=str(Path(str(ca_file)).expanduser()) if ca_file else None,
        user=str(chosen.get("user") or user),
    )


def _read_secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise Failure(
            "the token cannot be read",
            why=f"{path}: {error}",
            hint="correct token_file, or set PERTINAX_TOKEN",
            code="no_token",
            exit_code=Exit.NOT_ALLOWED,
        ) from None


def _memory(environment: Mapping[str, str], name: str) -> Path:
    base = environment.get("XDG_STATE_HOME") or "~/.local/state"
    import hashlib

    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return Path(base).expanduser() / "pertinax" / digest


def _login_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _no_context(why: str) -> Failure:
    return Failure(
        "no cluster is found",
        why=why,
        hint="start one here with `pertinax up`, or name one with --cluster or PERTINAX_CLUSTER",
        code="no_cluster",
        exit_code=Exit.UNAVAILABLE,
    )
