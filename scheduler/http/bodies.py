"""Reading request bodies: bounded, strict, every mistake at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request

from scheduler.http.params import suggestion
from scheduler.http.problems import Problem, bad_request, of_mistakes
from scheduler.protocol.errors import InvalidSpec, Mistake
from scheduler.protocol.spec import JobSpec
from scheduler.protocol.specfile import job_from_document

#: Largest body of a request, bytes.
REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024
#: Largest specification of one job, bytes of JSON.
SPEC_BYTES_MAX: Final = 1024 * 1024
#: Jobs of one request.
JOBS_MAX: Final = 10_000
#: Longest reason of a change, characters.
WHY_CHARS_MAX: Final = 4_096
#: Longest idempotency key, characters.
KEY_CHARS_MAX: Final = 255

_DIGEST: Final = msgspec.msgpack.Encoder(order="deterministic")
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


class _Bulk(msgspec.Struct, forbid_unknown_fields=True):
    jobs: list[msgspec.Raw]


_BULK: Final = msgspec.json.Decoder(_Bulk)
_KEYS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TooLarge(Problem):
    """413; nothing was changed."""

    def __init__(self, what: str, limit: str) -> None:
        super().__init__(413, "too_large", f"{what} is larger than {limit}")


async def read_body(request: Request) -> bytes:
    """The whole body. Raises Problem 413 above REQUEST_BYTES_MAX, 400 when it breaks off."""
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > REQUEST_BYTES_MAX:
        raise TooLarge("the request", "32 MiB")
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > REQUEST_BYTES_MAX:
                raise TooLarge("the request", "32 MiB")
            parts.append(part)
    except ClientDisconnect:
        raise bad_request("the request broke off") from None
    return b"".join(parts)


def read_specs(body: bytes) -> tuple[list[JobSpec], bool]:
    """The jobs of a submit, and whether it was `{"jobs": […]}`.

    Raises Problem: 400 for no JSON, 413 for a size, 422 with every mistake of every job.
    """
    keys = _decode(_KEYS, body)
    if "jobs" not in keys or "tasks" in keys or "kind" in keys:
        if len(body) > SPEC_BYTES_MAX:
            raise TooLarge("the specification", "1 MiB")
        return [_read_spec(body)], False
    raws = _decode(_BULK, body).jobs
    if not raws:
        raise of_mistakes((Mistake("jobs", "is empty"),))
    if len(raws) > JOBS_MAX:
        raise TooLarge(f"a request with {len(raws)} jobs", f"{JOBS_MAX:,} jobs")
    return _read_many(raws), True


def _read_many(raws: Sequence[msgspec.Raw]) -> list[JobSpec]:
    specs: list[JobSpec] = []
    mistakes: list[Mistake] = []
    for position, raw in enumerate(raws):
        data = bytes(raw)
        if len(data) > SPEC_BYTES_MAX:
            raise TooLarge(f"the specification jobs[{position}]", "1 MiB")
        try:
            specs.append(job_from_document(_decode(_OBJECT, data)))
        except InvalidSpec as error:
            mistakes += (
                Mistake(f"jobs[{position}].{one.path}".rstrip("."), one.message, one.hint)
                for one in error.mistakes
            )
    if mistakes:
        raise of_mistakes(mistakes)
    return specs


def _read_spec(body: bytes) -> JobSpec:
    try:
        return job_from_document(_decode(_OBJECT, body))
    except InvalidSpec as error:
        raise of_mistakes(error.mistakes) from None


def specs_digest(specs: Sequence[JobSpec]) -> str:
    """SHA-256 (hex) of what a submit means: the same jobs written otherwise give the same."""
    # The encoder sorts the keys of a dict only if they are texts; those of exit codes are numbers.
    plain = msgspec.to_builtins(list(specs), str_keys=True)
    return hashlib.sha256(_DIGEST.encode(plain)).hexdigest()


def read_object(body: bytes, *allowed: str) -> dict[str, Any]:
    """A small JSON object with only `allowed` members; an empty body is an empty object."""
    if len(body) > SPEC_BYTES_MAX:
        raise TooLarge("the body", "1 MiB")
    found: dict[str, Any] = _decode(_OBJECT, body) if body.strip() else {}
    mistakes = [
        Mistake(name[:64], "is not known here" + suggestion(name, allowed))
        for name in found
        if allowed and name not in allowed
    ]
    if mistakes:
        raise of_mistakes(mistakes)
    return found


def read_why(body: bytes) -> str:
    """The reason in `{"why": TEXT}`; empty when none is given: that is recorded, never refused."""
    why = read_object(body, "why").get("why", "")
    if not isinstance(why, str) or len(why) > WHY_CHARS_MAX:
        raise of_mistakes((Mistake("why", f"wants a text of at most {WHY_CHARS_MAX} characters"),))
    return why


def idempotency_key(request: Request) -> str:
    """The request's key; empty for none. Raises Problem 400 for an impossible one."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return ""
    if not key or len(key) > KEY_CHARS_MAX or not key.isprintable():
        raise bad_request(
            f"Idempotency-Key wants 1 to {KEY_CHARS_MAX} printable characters", code="bad_key"
        )
    return key


def if_match(request: Request) -> int | None:
    """The version that a change insists on; None without If-Match or with `*`."""
    value = request.headers.get("if-match")
    if value is None or value.strip() == "*":
        return None
    number = value.strip().strip('"')
    if not (number.isascii() and number.isdigit() and len(number) <= 18):
        raise bad_request('If-Match wants a version, such as "7"', code="bad_version")
    return int(number)


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise of_mistakes((Mistake("", f"is of another shape: {error}"),)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}", code="bad_json") from None
