"""The digest by which both sides notice that they disagree about what lives on a node (3.4)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

#: Hex digits kept: 64 bits tell two inventories of one node apart, and fit a heartbeat.
DIGEST_DIGITS: Final = 16


def inventory_digest(tokens: Iterable[str]) -> str:
    """16 hex digits of the SHA-256 over the sorted live tokens, each followed by a newline.

    A token is live on a node from the moment its Start is taken (order sequence) until its
    `finished` or `not_started` report is written to the outbox (report sequence). The order of
    `tokens` does not matter; each must occur once. No tokens have a digest, too.
    """
    hasher = hashlib.sha256()
    for token in sorted(tokens):
        hasher.update(token.encode())
        hasher.update(b"\n")
    return hasher.hexdigest()[:DIGEST_DIGITS]
