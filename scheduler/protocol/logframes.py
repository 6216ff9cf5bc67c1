"""The frames in which a job's output travels over HTTP (`?format=frames`).

    kind u8 | offset u64 | length u32 | payload        all big-endian

    H  head   offset of the first byte that will come; payload JSON {attempt, stream, token, node}
    D  data   offset of the payload's first byte in the stream. A jump over the end of the frame
              before means that the bytes between were not kept
    B  beat   a sign of life every few seconds while nothing is printed; offset as the next data
    E  end    last frame; offset after the last byte; payload JSON {code, message, truncated, …}

A body that breaks off without an `E` is incomplete: ask again from the offset after the last byte.
Standard library only: the command line's fast start depends on it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.protocol.errors import DecodeError, FrameTooLarge

MEDIA_TYPE: Final = "application/vnd.pertinax.log-frames"
#: Largest payload, bytes. Agents send pieces of at most 256 KiB.
PAYLOAD_BYTES_MAX: Final = 1024 * 1024
HEADER: Final = struct.Struct(">BQI")

HEAD: Final = ord("H")
DATA: Final = ord("D")
BEAT: Final = ord("B")
END: Final = ord("E")


@dataclass(frozen=True, slots=True)
class LogFrame:
    """One frame; `payload` is bytes of the stream for DATA and JSON for HEAD and END."""

    kind: int
    offset: int
    payload: bytes = b""

    def document(self) -> dict[str, Any]:
        """The payload of a HEAD or END frame. Raises DecodeError."""
        try:
            found = json.loads(self.payload)
        except ValueError:
            raise DecodeError("a log frame whose payload is no JSON") from None
        if not isinstance(found, dict):
            raise DecodeError("a log frame whose payload is no JSON object")
        return found


def encode_frame(kind: int, offset: int, payload: bytes = b"") -> bytes:
    """The bytes of one frame. The payload must be at most PAYLOAD_BYTES_MAX."""
    assert len(payload) <= PAYLOAD_BYTES_MAX
    return HEADER.pack(kind, offset, len(payload)) + payload


def encode_note(kind: int, offset: int, document: Mapping[str, Any]) -> bytes:
    """A HEAD or END frame."""
    return encode_frame(kind, offset, json.dumps(document, separators=(",", ":")).encode())


def decode_header(header: bytes) -> tuple[int, int, int]:
    """(kind, offset, payload length) of a header of HEADER.size bytes.

    Raises DecodeError for an unknown kind and FrameTooLarge above PAYLOAD_BYTES_MAX.
    """
    kind, offset, length = HEADER.unpack(header)
    if kind not in (HEAD, DATA, BEAT, END):
        raise DecodeError(f"unknown log frame {kind}")
    if length > PAYLOAD_BYTES_MAX:
        raise FrameTooLarge(f"a log frame of {length} bytes; at most {PAYLOAD_BYTES_MAX}")
    return kind, offset, length
