"""Waiting for jobs, without sockets and sleeping."""

from __future__ import annotations

from typing import Any

from scheduler.client.follow import last_lines
from scheduler.client.waiting import LOOKS_MAX, PAUSE_MAX_S, Waiting


def job(phase: str, version: int = 1) -> dict[str, Any]:
    return {"phase": phase, "version": version}


def waiting(*ids: str, **options: Any) -> Waiting:
    defaults: dict[str, Any] = {"is_any": False, "now": lambda: 0.0, "timeout_s": None}
    return Waiting(ids, **(defaults | options))


def test_it_is_over_when_all_are_final_and_they_come_in_the_order_asked_for() -> None:
    wait = waiting("2", "1", "2")
    assert wait.due({}) == ["2", "1"]
    wait.note("2", job("Running"))
    wait.note("1", job("Failed"))
    assert not wait.is_over
    assert wait.due({}) == ["2"]
    wait.note("2", job("Succeeded", 2))
    assert wait.is_over
    assert [one["phase"] for one in wait.jobs()] == ["Succeeded", "Failed", "Succeeded"]


def test_one_is_enough_for_any_and_a_stopped_job_is_not_final() -> None:
    wait = waiting("1", "2", is_any=True)
    wait.note("1", job("Stopped"))
    assert not wait.is_over
    wait.note("2", job("Killed"))
    assert wait.is_over


def test_a_version_that_moved_is_told_once_and_quickens_the_next_look() -> None:
    wait = waiting("1")
    assert wait.note("1", job("Pending"))
    assert not wait.note("1", job("Pending"))
    pauses = [wait.pause_s() for _ in range(40)]
    assert pauses[-1] == PAUSE_MAX_S
    assert wait.note("1", job("Running", 2))
    assert wait.pause_s() == pauses[0]


def test_the_time_limit_cuts_the_last_pause_and_then_ends_it() -> None:
    clock = [0.0]
    wait = waiting("1", now=lambda: clock[0], timeout_s=1.0)
    clock[0] = 0.99
    pause_s = wait.pause_s()
    assert pause_s is not None
    assert pause_s <= 0.011
    clock[0] = 1.0
    assert wait.pause_s() is None


def test_many_jobs_are_looked_at_in_turns() -> None:
    ids = [str(number) for number in range(LOOKS_MAX + 10)]
    wait = waiting(*ids)
    assert len(wait.due({})) == LOOKS_MAX
    assert wait.due({})[:10] == ids[LOOKS_MAX:]


def test_the_last_lines_of_a_text() -> None:
    assert last_lines(b"a\nb\nc\n", 2) == b"b\nc\n"
    assert last_lines(b"a\nb\nc", 2) == b"b\nc"
    assert last_lines(b"a\nb", 5) == b"a\nb"
    assert last_lines(b"a\n\n\n", 2) == b"\n\n"
    assert last_lines(b"", 2) == b""
    assert last_lines(b"a\n", 0) == b""


def test_of_many_jobs_only_those_that_moved_are_looked_at() -> None:
    ids = [str(number) for number in range(1, 12)]
    wait = waiting(*ids)
    assert wait.is_many
    assert wait.due(dict.fromkeys(ids, 1)) == ids
    for job_id in ids:
        wait.note(job_id, job("Running"))
    assert wait.due(dict.fromkeys(ids, 1)) == []
    assert wait.due(dict.fromkeys(ids, 1) | {"5": 2}) == ["5"]
    assert wait.due({"1": 1})[0] == "2"  # what the list did not show is looked at itself
    assert not waiting("1", "x").is_many
