"""Which controller is asked next, and what is said at the end: without sockets and sleeping."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from scheduler.client.errors import ApiError, BadAnswer, NoLeader, Unreachable
from scheduler.client.failover import Answer, Broken, Controllers, Try, Wait, steps

URLS = ("https://a", "https://b", "https://c")
OK = Answer(200, {"pertinax-index": "5"}, b"{}")
DOWN = Broken("refused", is_sent=False)
CUT = Broken("reset", is_sent=True)


def problem(status: int, code: str, retry_after: str | None = None, **members: object) -> Answer:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Answer(status, headers, json.dumps({"code": code, "detail": code, **members}).encode())


NO_LEADER = problem(503, "no_leader", "0.5")


class Driver:
    """Plays the controllers: gives the outcomes in turn and keeps the clock."""

    def __init__(self, outcomes: Sequence[Answer | Broken], *, try_s: float = 0.0) -> None:
        self.outcomes = list(outcomes)
        self.controllers = Controllers(URLS)
        self.clock_s = 0.0
        self.tried: list[str] = []
        self.waited: list[float] = []
        self._try_s = try_s

    def run(self, *, is_change: bool = True, deadline_s: float = 20.0) -> Answer:
        plan = steps(
            self.controllers, deadline_s=deadline_s, now=lambda: self.clock_s, is_change=is_change
        )
        step = next(plan)
        try:
            while True:
                if isinstance(step, Wait):
                    self.waited.append(step.seconds)
                    self.clock_s += step.seconds
                    step = plan.send(None)
                else:
                    assert isinstance(step, Try)
                    self.tried.append(step.url)
                    self.clock_s += self._try_s
                    outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
                    step = plan.send(outcome)
        except StopIteration as done:
            answer: Answer = done.value
            return answer


def test_a_controller_that_is_down_is_followed_by_the_next_at_once() -> None:
    driver = Driver([DOWN, OK])
    assert driver.run() is OK
    assert (driver.tried, driver.waited) == (["https://a", "https://b"], [])


def test_who_answered_is_asked_first_the_next_time_and_who_was_down_last() -> None:
    driver = Driver([DOWN, OK])
    driver.run()
    assert driver.controllers.order() == ("https://b", "https://c", "https://a")


def test_the_leader_that_an_answer_names_is_asked_first_the_next_time() -> None:
    driver = Driver([Answer(200, {"pertinax-leader-url": "https://c"}, b"{}")])
    driver.run()
    assert driver.controllers.order()[0] == "https://c"
    driver = Driver([Answer(200, {"pertinax-leader-url": "https://elsewhere"}, b"{}")])
    driver.run()
    assert driver.controllers.order() == URLS


def test_during_an_election_all_are_asked_again_after_a_short_wait() -> None:
    driver = Driver([NO_LEADER] * 6 + [OK])
    assert driver.run() is OK
    assert len(driver.tried) == 7
    assert len(driver.waited) == 2
    assert all(0 <= wait_s <= 0.1 for wait_s in driver.waited)


def test_a_refusal_is_told_at_once() -> None:
    driver = Driver([problem(409, "already_final", hint="clone it", phase="Succeeded")])
    with pytest.raises(ApiError) as caught:
        driver.run()
    error = caught.value
    assert (error.status, error.code, error.hint) == (409, "already_final", "clone it")
    assert error.details == {"phase": "Succeeded"}
    assert len(driver.tried) == 1


def test_a_503_that_repeating_cannot_help_is_told_at_once() -> None:
    driver = Driver([problem(503, "low_disk")])
    with pytest.raises(ApiError, match="low_disk"):
        driver.run()
    assert len(driver.tried) == 1


def test_no_leader_before_the_deadline_is_told_with_the_controllers_own_words() -> None:
    driver = Driver([DOWN, NO_LEADER, DOWN], try_s=0.1)
    with pytest.raises(NoLeader) as caught:
        driver.run(deadline_s=3)
    assert caught.value.code == "no_leader"
    assert not caught.value.outcome_unknown
    assert driver.clock_s <= 3.2


def test_nobody_answers_before_the_deadline() -> None:
    driver = Driver([DOWN], try_s=0.01)
    with pytest.raises(Unreachable, match="refused") as caught:
        driver.run(deadline_s=3)
    assert not caught.value.outcome_unknown
    assert 1 < driver.clock_s <= 3.1
    assert max(driver.waited) <= 1.0


@pytest.mark.parametrize("first", [CUT, problem(503, "lost", "0.5", outcome_unknown=True)])
def test_a_change_that_broke_off_stays_open_until_a_controller_settles_it(
    first: Answer | Broken,
) -> None:
    driver = Driver([first, NO_LEADER], try_s=0.1)
    with pytest.raises(NoLeader) as caught:
        driver.run(deadline_s=3)
    assert caught.value.outcome_unknown
    assert "same key" in caught.value.hint
    assert Driver([first, OK]).run() is OK


def test_a_read_that_broke_off_leaves_nothing_open() -> None:
    driver = Driver([CUT], try_s=0.1)
    with pytest.raises(Unreachable) as caught:
        driver.run(is_change=False, deadline_s=2)
    assert not caught.value.outcome_unknown


def test_a_limit_is_waited_for_when_it_is_short_and_told_when_it_is_long() -> None:
    driver = Driver([problem(429, "overloaded", "1.5")] * 3 + [OK])
    assert driver.run() is OK
    assert driver.waited[0] >= 1.5
    with pytest.raises(ApiError, match="quota"):
        Driver([problem(429, "quota", "60")]).run()


def test_what_is_no_controller_is_told_as_such() -> None:
    with pytest.raises(BadAnswer, match="404"):
        Driver([Answer(404, {}, b"<html>")]).run()
    driver = Driver([Answer(502, {}, b"<html>"), OK])
    assert driver.run() is OK


def test_no_answer_is_waited_for_past_the_deadline() -> None:
    controllers = Controllers(URLS)
    plan = steps(controllers, deadline_s=4, now=lambda: 0.0, is_change=True)
    step = next(plan)
    assert isinstance(step, Try)
    assert step.timeout_s <= 2
