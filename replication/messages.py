"""What members say to each other, and its strict encoding.

Every message is a msgpack array whose first element is its kind. Kinds and field positions are
appended, never reused: during a rolling upgrade two versions speak, and unknown trailing fields of
a newer one are ignored. Decoding checks every type; nothing here ever unpickles.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

PROTOCOL_VERSION: Final = 1

#: Largest frame. One append carries at most `APPEND_BYTES_MAX` of payload or a single entry.
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
APPEND_BYTES_MAX: Final = 256 * 1024
#: Body of one request or answer of the side channel; the rest of a frame is for its envelope.
BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - 64 * 1024

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
WireEntry = tuple[bytes, Count, Count]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """First frame of both sides."""

    protocol: Count
    cluster_id: Name
    incarnation: Count
    member: Name
    #: Random, drawn at each start: tells a restarted member from a second connection of the same.
    epoch: Count
    #: Which of the pair's connections this is: "raft" or "bulk".
    channel: Name
    version: Annotated[str, msgspec.Meta(max_length=255)]


class AppendEntries(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Entries after (prev_index, prev_term); empty for a heartbeat."""

    term: Count
    commit_index: Count
    prev_index: Count
    prev_term: Count
    #: Number of this broadcast; echoed, it proves contact after the broadcast (ReadIndex).
    round: Count
    #: Answer at once, as proof of contact, even while the entries are not on disk yet.
    wants_echo: bool
    entries: list[WireEntry]


class AppendAck(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Answer to AppendEntries and SnapshotOffer; the sender's `term` makes it stale-proof."""

    term: Count
    #: The sender holds, on disk, the leader's log up to here.
    match_index: Count
    #: When `needs_reset`: send from here.
    next_index: Count
    needs_reset: bool
    round: Count
    #: The sender came back with an empty disk and must not be counted yet.
    is_joining: bool
    #: How far it has applied, for status.
    applied_index: Count


class RequestVote(msgspec.Struct, frozen=True, array_like=True, tag=4):
    term: Count
    last_index: Count
    last_term: Count
    #: The leader asked for this election: stickiness does not apply.
    is_transfer: bool


class Vote(msgspec.Struct, frozen=True, array_like=True, tag=5):
    term: Count


class PreVote(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Would you vote for me in `term`? Changes nothing on either side."""

    term: Count
    last_index: Count
    last_term: Count
    attempt: Count


class PreVoteReply(msgspec.Struct, frozen=True, array_like=True, tag=7):
    #: The replier's current term.
    term: Count
    attempt: Count
    is_granted: bool


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The leader hands over: stand for election at once."""

    term: Count


class SnapshotOffer(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The leader no longer has the entries the member needs; fetch its snapshot instead."""

    term: Count
    round: Count
    index: Count
    snapshot_term: Count


class Admit(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """To a joining member: the others committed (index, entry_term), which was appended after you
    came; if you hold it on disk, you count again."""

    term: Count
    index: Count
    entry_term: Count


class Request(msgspec.Struct, frozen=True, array_like=True, tag=11):
    id: Count
    kind: Name
    body: bytes


class Response(msgspec.Struct, frozen=True, array_like=True, tag=12):
    id: Count
    is_ok: bool
    body: bytes


class Vitals(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Sent now and then to everyone, for status only."""

    term: Count
    is_leader: bool
    commit_index: Count
    applied_index: Count
    last_index: Count


RaftMessage = (
    AppendEntries
    | AppendAck
    | RequestVote
    | Vote
    | PreVote
    | PreVoteReply
    | TimeoutNow
    | SnapshotOffer
    | Admit
)
Message = RaftMessage | Hello | Request | Response | Vitals

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Message)
_hello_decoder: Final = msgspec.msgpack.Decoder(Hello)


class BadMessage(ValueError):
    """Bytes from a peer that are no message of this protocol."""


def encode(message: Message) -> bytes:
    """The bytes of one frame's content."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """The message in `data`. Raises BadMessage."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadMessage(str(error)) from error


def decode_hello(data: bytes | memoryview) -> Hello:
    """The greeting in `data`; nothing else is accepted before it. Raises BadMessage."""
    try:
        return _hello_decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadMessage(str(error)) from error
