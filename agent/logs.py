"""Log lines of the agent: events with keys, for people or as JSON. The only logging set-up here."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final, TextIO

#: Longest value shown, in characters.
VALUE_CHARS_MAX: Final = 500


class EventLog:
    """Writes one line per event. Any thread: a line is one write."""

    def __init__(self, stream: TextIO, *, is_json: bool) -> None:
        self._stream = stream
        self._is_json = is_json

    @classmethod
    def open(cls, path: Path | None, *, is_json: bool) -> EventLog:
        """Append to `path`, or to stderr without one. Raises OSError."""
        if path is None:
            return cls(sys.stderr, is_json=is_json)
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(path.open("a", encoding="utf-8", buffering=1), is_json=is_json)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        now = time.time()
        stamp = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        )
        if self._is_json:
            record = {"time": stamp, "level": level, "event": event, **fields}
            line = json.dumps(record, default=str)
        else:
            line = " ".join(
                [stamp, level, event, *(f"{key}={_shown(value)}" for key, value in fields.items())]
            )
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # A full disk or a closed pipe must not end the agent.
            return


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text[:VALUE_CHARS_MAX]
    return json.dumps(text) if not text or any(c in text for c in ' "\n\r\t=') else text
