"""Writing a job's output: bytes as they are to files and pipes, made harmless for a terminal."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from scheduler.cli.render import harmless

if TYPE_CHECKING:
    from scheduler.client.follow import LogChunk


class OutputWriter:
    """Writes the chunks of one stream; marks attempts and gaps on stderr. One thread."""

    def __init__(self, stream: TextIO, *, is_raw: bool, marks_attempts: bool) -> None:
        self._stream = stream
        # Whatever a job prints goes to a terminal only as text: an escape sequence in a log could
        # otherwise type into the reader's shell. Programs get the bytes.
        self._is_raw = is_raw or not stream.isatty()
        self._marks_attempts = marks_attempts
        self._attempt = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write_all(self, chunks: Iterable[LogChunk]) -> None:
        """Write every chunk as it comes, flushing each. Raises what the client raises."""
        for chunk in chunks:
            self.write(chunk)

    def write(self, chunk: LogChunk) -> None:
        if chunk.attempt != self._attempt:
            if self._attempt and self._marks_attempts:
                self._mark(f"--- attempt {chunk.attempt} ---")
            self._attempt = chunk.attempt
        if chunk.lost_bytes:
            self._mark(f"--- {chunk.lost_bytes} bytes were not kept ---")
        if self._is_raw:
            self._stream.buffer.write(chunk.data)
            self._stream.buffer.flush()
        else:
            self._stream.write(harmless(self._decoder.decode(chunk.data)))
            self._stream.flush()

    def _mark(self, text: str) -> None:
        self._stream.flush()
        print(text, file=sys.stderr, flush=True)
