"""Every log entry: its number, version and fields (specification 2.4).

An entry is the msgpack array `[kind, version, log_time_ms, wall_ms, actor, fields…]`. Kinds are
appended, never reused; a retired kind keeps its number and its handler. New fields go to the end
of an entry with a default. Changing the meaning of a field raises `version`, and the handler then
knows both. Adding a kind touches: this file, `handlers/`, `invariants.py`, a unit test, the golden
bytes and docs/protocol.md.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler.protocol.errors import DecodeError
from scheduler.protocol.messages import Capacity, Report
from scheduler.protocol.spec import JobSpec


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Base: what every entry begins with. `log_time_ms` decides; `wall_ms` is a label.

    Not keyword-only, unlike the kinds below: so its fields stay in front of theirs.
    """

    version: int = 1
    #: Stamped by the leader when it proposes: see specification 2.4, log time.
    log_time_ms: int = 0
    wall_ms: int = 0
    #: `user:alice`, `controller:c1`, `system:…`, `agent:a1`.
    actor: str = ""


class SubmittedJob(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    spec: JobSpec
    user: str = ""


class SubmitJobs(Entry, frozen=True, kw_only=True, tag=1):
    """Jobs submitted together, all or nothing. Result: Submitted(job ids, was_known)."""

    jobs: tuple[SubmittedJob, ...]
    #: Idempotency key, unique within the principal `actor`; empty for none.
    key: str = ""
    #: SHA-256 (hex) of the request's canonical body: the same key with another is refused.
    body_digest: str = ""
    clone_of: int | None = None


class KillRequested(Entry, frozen=True, kw_only=True, tag=2):
    """End a job, worker or attempt for good. `target` as in `scheduler.protocol.ids.Target`."""

    target: str
    cause: str = "user_cancel"
    why: str = ""
    if_version: int | None = None


class Placement(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One choice of a plan: this pending attempt onto this node."""

    attempt: str
    node: str
    gpu_indices: tuple[int, ...] = ()


class Placed(Entry, frozen=True, kw_only=True, tag=3):
    """A plan; each placement is checked again in apply and skipped when the world has moved.

    Its ordinal in the token is its position in `placements`. Result: PlacedResult(placed, skipped).
    """

    placements: tuple[Placement, ...]


class AttemptReports(Entry, frozen=True, kw_only=True, tag=4):
    """Reports of one node, in order. Result: tuple of per-report answers (see core.results)."""

    node: str
    node_uuid: str
    reports: tuple[Report, ...]


class NodeJoined(Entry, frozen=True, kw_only=True, tag=5):
    """A hello that the leader took in. Result: Joined(session) or a refusal (duplicate_agent)."""

    name: str
    node_uuid: str
    start_number: int
    nonce: str
    store_id: str
    boot_id: str
    agent_version: str
    capacity: Capacity
    addresses: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    limits: str = ""
    #: True when the leader heard the node's present session within heartbeat_timeout.
    is_old_session_heard: bool = False


class NodeInventory(Entry, frozen=True, kw_only=True, tag=6):
    """The whole inventory of a session; the verdicts are made in apply. Result: tuple[Verdict]."""

    node: str
    node_uuid: str
    session: int
    items: tuple[Report, ...]
    #: Log time until which leases given by this rejoin run (0: no acknowledgement yet).
    lease_until_ms: int = 0
    #: False for all but the last of an inventory's parts.
    is_last: bool = True


class NodeOffline(Entry, frozen=True, kw_only=True, tag=7):
    """Contact with a node ended: `reason` of specification 1.5 and 1.6.

    `lease_until_ms` is the last acknowledgement + L, in log time.
    """

    node: str
    session: int
    reason: str
    lease_until_ms: int = 0


class LeaderTookOver(Entry, frozen=True, kw_only=True, tag=8):
    """First entry of a new leader: every Running attempt is unknown until its agent rejoins."""

    term: int
    leader: str


class DeadlinesPassed(Entry, frozen=True, kw_only=True, tag=9):
    """Time has come for something: apply looks for itself what is due at `log_time_ms`.

    At most `limit` records are touched; Result: number of records still due.
    """

    limit: int = 500


class NodeChanged(Entry, frozen=True, kw_only=True, tag=10):
    """Cordon, uncordon, labels, removal. Unset fields stay as they are."""

    node: str
    unschedulable: bool | None = None
    why: str = ""
    labels: dict[str, str] | None = None
    is_removed: bool = False
    #: With is_removed: an operator's word that the host is dead; releases its fences.
    is_dead: bool = False


class ConfigChanged(Entry, frozen=True, kw_only=True, tag=11):
    """Cluster-wide settings, by their names in `core.settings`. Unknown names are refused."""

    changes: dict[str, int | str]


class ClusterFounded(Entry, frozen=True, kw_only=True, tag=12):
    """First entry of a cluster's life (and of each restore): identity and settings."""

    cluster_id: str
    incarnation: str
    settings: dict[str, int | str] = {}


class StartUnconfirmed(Entry, frozen=True, kw_only=True, tag=13):
    """The node said `not_started` to an order past its start_timeout: Killed `revoked`."""

    token: str
    node: str


class Audit(Entry, frozen=True, kw_only=True, tag=14):
    """Something worth keeping that changes no job: a refused call, a restore, a drill."""

    what: str
    details: dict[str, str] = {}


AnyEntry = (
    SubmitJobs
    | KillRequested
    | Placed
    | AttemptReports
    | NodeJoined
    | NodeInventory
    | NodeOffline
    | LeaderTookOver
    | DeadlinesPassed
    | NodeChanged
    | ConfigChanged
    | ClusterFounded
    | StartUnconfirmed
    | Audit
)

#: Largest encoded entry, in bytes: below what replication sends in one batch.
ENTRY_BYTES_MAX: Final = 1024 * 1024

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(AnyEntry)


class UnknownEntry(DecodeError):
    """The log holds an entry this release does not know: the controller stops, upgrade needed."""

    code = "unknown_entry"


def encode_entry(entry: Entry) -> bytes:
    """The bytes that go into the log."""
    return _ENCODER.encode(entry)


def decode_entry(data: bytes) -> AnyEntry:
    """An entry of the log. Raises UnknownEntry: never skip one."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnknownEntry(
            f"the log holds an entry that this release does not know: {error}"
        ) from None
