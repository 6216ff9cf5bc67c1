"""What reaches the agent's core, and what the core asks of the edge: values only.

Every event is handled with the current CLOCK_BOOTTIME in ms, which the edge reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scheduler.protocol.messages import (
    ControllerMessage,
    Message,
    OpenBulk,
    Seen,
    Welcome,
)

# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeeperAttached:
    """A keeper answers; its ledger may differ from what was known before."""

    store_id: str
    boot_id: str
    pid: int
    limits: str
    is_disk_low: bool = False


@dataclass(frozen=True, slots=True)
class KeeperLost:
    """The connection to the keeper is gone; open requests will not be answered."""

    reason: str


@dataclass(frozen=True, slots=True)
class KeeperAnswered:
    """The answer to one AskKeeper."""

    request: dict[str, Any]
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeeperSaid:
    """An event of the keeper."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The leader took the node in on a new connection."""

    welcome: Welcome
    hello_boottime_ms: int
    #: Name or address, for people.
    leader: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the current session's controller."""

    message: ControllerMessage


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The control connection is gone, whoever closed it."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaderLearned:
    """Another controller answered a LeaderQuery."""

    term: int
    address: str


@dataclass(frozen=True, slots=True)
class OutboxWritten:
    """All reports up to this sequence are durable."""

    sequence: int


@dataclass(frozen=True, slots=True)
class UsageSampled:
    """What the host uses now; for the next heartbeat."""

    cpu_used_millis: int = 0
    memory_used_bytes: int = 0
    load_millis: int = 0
    disk_free_bytes: int = 0
    is_disk_low: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; sent a few times per second."""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """End every job, report all ends, say goodbye, exit."""

    why: str


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """Say goodbye and exit; the keeper and its jobs go on."""


Event = (
    KeeperAttached
    | KeeperLost
    | KeeperAnswered
    | KeeperSaid
    | Welcomed
    | Received
    | SessionClosed
    | LeaderLearned
    | OutboxWritten
    | UsageSampled
    | Tick
    | LeaveRequested
    | RestartRequested
)

# ---- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the session's controller; dropped when there is no session."""

    message: Message


@dataclass(frozen=True, slots=True)
class AskKeeper:
    """One request; the edge adds its id. Answered by KeeperAnswered or cut off by KeeperLost."""

    request: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Close the control connection after what was sent; then dial `address` first, if any."""

    reason: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class QueryLeader:
    """Ask the other controllers who leads; answers come as LeaderLearned."""


@dataclass(frozen=True, slots=True)
class SaveSeen:
    """Remember the newest committed point across restarts."""

    seen: Seen


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Serve a log stream on a connection of its own."""

    request: OpenBulk


@dataclass(frozen=True, slots=True)
class CloseStream:
    """The reader of this stream went away."""

    request: str


@dataclass(frozen=True, slots=True)
class ReleaseKeeper:
    """The keeper has left by order: do not start another."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The agent is done; leave with this code once everything was sent."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """One line for the log."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)
    is_warning: bool = False


Action = (
    Send
    | AskKeeper
    | CloseSession
    | QueryLeader
    | SaveSeen
    | OpenStream
    | CloseStream
    | ReleaseKeeper
    | Exit
    | Note
)
