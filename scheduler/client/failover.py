"""Which controller is asked next, how long to wait between, and when to give up. No sockets.

One generator decides for both clients: it yields `Try` (send the call to this controller) or
`Wait`, is sent what came of it, and returns the answer. Every call may be repeated (see `calls`),
so a connection that broke is followed by the next controller; what was left open by it is kept in
mind, and said by the error when no controller settles it before the deadline.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler.client.errors import ApiError, BadAnswer, Document, NoLeader, Unreachable

#: Bounds of the random wait after every controller was tried once: 0 to first × 2^rounds, seconds.
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
#: Longest wait for one answer, seconds. A busy leader commits a large submit well within.
ANSWER_TIMEOUT_S: Final = 10.0
#: A refusal that asks for a longer pause than this is shown to the user at once.
RETRY_AFTER_MAX_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Try:
    """Send the call to `url` and wait at most `timeout_s` for the head of the answer."""

    url: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer, or the head of a stream (then `body` is empty)."""

    status: int
    #: Lower-case names.
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Broken:
    """No answer came. `is_sent`: the controller may have taken the request."""

    reason: str
    is_sent: bool


Steps = Generator[Try | Wait, Answer | Broken | None, Answer]


class Controllers:
    """The order in which controllers are tried: who answered last comes first."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        if not urls:
            raise ValueError("a context needs at least one controller")
        self._urls = list(dict.fromkeys(url.rstrip("/") for url in urls))

    def order(self) -> tuple[str, ...]:
        return tuple(self._urls)

    def prefer(self, url: str) -> None:
        """Try `url` first from now on, when it is one of ours."""
        if url in self._urls:
            self._urls.remove(url)
            self._urls.insert(0, url)

    def put_last(self, url: str) -> None:
        self._urls.remove(url)
        self._urls.append(url)


def steps(
    controllers: Controllers,
    *,
    deadline_s: float,
    now: Callable[[], float],
    is_change: bool,
) -> Steps:
    """Drive one call. Returns an answer below 400, or raises ApiError, NoLeader or Unreachable."""
    ends_at = now() + deadline_s
    seen: Answer | Broken | None = None
    is_open = False  # a change may have been taken by a controller that did not answer
    for round_number in range(1_000_000):  # the deadline ends it
        for url in controllers.order():
            left_s = ends_at - now()
            if left_s <= 0:
                raise give_up(seen, is_open=is_open, deadline_s=deadline_s)
            outcome = yield Try(url, timeout_s=max(0.5, min(ANSWER_TIMEOUT_S, left_s / 2)))
            assert outcome is not None
            if isinstance(outcome, Answer):
                problem = error_of(outcome)
                if problem is None or not is_worth_repeating(problem):
                    controllers.prefer(outcome.headers.get("pertinax-leader-url", url))
                    if problem is not None:
                        problem.is_repeated = is_open
                        raise problem
                    return outcome
                is_open = is_open or (is_change and problem.outcome_unknown)
            else:
                controllers.put_last(url)
                is_open = is_open or (is_change and outcome.is_sent)
            # What a controller said tells more than that another one is down.
            if isinstance(outcome, Answer) or not isinstance(seen, Answer):
                seen = outcome
        wait_s = backoff_s(round_number, seen)
        if now() + wait_s >= ends_at:
            raise give_up(seen, is_open=is_open, deadline_s=deadline_s)
        yield Wait(wait_s)
    raise AssertionError("unreachable: the deadline ends the loop")


def backoff_s(round_number: int, seen: Answer | Broken | None) -> float:
    """Full jitter: clients that lost the same leader must not come back in step."""
    limit_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(round_number, 10))
    wait_s = random.uniform(0, limit_s)
    if isinstance(seen, Answer) and seen.status == 429:
        wait_s = max(wait_s, retry_after_s(seen) or 0.0)
    return wait_s


def is_worth_repeating(error: ApiError) -> bool:
    """A 503 or 429 that says when to come back. Without Retry-After it would not help."""
    if error.status not in (429, 503) or error.retry_after_s is None:
        return False
    return error.status == 503 or error.retry_after_s <= RETRY_AFTER_MAX_S


def give_up(
    seen: Answer | Broken | None, *, is_open: bool, deadline_s: float
) -> NoLeader | Unreachable:
    unknown = "; the change may still happen: repeat it under the same key" if is_open else ""
    if isinstance(seen, Answer):
        problem = error_of(seen)
        assert problem is not None
        return NoLeader(
            problem.message,
            code=problem.code,
            outcome_unknown=is_open,
            hint=(problem.hint or "try again; `cluster status` shows the members") + unknown,
            details=problem.details,
        )
    reason = seen.reason if seen is not None else "no time was left to try"
    return Unreachable(
        f"no controller answered within {deadline_s:g} s: {reason}",
        outcome_unknown=is_open,
        hint="check that the cluster runs and that its addresses are right" + unknown,
    )


def error_of(answer: Answer) -> ApiError | None:
    """The error that `answer` reports, None for success. Raises BadAnswer for no answer of ours."""
    if answer.status < 400:
        return None
    try:
        body: Document = json.loads(answer.body) if answer.body else {}
    except ValueError:
        body = {}
    if not isinstance(body, dict) or "code" not in body:
        if answer.status in (502, 503, 504):
            # A proxy, or a controller's connection limit: worth another controller.
            return ApiError(
                f"the controller answered {answer.status}",
                status=503,
                code="unavailable",
                retry_after_s=retry_after_s(answer) or 0.0,
                outcome_unknown=answer.status != 503,
            )
        raise BadAnswer(
            f"status {answer.status} without an error document",
            hint="is this address a Pertinax controller?",
        )
    known = ("type", "title", "status", "code", "detail", "hint", "outcome_unknown")
    return ApiError(
        str(body.get("detail") or body.get("title") or body["code"]),
        status=answer.status,
        code=str(body["code"]),
        hint=str(body.get("hint", "")),
        details={name: value for name, value in body.items() if name not in known},
        outcome_unknown=bool(body.get("outcome_unknown", False)),
        retry_after_s=retry_after_s(answer),
    )


def retry_after_s(answer: Answer) -> float | None:
    try:
        return max(0.0, float(answer.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
