"""Who calls: bearer tokens to principals (specification 7.3)."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final, Protocol

from scheduler.http.problems import Problem

USER_HEADER: Final = "pertinax-user"
#: Names a caller may act under: what login names look like, and e-mail addresses.
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a call is made for. `user` is what records and audit show."""

    user: str
    role: str


class Authenticator(Protocol):
    """Turns what a request presents into a principal."""

    def authenticate(self, token: str, *, user: str | None) -> Principal | None:
        """The principal of `token`, acting as `user` if it may; None for an unknown token.

        Raises Problem 403 when the token may not act under that name.
        """
        ...


class AdminTokenAuth:
    """The one token of a local cluster: admin, acting under whatever name the client gives."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("the admin token is empty")
        self._digest = _digest(token)

    def authenticate(self, token: str, *, user: str | None) -> Principal | None:
        # Digests have one length, so the comparison tells nothing of the token's either.
        if not hmac.compare_digest(_digest(token), self._digest):
            return None
        return Principal(user or "admin", "admin")


def principal_of(
    auth: Authenticator, *, authorization: str | None, claimed_user: str | None
) -> Principal:
    """The caller. Raises Problem 401 without a valid token, 400 for an impossible user name."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthenticated("this call needs a token")
    if claimed_user is not None and not _USER.fullmatch(claimed_user):
        raise Problem(400, "bad_user", f"{USER_HEADER}: {claimed_user[:80]!r} is no user name")
    principal = auth.authenticate(token.strip(), user=claimed_user)
    if principal is None:
        raise _unauthenticated("the token is not valid here")
    return principal


def _unauthenticated(detail: str) -> Problem:
    return Problem(
        401,
        "unauthenticated",
        detail,
        hint="send `Authorization: Bearer TOKEN`; `pertinax up` keeps one in its directory",
        headers={"WWW-Authenticate": 'Bearer realm="pertinax"'},
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
