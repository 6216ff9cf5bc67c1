"""The controller's own log: events with keys, `name key=value …`, on stderr or in a file."""

from __future__ import annotations

import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

_LOGGER: Final = logging.getLogger("pertinax")
#: Longest value written: what a peer sent must not fill the disk through an error message.
VALUE_CHARS_MAX: Final = 400
#: A file that grows beyond this is put aside, and so many of those are kept.
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
FILES_KEPT: Final = 3


def set_up(*, level: str, file: Path | None) -> None:
    """Send events to `file`, or to stderr when it is None. Call once, at start."""
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(
            file, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8"
        )
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s")
    formatter.datefmt = "%Y-%m-%dT%H:%M:%S"
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    _LOGGER.handlers[:] = [handler]
    _LOGGER.propagate = False
    _LOGGER.setLevel(level.upper())
    # What the libraries beneath say goes to the same place, from warnings on.
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def info(event: str, **keys: object) -> None:
    """Something that an operator may want to know."""
    if _LOGGER.isEnabledFor(logging.INFO):
        _LOGGER.info("%s", render(event, keys))


def warning(event: str, **keys: object) -> None:
    """Something that an operator should look at."""
    _LOGGER.warning("%s", render(event, keys))


def error(event: str, *, cause: BaseException | None = None, **keys: object) -> None:
    """A fault of ours; with `cause`, its traceback follows."""
    _LOGGER.error("%s", render(event, keys), exc_info=cause)


def debug(event: str, **keys: object) -> None:
    """Detail for whoever looks for a fault."""
    if _LOGGER.isEnabledFor(logging.DEBUG):
        _LOGGER.debug("%s", render(event, keys))


def render(event: str, keys: dict[str, object]) -> str:
    """`event key=value …`; values with spaces or control characters are quoted."""
    return " ".join([event, *(f"{key}={_value(value)}" for key, value in keys.items())])


def _value(value: object) -> str:
    text = str(value)
    if len(text) > VALUE_CHARS_MAX:
        text = text[:VALUE_CHARS_MAX] + "…"
    if text and text.isprintable() and not any(one in text for one in ' "='):
        return text
    return '"' + text.encode("unicode_escape").decode().replace('"', '\\"') + '"'
