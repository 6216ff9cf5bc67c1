"""What bad input from outside can raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class ProtocolError(Exception):
    """Base: what a peer or a user sent cannot be used. `code` is stable and shown."""

    code: ClassVar[str] = "protocol_error"


class DecodeError(ProtocolError):
    """Bytes that are no message of ours. The only error that bad bytes can raise."""

    code: ClassVar[str] = "bad_message"


class FrameTooLarge(DecodeError):
    """A frame announces more bytes than its connection allows."""

    code: ClassVar[str] = "frame_too_large"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong in a specification."""

    #: Where, as in `tasks.main.resources.memory`; empty for the whole document.
    path: str
    message: str
    #: What would be right, when that can be guessed.
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.message}" + (f" ({self.hint})" if self.hint else "")


class InvalidSpec(ProtocolError):
    """A document that is no valid specification; carries every mistake, each with its path."""

    code: ClassVar[str] = "invalid_spec"

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__("; ".join(str(mistake) for mistake in mistakes))
        self.mistakes = mistakes
