"""Silence and death of nodes, leases and admissions: pure, with times as arguments."""

from __future__ import annotations

from scheduler.controller.admission import (
    APPOINTMENTS_MAX,
    COME_BACK_MS_MAX,
    COME_BACK_MS_MIN,
    JOINS_IN_FLIGHT_MAX,
    LAPSE_MS,
    Admission,
)
from scheduler.controller.clock import LogTime
from scheduler.controller.contacts import Contact, Contacts, is_death, is_heard
from scheduler.controller.leases import EndingProposals, margin_ms


def contact(name: str = "a1", *, heard: int = 0, acknowledged: int = 0, lease: int = 0) -> Contact:
    return Contact(
        name=name,
        node_uuid="u",
        session=1,
        link=None,
        heard_at_ms=heard,
        acknowledged_at_ms=acknowledged,
        lease_until_ms=lease,
    )


class FakeClock:
    def __init__(self) -> None:
        self.boot = 5_000
        self.wall = 1_000_000

    def boottime_ms(self) -> int:
        return self.boot

    def wall_ms(self) -> int:
        return self.wall


def test_a_silent_node_is_found_once_its_time_is_over() -> None:
    contacts = Contacts(started_at_ms=0)
    contacts.join(contact(heard=100, acknowledged=100))
    assert contacts.silent(30_100, timeout_ms=30_000) == []
    assert [one.name for one in contacts.silent(30_101, timeout_ms=30_000)] == ["a1"]


def test_a_node_without_acknowledgements_counts_as_silent_though_it_is_heard() -> None:
    contacts = Contacts(started_at_ms=0)
    contacts.join(contact(heard=40_000, acknowledged=100))
    assert [one.name for one in contacts.silent(40_001, timeout_ms=30_000)] == ["a1"]


def test_an_ending_contact_is_not_declared_again() -> None:
    contacts = Contacts(started_at_ms=0)
    one = contact()
    contacts.join(one)
    one.is_ending = True
    assert contacts.silent(99_000, timeout_ms=1) == []


def test_the_controllers_own_lateness_is_no_silence() -> None:
    contacts = Contacts(started_at_ms=0)
    contacts.join(contact(heard=0, acknowledged=0))
    contacts.shift(5_000)
    assert contacts.silent(30_000 + 5_000, timeout_ms=30_000) == []
    assert contacts.started_at_ms == 5_000


def test_nodes_that_never_came_are_named_after_the_grace_only() -> None:
    contacts = Contacts(started_at_ms=1_000)
    contacts.join(contact("a1"))
    assert contacts.never_heard(["a1", "a2"], 61_000, grace_ms=60_000) == []
    assert contacts.never_heard(["a1", "a2"], 61_001, grace_ms=60_000) == ["a2"]


def test_a_close_after_silence_is_no_death() -> None:
    one = contact(heard=1_000)
    assert is_death(one, closed_at_ms=16_000, interval_ms=10_000)
    assert not is_death(one, closed_at_ms=16_001, interval_ms=10_000)
    assert is_heard(one, 31_000, timeout_ms=30_000)
    assert not is_heard(one, 31_001, timeout_ms=30_000)


def test_a_new_session_keeps_the_longest_lease_given() -> None:
    contacts = Contacts(started_at_ms=0)
    contacts.join(contact(lease=500))
    old = contacts.get("a1")
    new = contact(lease=300)
    assert contacts.join(new) is old
    assert new.lease_until_ms == 500
    assert old is not None
    contacts.drop(old)
    assert contacts.get("a1") is new


def test_log_time_counts_on_from_the_state_and_ignores_the_wall_clock() -> None:
    clock = FakeClock()
    log_time = LogTime(clock)
    log_time.take_over(70_000)
    clock.boot += 250
    clock.wall -= 3_600_000
    assert log_time.now_ms() == 70_250
    assert log_time.at_boottime(5_100) == 70_100


def test_an_acknowledgement_waits_for_ending_entries_stamped_before_its_receipt() -> None:
    endings = EndingProposals()
    number = endings.begin(1_000)
    assert not endings.holds_back(999)
    assert endings.holds_back(1_000)
    other = endings.begin(2_000)
    endings.end(number)
    assert not endings.holds_back(1_500)
    assert endings.holds_back(2_500)
    endings.end(other)
    assert not endings.holds_back(2_500)
    assert margin_ms(300_000) == 30_000
    assert margin_ms(3_000) == 1_000


def test_two_thousand_nodes_get_in_at_a_bounded_rate_with_two_dials_each() -> None:
    admission = Admission(per_s=250, burst=100)
    waits = {f"a{number}": admission.ask(f"a{number}", 0) for number in range(2_000)}
    at_once = [name for name, wait in waits.items() if wait == 0]
    assert len(at_once) == 100
    later = {name: wait for name, wait in waits.items() if wait}
    assert max(later.values()) <= 8_000
    assert min(later.values()) >= COME_BACK_MS_MIN
    # In any second no more than the rate comes back, the least wait aside.
    for second in range(1, 8):
        due = sum(second * 1000 <= wait < (second + 1) * 1000 for wait in later.values())
        assert due <= 251
    assert all(admission.ask(name, wait) == 0 for name, wait in later.items())


def test_who_comes_back_too_early_waits_for_its_own_slot() -> None:
    admission = Admission(per_s=10, burst=1)
    assert admission.ask("a", 0) == 0
    wait = admission.ask("b", 0)
    assert wait == COME_BACK_MS_MIN
    assert admission.ask("b", 50) == wait - 50
    assert admission.ask("b", wait) == 0


def test_a_lapsed_appointment_queues_again() -> None:
    admission = Admission(per_s=1, burst=1)
    admission.ask("a", 0)
    wait = admission.ask("b", 0)
    for number in range(20):
        admission.ask(f"x{number}", wait)
    assert admission.ask("b", wait + LAPSE_MS + 1) > 0


def test_appointments_and_joins_in_flight_are_bounded() -> None:
    admission = Admission(per_s=1, burst=1)
    for number in range(APPOINTMENTS_MAX + 1):
        admission.ask(f"a{number}", 0)
    assert admission.ask("one more", 0) == COME_BACK_MS_MAX
    admission.in_flight = JOINS_IN_FLIGHT_MAX
    assert Admission.ask(admission, "another", 10**9) == COME_BACK_MS_MIN
