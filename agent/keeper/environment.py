"""The environment and the account of one attempt."""

from __future__ import annotations

import functools
import os
import pwd
from dataclasses import dataclass
from typing import Final

from agent.keeper.errors import LaunchFailure
from agent.keeper.order import Text, Work

#: What `env_mode: none` searches for programs.
STANDARD_PATH: Final = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARKER: Final = b"PERTINAX_ATTEMPT"
CLUSTER_MARKER: Final = b"PERTINAX_CLUSTER_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who runs the attempt. `is_other` when the launcher has to change users for it."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    is_other: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an attempt runs: what the keeper adds to the environment."""

    token: str
    cluster_id: str
    node: str
    workdir: bytes
    progress: bytes


def to_bytes(text: Text) -> bytes:
    """The exact bytes of `text`: UTF-8, with escaped surrogates for bytes that are no UTF-8."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def resolve_account(user: str | None) -> Account:
    """The account named `user` (a name or a uid); ours for None.

    Raises LaunchFailure (launch_error) for an unknown user, and for another user when we are not
    root. May ask the system's name service.
    """
    if user is None:
        return _own_account()
    uid = os.geteuid()
    try:
        entry = _entry_of_uid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        raise LaunchFailure("launch_error", f"user unknown: {user}") from None
    target = int(user) if entry is None else entry.pw_uid
    if uid not in {target, 0}:
        raise LaunchFailure("launch_error", f"EPERM: only root can run as {user}")
    gid = target if entry is None else entry.pw_gid
    return _account(entry, target, gid, is_other=target != uid)


def build_environment(
    work: Work, place: Place, account: Account, inherited: dict[bytes, bytes]
) -> dict[bytes, bytes]:
    """The whole environment of the attempt; ours comes first so that a marker is found quickly.

    Raises LaunchFailure for a name that no environment can hold.
    """
    job, task, index = work.names
    ours = {
        MARKER: place.token.encode(),
        CLUSTER_MARKER: place.cluster_id.encode(),
        b"PERTINAX_JOB": job.encode(),
        b"PERTINAX_TASK": task.encode(),
        b"PERTINAX_INDEX": index.encode(),
        b"PERTINAX_REPLICAS": b"%d" % work.replicas,
        b"PERTINAX_NODE": place.node.encode(),
        b"PERTINAX_PROGRESS": place.progress,
        b"PERTINAX_WORKDIR": place.workdir,
    }
    result = dict(ours)
    result |= _base(work.env_mode, account, inherited)
    if work.gpu_indices:
        result[b"CUDA_VISIBLE_DEVICES"] = ",".join(map(str, work.gpu_indices)).encode()
    for key, value in work.env.items():
        name, data = to_bytes(key), to_bytes(value)
        if not name or b"=" in name or b"\0" in name or b"\0" in data:
            raise LaunchFailure("launch_error", f"EINVAL: no environment variable: {key!r:.80}")
        result[name] = data
    result |= ours
    return result


def _base(
    mode: str | tuple[str, ...], account: Account, inherited: dict[bytes, bytes]
) -> dict[bytes, bytes]:
    identity = {
        b"HOME": os.fsencode(account.home),
        b"USER": account.name.encode(),
        b"LOGNAME": account.name.encode(),
    }
    if mode == "agent":
        kept = {k: v for k, v in inherited.items() if not k.startswith(b"PERTINAX_")}
        return kept | identity if account.is_other else kept
    base = {b"PATH": STANDARD_PATH, b"LANG": b"C.UTF-8"} | identity
    names = () if isinstance(mode, str) else mode
    for name in names:
        key = to_bytes(name)
        if key in inherited:
            base[key] = inherited[key]
    return base


@functools.cache
def _own_account() -> Account:
    uid = os.geteuid()
    return _account(_entry_of_uid(uid), uid, os.getegid(), is_other=False)


def _entry_of_uid(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _account(entry: pwd.struct_passwd | None, uid: int, gid: int, *, is_other: bool) -> Account:
    if entry is None:
        # A bare uid has no home and no groups beside its own number.
        return Account(uid=uid, gid=gid, groups=(gid,), name=str(uid), home="/", is_other=is_other)
    groups = tuple(os.getgrouplist(entry.pw_name, gid)) if is_other else ()
    return Account(
        uid=uid, gid=gid, groups=groups, name=entry.pw_name, home=entry.pw_dir, is_other=is_other
    )
