"""Why a local cluster could not be started, stopped or found."""

from __future__ import annotations

from typing import Literal

Kind = Literal["usage", "not_found", "refused", "failed", "unavailable"]


class LocalError(Exception):
    """One refusal: what happened, why, and what to do. `kind` decides the exit code."""

    def __init__(self, what: str, *, why: str, hint: str, kind: Kind, code: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why
        self.hint = hint
        self.kind: Kind = kind
        self.code = code
