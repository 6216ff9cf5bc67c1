"""The surface of the API as values: which request each call makes. No input or output here.

`Client` and `AsyncClient` send these; so both always ask the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from scheduler.client.errors import BadKey

#: Longest idempotency key, characters: what the controllers take.
KEY_CHARS_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Call:
    """One request. All are safe to repeat: changes carry a key or are idempotent by nature."""

    method: str
    #: With the query, percent-encoded.
    target: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    #: False for what any controller answers from its own knowledge (`cluster_status`).
    is_change: bool = False


def _get(path: str, query: Mapping[str, Any] | None = None) -> Call:
    return Call("GET", with_query(path, query or {}))


def _change(
    method: str, path: str, body: object, *, key: str = "", if_version: int | None = None
) -> Call:
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Idempotency-Key"] = key
    if if_version is not None:
        headers["If-Match"] = str(if_version)
    data = json.dumps(body, separators=(",", ":")).encode()
    return Call(method, path, data, headers, is_change=True)


def with_query(path: str, query: Mapping[str, Any]) -> str:
    """`path?…`: None is left out, sequences are joined by commas, booleans are true or false."""
    pairs = {name: _query_text(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _query_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def segment(text: str | int) -> str:
    """An id as one segment of a path: `42/main/0#1` becomes `42%2Fmain%2F0%231`."""
    return quote(str(text), safe="")


def checked_key(key: str) -> str:
    """`key`, if it can be sent as it is. Raises BadKey: another text must not become the same."""
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= KEY_CHARS_MAX):
        raise BadKey(f"{key[:64]!r} is no idempotency key")
    if key != key.strip():
        raise BadKey(f"{key!r} has spaces at its ends, and would arrive without them")
    return key


def submit(document: Mapping[str, Any], *, key: str) -> Call:
    return _change("POST", "/v1/jobs", document, key=checked_key(key))


def submit_many(
    documents: Sequence[Mapping[str, Any]], *, key: str, fields: Sequence[str] = ()
) -> Call:
    path = with_query("/v1/jobs", {"fields": tuple(fields) or None})
    return _change("POST", path, {"jobs": list(documents)}, key=checked_key(key))


def jobs(
    *,
    state: Sequence[str] = (),
    user: str | None = None,
    queue: str | None = None,
    name: str | None = None,
    overdue: bool = False,
    limit: int | None = None,
    after: str | None = None,
    fields: Sequence[str] = (),
) -> Call:
    return _get(
        "/v1/jobs",
        {
            "state": tuple(state) or None,
            "user": user,
            "queue": queue,
            "name": name,
            "overdue": True if overdue else None,
            "limit": limit,
            "after": after,
            "fields": tuple(fields) or None,
        },
    )


def job(job_id: str | int, *, fields: Sequence[str] = ()) -> Call:
    return _get(f"/v1/jobs/{segment(job_id)}", {"fields": tuple(fields) or None})


def of_job(target: str | int, what: str) -> Call:
    """`what`: workers, attempts, events or why."""
    return _get(f"/v1/jobs/{segment(target)}/{what}")


def kill(target: str | int, *, why: str, if_version: int | None) -> Call:
    body = {"why": why} if why else {}
    return _change("POST", f"/v1/jobs/{segment(target)}:kill", body, if_version=if_version)


def killed(target: str | int) -> Call:
    """What shows whether a kill was taken: the job, or the attempts of a worker or attempt."""
    is_job = str(target).isdigit()
    return job(target) if is_job else of_job(target, "attempts")


def nodes() -> Call:
    return _get("/v1/nodes")


def node(name: str) -> Call:
    return _get(f"/v1/nodes/{segment(name)}")


def cordon(name: str, *, is_on: bool, why: str) -> Call:
    verb = "cordon" if is_on else "uncordon"
    return _change("POST", f"/v1/nodes/{segment(name)}:{verb}", {"why": why} if why else {})


def cluster_status() -> Call:
    return _get("/v1/cluster")


def config() -> Call:
    return _get("/v1/cluster/config")


def configure(changes: Mapping[str, int | str]) -> Call:
    return _change("PATCH", "/v1/cluster/config", dict(changes))


def events(*, after: int | None, objects: Sequence[str] = ()) -> Call:
    query = {"after": after, "object": tuple(objects) or None}
    headers = {"Accept": "text/event-stream"}
    return Call("GET", with_query("/v1/events", query), headers=headers)


def logs(
    target: str | int,
    *,
    stream: str,
    attempt: int | None,
    offset: int,
    tail_bytes: int | None,
    follow: bool,
) -> Call:
    query = {
        "stream": stream,
        "attempt": attempt,
        "offset": offset or None,
        "tail_bytes": tail_bytes,
        "follow": True if follow else None,
        "format": "frames",
    }
    return _get(f"/v1/jobs/{segment(target)}/logs", query)
