"""Whose directory this is. Written once when a member is founded; everything else checks it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from zlib import crc32

from wal.cell import replace_file
from wal.errors import Corrupt, UnsupportedVersion, WrongIdentity
from wal.files import REAL_FILES, FileSystem

IDENTITY_NAME: Final = "identity"
_FORMAT: Final = 1
#: Longest cluster id or member name in bytes of UTF-8: they stand in every segment's header.
NAME_BYTES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a directory. ValueError for names that are empty or above NAME_BYTES_MAX."""

    cluster_id: str
    member: str
    #: Counts the cluster's refoundings (`cluster restore`); older segments of the member are fine.
    incarnation: int = 1

    def __post_init__(self) -> None:
        for text in (self.cluster_id, self.member):
            if not 0 < len(text.encode()) <= NAME_BYTES_MAX:
                raise ValueError(f"{text!r}: need 1 to {NAME_BYTES_MAX} bytes")
        if not 0 <= self.incarnation < 1 << 64:
            raise ValueError("incarnation out of range")


@dataclass(frozen=True, slots=True)
class IdentityFile:
    """The identity and whether a log was ever opened here."""

    identity: Identity
    #: Set once the first segment is durable. From then on missing segments are a loss, not a start.
    is_started: bool = False


def create_directory(path: Path, identity: Identity, *, fs: FileSystem = REAL_FILES) -> None:
    """Found `path` as the directory of `identity`; durable on return.

    Idempotent for the same identity. Raises WrongIdentity if it already belongs to another.
    """
    fs.make_directory(path)
    fs.sync_directory(path.parent)
    if fs.exists(path / IDENTITY_NAME):
        check_identity(path, read_identity(path, fs=fs), identity)
        return
    write_identity_file(path, IdentityFile(identity), fs=fs)


def read_identity(path: Path, *, fs: FileSystem = REAL_FILES) -> Identity:
    """Whose directory `path` is. Raises WrongIdentity if not founded, Corrupt if damaged."""
    return read_identity_file(path, fs=fs).identity


def raise_incarnation(path: Path, incarnation: int, *, fs: FileSystem = REAL_FILES) -> Identity:
    """Make `path` that of the same member in a later founding of the cluster; durable on return.

    For `cluster restore`, with the directory not in use. The log in it stays readable under the new
    identity, and under no older one. ValueError unless it is higher; raises as `read_identity`.
    """
    content = read_identity_file(path, fs=fs)
    if incarnation <= content.identity.incarnation:
        raise ValueError(f"{path} is of incarnation {content.identity.incarnation} already")
    identity = replace(content.identity, incarnation=incarnation)
    write_identity_file(path, replace(content, identity=identity), fs=fs)
    return identity


def check_identity(path: Path, found: Identity, wanted: Identity) -> None:
    """Raise WrongIdentity unless `found` (on disk) is `wanted` (configured)."""
    if found != wanted:
        raise WrongIdentity(
            f"{path} belongs to member {found.member!r} of cluster {found.cluster_id!r} "
            f"(incarnation {found.incarnation}), not to member {wanted.member!r} of cluster "
            f"{wanted.cluster_id!r} (incarnation {wanted.incarnation})",
            path=path,
        )


def read_identity_file(path: Path, *, fs: FileSystem = REAL_FILES) -> IdentityFile:
    """As `read_identity`, with the started mark."""
    file = path / IDENTITY_NAME
    try:
        raw = fs.read(file)
    except FileNotFoundError as error:
        raise WrongIdentity(
            f"{path} holds no identity: nothing was founded here. `cluster init` founds a cluster, "
            "`cluster replace` brings a member back with an empty disk",
            path=path,
        ) from error
    try:
        body = json.loads(raw)
        claimed = int(body.pop("crc32"), 16)
        if crc32(_canonical(body)) != claimed:
            raise ValueError("checksum")
        if body["format"] > _FORMAT:
            raise UnsupportedVersion(
                f"{file} has format {body['format']}; this release reads up to {_FORMAT}", path=file
            )
        identity = Identity(body["cluster_id"], body["member"], body["incarnation"])
        content = IdentityFile(identity, body["log_started"])
        if _encode(content) != raw:
            raise ValueError("not as written")
        return content
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt("the identity file does not verify", path=file) from error


def write_identity_file(path: Path, content: IdentityFile, *, fs: FileSystem = REAL_FILES) -> None:
    """Replace the identity file atomically; durable on return."""
    replace_file(path / IDENTITY_NAME, _encode(content), fs=fs)


def _encode(content: IdentityFile) -> bytes:
    body: dict[str, object] = {
        "format": _FORMAT,
        "cluster_id": content.identity.cluster_id,
        "member": content.identity.member,
        "incarnation": content.identity.incarnation,
        "log_started": content.is_started,
    }
    body["crc32"] = f"{crc32(_canonical(body)):08x}"
    return json.dumps(body, indent=1).encode() + b"\n"


def _canonical(body: dict[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
