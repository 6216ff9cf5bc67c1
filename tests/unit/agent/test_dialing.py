"""Which controller is dialled next, and when."""

from __future__ import annotations

import random

from agent.dialing import BACKOFF_MS_MAX, COME_BACK_MS_MAX, REDIRECTS_MAX, Dialer

ADDRESSES = ("a:1", "b:1", "c:1")


def dialer() -> Dialer:
    return Dialer(ADDRESSES, random.Random(3))


def test_a_round_tries_every_controller_without_waiting() -> None:
    one = dialer()
    dials = []
    for _ in ADDRESSES:
        dials.append(one.next())
        one.miss()
    assert sorted(dial.address for dial in dials) == list(ADDRESSES)
    assert {dial.delay_ms for dial in dials} == {0}


def test_rounds_are_spread_by_a_full_jitter_up_to_the_cap() -> None:
    one = dialer()
    delays = []
    for _ in range(3 * 200):
        delays.append(one.next().delay_ms)
        one.miss()
    waits = [delay for delay in delays if delay]
    assert max(waits) < BACKOFF_MS_MAX
    assert max(waits) > BACKOFF_MS_MAX * 0.9
    assert min(waits[20:]) < BACKOFF_MS_MAX * 0.1


def test_a_redirect_is_followed_at_once() -> None:
    one = dialer()
    one.next()
    one.redirect("leader:1")
    assert one.next() == ("leader:1", 0)


def test_controllers_that_point_at_each_other_are_not_followed_for_ever() -> None:
    one = dialer()
    for _ in range(REDIRECTS_MAX):
        one.redirect("x:1")
        assert one.next().address == "x:1"
    one.redirect("x:1")
    assert one.next().address in ADDRESSES


def test_a_redirect_to_nobody_is_a_miss() -> None:
    one = dialer()
    one.redirect("")
    assert one.next().address in ADDRESSES


def test_come_back_dials_the_same_after_the_time_given() -> None:
    one = dialer()
    one.come_back("leader:1", 700)
    assert one.next() == ("leader:1", 700)


def test_an_absurd_come_back_is_bounded() -> None:
    one = dialer()
    one.come_back("leader:1", 1 << 50)
    assert one.next().delay_ms == COME_BACK_MS_MAX


def test_after_a_loss_the_last_leader_is_dialled_first() -> None:
    one = dialer()
    one.welcomed("leader:1")
    one.lost()
    address, delay_ms = one.next()
    assert address == "leader:1"
    assert delay_ms < 100


def test_others_are_all_but_the_leader() -> None:
    assert dialer().others("b:1") == ("a:1", "c:1")
