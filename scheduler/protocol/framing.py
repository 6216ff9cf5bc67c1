"""Length-prefixed frames: feed bytes, get frames. No sockets.

A frame is its length as 4 bytes, big-endian, then that many bytes of one msgpack value.
"""

from __future__ import annotations

import struct
from typing import Final

from scheduler.protocol.errors import DecodeError, FrameTooLarge

#: Largest frame on an agent's connection, in bytes (specification 6.5).
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
#: Largest first frame of a connection that has not identified itself yet.
HELLO_BYTES_MAX: Final = 256 * 1024

_LENGTH: Final = struct.Struct(">I")


def encode_frame(body: bytes, *, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """The frame for `body`. Raises FrameTooLarge: the sender splits before it comes to that."""
    if len(body) > bytes_max:
        raise FrameTooLarge(f"a frame of {len(body)} bytes exceeds {bytes_max}")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Collects bytes of one connection and cuts them into frames.

    Holds at most one incomplete frame beside what one `feed` brought.
    """

    __slots__ = ("_buffer", "bytes_max")

    def __init__(self, *, bytes_max: int = FRAME_BYTES_MAX) -> None:
        #: May be raised once the peer has identified itself.
        self.bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add `data`; return the frames that are complete now, in order, as owned copies.

        Raises FrameTooLarge on a length above `bytes_max` and DecodeError on an empty frame, both
        before anything of the frame is kept.
        """
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > self.bytes_max:
                raise FrameTooLarge(f"a frame of {length} bytes exceeds {self.bytes_max}")
            if length == 0:
                raise DecodeError("an empty frame")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            frames.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        del buffer[:start]
        return frames

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame: nonzero at a close means that it was cut off."""
        return len(self._buffer)
