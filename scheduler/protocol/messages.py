"""Agent <-> controller messages: what each means, who sends it, what answers it.

Each message is a msgpack array whose first element is its kind. Kinds are appended, never reused;
new fields go to the end with a default, so that an older reader's frames still decode. A message
that is sent as one frame must stay below `FRAME_BYTES_MAX`; lists are split by their sender.

Times called `*_boottime_ms` are the sender's CLOCK_BOOTTIME and mean nothing elsewhere; `*_at_ms`
are wall-clock labels (Unix ms) for people, and decide nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler.protocol.errors import DecodeError

#: The protocol's version; an agent offers a range.
PROTOCOL_VERSION: Final = 1
#: Most items in one Inventory, Reports or Verdicts message.
ITEMS_MAX: Final = 500


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Base of everything that is sent as one frame."""


# ---- values inside messages --------------------------------------------------------------------


class Capacity(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a node offers to jobs."""

    cpu_millis: int
    memory_bytes: int
    gpu_count: int = 0
    disk_bytes: int = 0
    custom: dict[str, int] = {}


class Seen(msgspec.Struct, frozen=True, array_like=True, kw_only=True, order=True):
    """The newest committed point an agent was shown; orders from one who knows less are refused."""

    incarnation: str = ""
    term: int = 0
    index: int = 0


class StreamFacts(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One captured stream at its end."""

    size_bytes: int = 0
    #: SHA-256 of every byte written, also of those not kept; hex.
    sha256: str = ""
    is_truncated: bool = False


class StartFacts(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How an attempt's process began."""

    started_at_ms: int
    #: None when no process came to be (a launch error).
    pid: int | None
    #: Start time in clock ticks since boot: with the boot id it tells a reused pid apart.
    start_ticks: int = 0
    boot_id: str = ""
    #: Worker (`42/main/0`) as the order named it.
    worker: str = ""


class FinishFacts(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How an attempt ended, as its node saw it.

    `cause` is one of specification 1.3 that a node can see: exit_zero, accepted_exit, exit_nonzero,
    signal, oom, timeout, stalled, output_check, launch_error, launch_failed, status_lost,
    lease_expired, resource_overuse; node_drain (the node left and ended it first); or
    `killed` when an order of the controllers ended it (the state knows which), or `fenced`.
    """

    cause: str
    ended_at_ms: int
    start: StartFacts | None = None
    #: None unless a wait status was seen.
    exit_code: int | None = None
    #: Name, as SIGKILL; None unless it died of one.
    signal: str | None = None
    has_core: bool = False
    peak_rss_bytes: int | None = None
    cpu_ms: int | None = None
    stdout: StreamFacts = StreamFacts()
    stderr: StreamFacts = StreamFacts()
    #: observed | replayed | seen_gone | proven_dead | never_started | declared (specification 3.7).
    evidence: str = "observed"
    #: One line for people: the failed check, the errno and path, the missing program.
    detail: str = ""
    #: True when the exit was in the journal before the kill order came to it.
    has_exited_before_kill: bool = False
    #: "" | stuck | fenced: what became of the tree.
    cleanup: str = ""
    #: False while something of the tree may still live.
    is_tree_gone: bool = True
    frozen_ms: int = 0
    #: A signal of ours (order, limit, fence) was sent before the end: never adopted as late truth.
    was_signalled: bool = False


class Report(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One event of one attempt. Exactly the fields its kind names are set."""

    #: started | finished | not_started | progress | ready | tree_gone
    kind: str
    token: str
    #: The outbox's number; 0 in an inventory item.
    sequence: int = 0
    start: StartFacts | None = None
    finish: FinishFacts | None = None
    #: progress: the line `done total text` as last written, decoded with replacement.
    text: str = ""


class Work(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that a node needs to run one attempt."""

    attempt: str  # as 42/main/0#1
    argv: tuple[str, ...]
    is_shell: bool = False
    env: dict[str, str] = {}
    #: "none", "agent", or a list of names taken over from the agent.
    env_mode: str | tuple[str, ...] = "none"
    cwd: str | None = None
    user: str | None = None
    umask: int | None = None
    stdin: str | None = None
    files: dict[str, str] = {}
    cpu_millis: int = 0
    memory_bytes: int = 0
    gpu_indices: tuple[int, ...] = ()
    timeout_ms: int | None = None
    stall_timeout_ms: int | None = None
    grace_ms: int = 10_000
    stop_signal: str = "TERM"
    on_lease_end: str = "freeze"
    log_limit_bytes: int = 64 * 1024 * 1024
    accept_exit: tuple[int, ...] = ()
    output_nonempty: tuple[str, ...] = ()
    output_matches: dict[str, str] = {}
    check: str | tuple[str, ...] | None = None
    ready_check: str | tuple[str, ...] | None = None
    owner: str = ""
    #: How the outcome of the checks is bounded.
    check_timeout_ms: int = 60_000
    replicas: int = 1


class Verdict(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the cluster says of one inventory item.

    `verdict`: keep | acknowledged | registry_full | disowned | kill | materialised | hold |
    orphan | forget (not_started noted; the order may come again).
    """

    token: str
    verdict: str
    reason: str = ""
    #: kill: the cause to record, such as user_cancel or fenced.
    cause: str = ""
    grace_ms: int = 0


class Progress(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    token: str
    text: str


# ---- agent -> controller -----------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """First frame of a control connection. Answer: Welcome, NotLeader, Refused or ComeBack."""

    protocol_min: int
    protocol_max: int
    cluster_id: str
    name: str
    node_uuid: str
    #: Persisted; raised at each start of the agent.
    start_number: int
    nonce: str
    store_id: str
    boot_id: str
    agent_version: str
    capacity: Capacity
    addresses: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    seen: Seen = Seen()
    #: When this was sent, for the lease that the rejoin's answer carries.
    sent_boottime_ms: int = 0
    limits: str = "sampled"  # what enforces limits here: cgroup2 | cgroup1 | sampled


class Inventory(Message, frozen=True, tag=2):
    """All that the node has, after each process was checked; follows Welcome. Answer: Verdicts.

    Sent in parts of at most ITEMS_MAX; the last has `is_last`. The keeper has durably voided every
    unstarted order of earlier sessions before the first part is sent.
    """

    session: int
    items: tuple[Report, ...]
    is_last: bool = True


class Reports(Message, frozen=True, tag=3):
    """A batch from the outbox, re-sent until committed. Answer: ReportsCommitted."""

    reports: tuple[Report, ...]


class Heartbeat(Message, frozen=True, tag=4):
    """Every heartbeat interval. Answer: HeartbeatAck, after a quorum round."""

    sequence: int
    sent_boottime_ms: int
    #: Highest outbox sequence written; highest order sequence handled.
    report_sequence: int = 0
    order_sequence: int = 0
    #: Of the live inventory: see `inventory_digest`.
    digest: str = ""
    cpu_used_millis: int = 0
    memory_used_bytes: int = 0
    load_millis: int = 0
    disk_free_bytes: int = 0
    is_disk_low: bool = False
    frozen: tuple[str, ...] = ()
    progress: tuple[Progress, ...] = ()
    acknowledged: int = 0  # sequence of the last acknowledged heartbeat


class Goodbye(Message, frozen=True, tag=5):
    """An orderly close: restart | reconnect | leave (specification 1.6)."""

    mode: str


class OrderRefused(Message, frozen=True, tag=6):
    """An order this agent does not obey: stale_controller | old_session | bad_order."""

    order_sequence: int
    token: str
    code: str
    message: str = ""


class BulkHello(Message, frozen=True, tag=7):
    """First frame of a bulk connection that a controller asked for by OpenBulk."""

    name: str
    node_uuid: str
    request: str


class BulkData(Message, frozen=True, tag=8):
    """Bytes of a stream, `offset` being the position of the first one in it."""

    offset: int
    data: bytes


class BulkEnd(Message, frozen=True, tag=9):
    """Nothing more comes. `code`: complete | missing | gone | error."""

    code: str
    message: str = ""
    size_bytes: int = 0


# ---- controller -> agent -----------------------------------------------------------------------


class Welcome(Message, frozen=True, tag=32):
    """The leader takes the node in; the agent sends its Inventory next.

    Nothing is acknowledged before Verdicts.
    """

    session: int
    cluster_id: str
    incarnation: str
    term: int
    heartbeat_interval_ms: int
    heartbeat_timeout_ms: int
    ack_timeout_ms: int
    lease_ms: int
    seen: Seen
    log_retention_ms: int = 86_400_000


class NotLeader(Message, frozen=True, tag=33):
    """Dial `address` (`host:port`) instead; empty while no leader is known."""

    leader: str = ""
    address: str = ""
    term: int = 0


class Refused(Message, frozen=True, tag=34):
    """The agent is not taken: wrong_cluster | unknown_protocol | duplicate_agent | bad_hello …"""

    code: str
    message: str
    is_final: bool = False  # trying again cannot help


class ComeBack(Message, frozen=True, tag=35):
    """Too many at once: dial again after this long."""

    after_ms: int


class Verdicts(Message, frozen=True, tag=36):
    """The rejoin's answer: an acknowledgement counted from the hello's sending."""

    session: int
    verdicts: tuple[Verdict, ...]
    is_last: bool
    seen: Seen
    lease_ms: int
    hello_boottime_ms: int
    not_renewed: tuple[str, ...] = ()


class HeartbeatAck(Message, frozen=True, tag=37):
    """Leadership was confirmed after the heartbeat's receipt: leases run from its sending."""

    sequence: int
    sent_boottime_ms: int
    seen: Seen
    lease_ms: int
    not_renewed: tuple[str, ...] = ()
    #: The controllers miss something: send the whole inventory again.
    wants_inventory: bool = False


class ReportsCommitted(Message, frozen=True, tag=38):
    """`committed at index`: these reports are the cluster's responsibility now.

    `refused` are to be sent again after `retry_after_ms` (registry_full).
    """

    sequences: tuple[int, ...]
    index: int
    refused: tuple[int, ...] = ()
    retry_after_ms: int = 0
    #: Tokens the cluster does not want to hear of again; the record may go after its retention.
    disowned: tuple[str, ...] = ()


class Start(Message, frozen=True, tag=39):
    """Run this attempt. Dies with its session. Answer: a `started` or `finished` report."""

    order_sequence: int
    session: int
    seen: Seen
    token: str
    work: Work


class Kill(Message, frozen=True, tag=40):
    """End this attempt's tree: soft signal, grace, KILL. Answer: a `finished` report."""

    order_sequence: int
    session: int
    seen: Seen
    token: str
    by: str
    why: str
    cause: str
    grace_ms: int
    stop_signal: str = "TERM"


class AskStatus(Message, frozen=True, tag=41):
    """Did this order start? Answer: its report again, or `not_started` (the order is void then)."""

    order_sequence: int
    session: int
    seen: Seen
    token: str


class OpenBulk(Message, frozen=True, tag=42):
    """Dial the same port and send BulkHello with `request`, then the stream from `offset`.

    `tail_bytes` > 0 asks for the last so many bytes instead; `is_following` goes on until the
    attempt ended.
    """

    request: str
    token: str
    stream: str  # stdout | stderr
    offset: int = 0
    tail_bytes: int = 0
    is_following: bool = False


class CloseBulk(Message, frozen=True, tag=43):
    """The reader went away; stop sending."""

    request: str


class WantInventory(Message, frozen=True, tag=44):
    """Send the whole inventory again, for the session as it is."""

    session: int


class DeleteLogs(Message, frozen=True, tag=45):
    """The attempt's record is gone for good: its output may go, too."""

    order_sequence: int
    session: int
    seen: Seen
    tokens: tuple[str, ...]


class LeaderQuery(Message, frozen=True, tag=10):
    """Sent instead of Hello by an agent whose leader is silent. Answer: NotLeader with the term."""

    cluster_id: str
    name: str


AgentMessage = (
    Hello
    | Inventory
    | Reports
    | Heartbeat
    | Goodbye
    | OrderRefused
    | BulkHello
    | BulkData
    | BulkEnd
    | LeaderQuery
)
ControllerMessage = (
    Welcome
    | NotLeader
    | Refused
    | ComeBack
    | Verdicts
    | HeartbeatAck
    | ReportsCommitted
    | Start
    | Kill
    | AskStatus
    | OpenBulk
    | CloseBulk
    | WantInventory
    | DeleteLogs
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_AGENT: Final = msgspec.msgpack.Decoder(AgentMessage)
_CONTROLLER: Final = msgspec.msgpack.Decoder(ControllerMessage)


def encode_message(message: Message) -> bytes:
    """The msgpack bytes of one message, without its frame."""
    return _ENCODER.encode(message)


def decode_agent_message(body: bytes) -> AgentMessage:
    """What an agent sent. Raises DecodeError."""
    try:
        return _AGENT.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"no message of an agent: {error}") from None


def decode_controller_message(body: bytes) -> ControllerMessage:
    """What a controller sent. Raises DecodeError."""
    try:
        return _CONTROLLER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"no message of a controller: {error}") from None
