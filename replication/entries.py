"""The first byte of a log entry's payload says who it is for.

The numbers are on every disk: they are appended to, never reused. PySyncObj owns 0 to 3, of which
only its no-op (1) is ever written here; 0, 2 and 3 are pickles and are refused at ingress.
"""

from __future__ import annotations

from typing import Final

#: A new leader's empty entry. Not given to the state machine.
NOOP: Final = b"\x01"
#: Prefix of a command of the layer above.
COMMAND_PREFIX: Final = b"\x10"

#: Largest command. Well below the frame limit, so that one entry always fits one message.
COMMAND_BYTES_MAX: Final = 2 * 1024 * 1024


def encode_command(command: bytes) -> bytes:
    """The payload of an entry that carries `command`."""
    return COMMAND_PREFIX + command


def command_of(payload: bytes) -> bytes | None:
    """The command in an entry's payload; None for an entry that is none (a leader's no-op).

    Raises ValueError for a payload that this version does not know: it must stop the replica, since
    an entry that is skipped here and applied elsewhere makes the replicas differ.
    """
    if payload[:1] == COMMAND_PREFIX:
        return payload[1:]
    if payload == NOOP:
        return None
    raise ValueError(f"entry of unknown type {payload[:1]!r}: this member needs an upgrade")


def is_known_payload(payload: bytes) -> bool:
    """Whether an entry from a peer may enter the log; the gate that keeps pickles out."""
    return payload[:1] == COMMAND_PREFIX or payload == NOOP
