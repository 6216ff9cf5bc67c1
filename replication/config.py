"""Settings of one member of the log, and the order they must keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from replication.errors import ConfigError

MEMBER_COUNTS: Final = (1, 3, 5)
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of this member. The certificate's common name is the member's name."""

    ca: Path
    cert: Path
    key: Path
    #: When set, a peer's certificate must carry this organizational unit too: an authority that
    #: also signs agents must not let an agent called like a controller in.
    peer_unit: str | None = None
    #: What stands before the member's name in a certificate's common name, as in `controller:c1`.
    name_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """What one member needs to know. Names are those of certificates and of the log's identity."""

    name: str
    cluster_id: str
    #: Raised by a restore; members of different incarnations do not speak to each other.
    incarnation: int
    #: Every member, this one included: name to (host, port) under which the others reach it.
    members: dict[str, tuple[str, int]]
    #: Where this member listens.
    listen: tuple[str, int]
    data_dir: Path
    #: None means plain TCP, for tests and for loopback that was declared insecure.
    tls: TlsFiles | None
    #: Software version, told to the other members.
    version: str = "0"

    #: A follower stands for election after a random time in this range without its leader.
    election_timeout_min_ms: int = 500
    election_timeout_max_ms: int = 1_000
    #: Heartbeat period of the leader.
    append_period_ms: int = 30
    #: A leader that no majority answered for this long steps down; None means one election timeout.
    check_quorum_ms: int | None = None
    #: A proposal resolves within this time, as outcome_unknown when nothing better is known.
    proposal_deadline_ms: int = 10_000

    #: Proposals that wait to be appended; over it they are refused as overloaded.
    queue_entries_max: int = 16_384
    queue_bytes_max: int = 64 * MIB
    #: Appended but not applied: bounds what a leader without its followers can pile up.
    inflight_entries_max: int = 65_536

    snapshot_every_entries: int = 100_000
    snapshot_every_bytes: int = 256 * MIB
    #: Entries kept below a snapshot, so that a briefly absent member catches up without one.
    keep_tail_entries: int = 10_000
    #: Rate at which a snapshot is read for a lagging member.
    snapshot_bytes_per_s: int = 64 * MIB
    #: Segment size of the log; None takes the log's default.
    segment_bytes: int | None = None

    peers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "peers", tuple(sorted(set(self.members) - {self.name})))
        self._check_membership()
        self._check_order()

    def _check_membership(self) -> None:
        if self.name not in self.members:
            raise ConfigError(f"this member, {self.name!r}, is not among members {self.members}")
        if len(self.members) not in MEMBER_COUNTS:
            raise ConfigError(
                f"{len(self.members)} members configured; a cluster has {MEMBER_COUNTS} of them"
            )
        if any(not name for name in self.members):
            raise ConfigError("a member has an empty name")

    def _check_order(self) -> None:
        low, high = self.election_timeout_min_ms, self.election_timeout_max_ms
        if not 0 < low < high:
            raise ConfigError(f"election_timeout_min_ms {low} must be below its maximum {high}")
        if low <= 3 * self.append_period_ms:
            raise ConfigError(
                f"election_timeout_min_ms {low} must exceed three append periods"
                f" of {self.append_period_ms} ms: a lost heartbeat must not elect"
            )
        if self.check_quorum_ms is not None and self.check_quorum_ms < low:
            raise ConfigError(
                f"check_quorum_ms {self.check_quorum_ms} is below the election timeout {low}"
            )
        if self.proposal_deadline_ms < 2 * high:
            raise ConfigError(
                f"proposal_deadline_ms {self.proposal_deadline_ms} must outlast two election"
                f" timeouts of {high} ms: a leader change is not a failed proposal"
            )
        bounds = ("queue_entries_max", "queue_bytes_max", "inflight_entries_max")
        positive = (*bounds, "append_period_ms", "snapshot_every_entries", "snapshot_every_bytes")
        for setting in (*positive, "snapshot_bytes_per_s"):
            if getattr(self, setting) <= 0:
                raise ConfigError(f"{setting} must be positive")
        if self.keep_tail_entries < 0:
            raise ConfigError("keep_tail_entries must not be negative")

    @property
    def quorum(self) -> int:
        """Members that make a majority."""
        return len(self.members) // 2 + 1

    @property
    def fallback_ms(self) -> int:
        """Time without a majority's answer after which a leader steps down."""
        return self.check_quorum_ms or self.election_timeout_max_ms
