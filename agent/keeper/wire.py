"""Agent <-> keeper: plain msgpack maps in length-prefixed frames over a unix socket.

The keeper stays small: standard library and msgpack, so a message is a `dict` with a `"do"` (from
the agent) or an `"is"` (from the keeper) and the fields listed here. Attempt facts travel as the
dicts of `start_facts` and `finish_facts`, whose keys are the field names of StartFacts and
FinishFacts in `scheduler.protocol.messages`; the agent turns one into the other.

Frames are those of `scheduler.protocol.framing`: 4 bytes of length, big-endian, then the body.

Agent to keeper (each answered by {"is": "answer", "id": same, "ok": bool, …} in order):

    {"do": "attach", "id", "cluster_id", "node", "session"}
        first message; -> store_id, boot_id, pid, limits (cgroup2|cgroup1|sampled), is_disk_low
    {"do": "void", "id", "below_session"}
        durably void every order of an earlier session that has no `started`; -> voided [token]
    {"do": "list", "id"}
        every attempt of the ledger, each process checked first; -> attempts [{token, worker, state:
        "intent"|"running"|"exited"|"damaged", start, finish, frozen: bool, session}]; evidence is
        "replayed" where no agent was there to be sent the `finished` event
        optional: "with_forgotten" (true), "after" (token) and "limit" (0: none) page through it, by
        token; the answer's is_more says that `limit` cut it off. Items also have is_forgotten
        (`forget` came), progress and is_ready
    {"do": "start", "id", "token", "session", "work": {fields of Work}, "lease_until_boottime_ms"}
        -> ok once `intent` is durable; started/exited follow as events. Refused (ok false, code):
        no_lease, voided, duplicate (already known: its state is in the answer), disk_low, bad_order
        (and too_large, for any answer that does not fit a frame)
    {"do": "status", "id", "token"}
        -> the attempt's item of `list`, or state "unknown": then its token is void, durably, and no
        start of it is obeyed any more
    {"do": "kill", "id", "token", "by", "why", "cause", "grace_ms", "stop_signal"}
        durable `order` first; idempotent; a shorter grace replaces a longer one; -> state
    {"do": "lease", "id", "leases": {token: until_boottime_ms}}
        renew (never shortens); the keeper keeps them in the lease file, too; thaws what is frozen
        and renewed
    {"do": "fence", "id", "token", "why"}
        KILL at once, before any thaw; cleanup "fenced"
    {"do": "forget", "id", "tokens": [..]}
        their finish is committed: the record may go after `log_retention`
    {"do": "settings", "id", "log_retention_ms", "lease_margin_ms"}
    {"do": "delete_logs", "id", "tokens": [..]}
    {"do": "stop", "id", "end_jobs": bool, "why"}
        end every tree (soft, grace, KILL) when asked to, then leave once all finishes are durable;
        the answer comes at the end and lists finishes {token: finish}

Keeper to agent (events, sent to the attached agent only after they are durable in the journal; the
agent must expect each of them again in `list` after a reconnect):

    {"is": "started", "token", "start"}
    {"is": "not_started", "token", "why"}           its intent was durable and it will never start:
                                                    voided, killed or fenced first, or lease over
    {"is": "finished", "token", "finish"}          finish["start"] is filled in
    {"is": "tree_gone", "token"}                    after a finish with is_tree_gone false
    {"is": "progress", "token", "text"} · {"is": "ready", "token"}
    {"is": "frozen", "token"} · {"is": "thawed", "token"}
    {"is": "disk", "is_low": bool}

Output lies in DIR/attempts/<token>/ and is read by the agent through `agent.keeper.output`'s reader
(`read_stream(directory, stream, offset, length) -> (offset, bytes)`, `stream_size`), never through
this socket.

One agent is attached at a time; a newer `attach` replaces the older connection.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgpack

#: Largest frame between agent and keeper, in bytes: a Work with its inline files fits.
FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
_LENGTH: Final = struct.Struct(">I")


class WireError(Exception):
    """The other end sent what is no message; the connection is closed."""


def encode(message: dict[str, Any]) -> bytes:
    """One frame for `message`."""
    # Text that once was bytes (a file name, an argument) crosses unharmed.
    body: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors="surrogateescape")
    if len(body) > FRAME_BYTES_MAX:
        raise WireError(f"a message of {len(body)} bytes exceeds {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


class Reader:
    """Cuts a byte stream into messages; raises WireError for bytes that are none."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Add `data` and return the messages that are complete now."""
        buffer = self._buffer
        buffer += data
        messages: list[dict[str, Any]] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if not 0 < length <= FRAME_BYTES_MAX:
                raise WireError(f"a frame of {length} bytes")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            messages.append(_decode(bytes(buffer[start + _LENGTH.size : end])))
            start = end
        del buffer[:start]
        return messages


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = msgpack.unpackb(
            body, raw=False, strict_map_key=False, unicode_errors="surrogateescape"
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise WireError(f"no msgpack: {error}") from None
    if not isinstance(message, dict):
        raise WireError("a message is a map")
    return message
