"""The blocking client against real servers: failover, forwarding, following."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.client import ApiError, BadKey, Client, Context, NoLeader, Unreachable, WaitTimeout
from scheduler.controller.errors import ServiceError
from tests.unit.http.fake import attempt_view, job_view

from .live import Controllers

JOB = {"kind": "job", "name": "first", "tasks": {"main": {"command": ["true"]}}}
INTERRUPTED = ServiceError("log_interrupted", "cut", kind="unavailable", retry_after_s=0.1)


@pytest.fixture
def controllers() -> Iterator[Controllers]:
    found = Controllers()
    yield found
    found.close()


@pytest.fixture
def client(controllers: Controllers) -> Iterator[Client]:
    with controllers.client() as found:
        yield found


def event(index: int, thing: str = "42") -> dict[str, Any]:
    return {"index": index, "object": thing, "kind": "job"}


def test_a_job_is_submitted_shown_listed_and_killed(
    controllers: Controllers, client: Client
) -> None:
    job = client.submit(JOB)["job"]
    assert (job["id"], job["user"]) == (1, "ana")
    assert client.job(1)["name"] == "first"
    assert [one["id"] for one in client.jobs(state=["Running"], limit=5)["jobs"]] == [1]
    assert client.kill("1", why="enough")["job"] == 1
    assert dict(controllers.services[0].asked)["kill"] == ("1", "ana", "enough", None)
    assert client.last_index == 102


def test_errors_are_typed_and_carry_what_the_controller_said(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.job("999")
    assert (caught.value.status, caught.value.code) == (404, "not_found")
    with pytest.raises(ApiError) as caught:
        client.submit({"nme": "x", "tasks": {}})
    assert {one["path"] for one in caught.value.mistakes} >= {"nme", "tasks"}


@pytest.mark.parametrize("key", ["", "two\nlines", "\u540d", "k" * 256, " k"])
def test_a_key_that_cannot_be_sent_is_refused_before_anything_is(
    controllers: Controllers, client: Client, key: str
) -> None:
    with pytest.raises(BadKey):
        client.submit(JOB, key=key)
    with pytest.raises(BadKey):
        client.submit_many([JOB, JOB], key=key)
    assert not controllers.services[0].asked


def test_a_write_to_a_follower_reaches_the_leader_with_body_key_and_user(
    controllers: Controllers,
) -> None:
    with controllers.client(first=1) as client:
        big = JOB | {"labels": {f"k{n}": "v" * 1000 for n in range(60)}}
        job = client.submit(big, key="k")["job"]
        assert job["user"] == "ana"
        with pytest.raises(ApiError, match="another body"):
            client.submit(JOB, key="k")
    assert "submit" not in dict(controllers.services[1].asked)
    assert dict(controllers.services[0].asked)["submit"][2] == "k"


def test_the_same_key_over_both_controllers_is_one_job(controllers: Controllers) -> None:
    with controllers.client(first=0) as one, controllers.client(first=1) as other:
        ids = {client.submit(JOB, key="same")["job"]["id"] for client in (one, other, one)}
    assert ids == {1}


def test_a_dead_leader_is_left_for_the_new_one(controllers: Controllers, client: Client) -> None:
    client.submit(JOB)
    controllers.stop(0)
    controllers.lead(1)
    assert client.submit(JOB)["job"]["id"] == 2


def test_a_dead_leader_that_a_follower_still_names_is_told_as_no_leader(
    controllers: Controllers,
) -> None:
    controllers.stop(0)
    with controllers.client(first=1, deadline_s=1) as client, pytest.raises(NoLeader) as caught:
        client.submit(JOB)
    assert caught.value.code == "leader_unreachable"
    assert not caught.value.outcome_unknown


def test_nobody_there(controllers: Controllers) -> None:
    controllers.stop(0)
    controllers.stop(1)
    with controllers.client(deadline_s=0.5) as client, pytest.raises(Unreachable):
        client.nodes()


def test_status_prefers_a_controller_that_sees_a_quorum(controllers: Controllers) -> None:
    with controllers.client(first=1) as client:
        assert client.cluster_status()["quorum"] is True
        controllers.lead(None)
        assert client.cluster_status()["quorum"] is False


def test_wait_returns_the_final_jobs_or_times_out_with_the_open_ones(
    controllers: Controllers, client: Client
) -> None:
    jobs = controllers.services[0].known_jobs
    jobs[1], jobs[2] = job_view(1, phase="Succeeded"), job_view(2)
    seen: list[int] = []
    with pytest.raises(WaitTimeout) as caught:
        client.wait([2, 1], timeout_s=0.05, on_change=lambda job: seen.append(job["id"]))
    assert [one["id"] for one in caught.value.jobs] == [2, 1]
    assert seen == [2, 1]
    assert client.wait([2, 1], is_any=True)[1]["phase"] == "Succeeded"
    jobs[2] = job_view(2, phase="Failed", version=8)
    assert [one["phase"] for one in client.wait([1, 2])] == ["Succeeded", "Failed"]


def test_events_go_on_after_a_leader_change_without_loss_or_repetition(
    controllers: Controllers, client: Client
) -> None:
    controllers.services[0].events += [event(1), event(2), event(2)]
    following = client.follow(after=0, objects=["42"])
    assert [next(following)["index"] for _ in range(3)] == [1, 2, 2]
    controllers.stop(0)
    controllers.lead(1)
    controllers.services[1].events.append(event(3))
    controllers.do(controllers.services[1].news.set)
    assert next(following)["index"] == 3


def test_output_goes_on_at_its_offset_when_the_stream_breaks(
    controllers: Controllers, client: Client
) -> None:
    leader = controllers.services[0]
    leader.known_jobs[42] = job_view(42, phase="Succeeded")
    leader.known_attempts[42] = [attempt_view("42/main/0#1", phase="Succeeded")]
    leader.log += [(0, b"abc"), INTERRUPTED, (10, b"xyz")]
    chunks = client.logs("42")
    first = next(chunks)
    assert (first.attempt, first.offset, first.data) == ("42/main/0#1", 0, b"abc")
    [rest] = list(chunks)
    assert (rest.offset, rest.data, rest.lost_bytes) == (10, b"xyz", 7)
    offsets = [what[2] for name, what in leader.asked if name == "open_log"]
    assert offsets == [0, 3]


def test_output_is_read_through_a_follower(controllers: Controllers) -> None:
    leader = controllers.services[0]
    leader.known_jobs[42] = job_view(42)
    leader.known_attempts[42] = [attempt_view("42/main/0#1")]
    data = bytes(range(256)) * 8192
    leader.log += [(at, data[at : at + 65536]) for at in range(0, len(data), 65536)]
    with controllers.client(first=1) as client:
        assert b"".join(chunk.data for chunk in client.logs("42")) == data
    assert "open_log" not in dict(controllers.services[1].asked)


def test_following_goes_on_to_the_next_attempt_and_ends_with_the_job(
    controllers: Controllers, client: Client
) -> None:
    leader = controllers.services[0]
    leader.known_jobs[42] = job_view(42)
    leader.known_attempts[42] = [attempt_view("42/main/0#1", phase="Failed")]
    leader.log += [(0, b"one")]
    chunks = client.logs("42", follow=True)
    assert next(chunks).data == b"one"
    leader.log[:] = [(0, b"two")]
    leader.known_attempts[42].append(attempt_view("42/main/0#2", phase="Succeeded"))
    second = next(chunks)
    assert (second.attempt, second.data) == ("42/main/0#2", b"two")
    leader.known_jobs[42] = job_view(42, phase="Succeeded")
    assert list(chunks) == []


def test_the_last_lines_are_found_also_when_lines_are_long(
    controllers: Controllers, client: Client
) -> None:
    leader = controllers.services[0]
    leader.known_jobs[42] = job_view(42)
    leader.known_attempts[42] = [attempt_view("42/main/0#1", phase="Failed")]
    leader.log += [(0, b"a\nb\nc\n")]
    [chunk] = list(client.logs("42", tail_lines=2))
    assert (chunk.offset, chunk.data) == (2, b"b\nc\n")


def test_importing_the_client_loads_no_server_code_and_nothing_heavy() -> None:
    program = "import sys, scheduler.client.client; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"msgspec", "starlette", "uvicorn", "asyncio", "click", "rich", "msgpack"}
    assert heavy & set(loaded) == set()
    ours = {name for name in loaded if name.startswith("scheduler.")}
    assert {name.split(".")[1] for name in ours} <= {"client", "protocol"}


def test_a_context_without_controllers_or_with_a_bad_address_is_told() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Client(Context(()))
    with pytest.raises(Exception, match="no http"):
        Client(Context(("ftp://x",))).nodes()


def test_many_jobs_are_waited_for_through_the_list(
    controllers: Controllers, client: Client
) -> None:
    leader = controllers.services[0]
    for number in range(1, 31):
        leader.known_jobs[number] = job_view(number, phase="Succeeded" if number > 5 else "Running")
    with pytest.raises(WaitTimeout):
        client.wait(range(1, 31), timeout_s=0.05)
    leader.asked.clear()
    for number in range(1, 6):
        leader.known_jobs[number] = job_view(number, phase="Failed", version=9)
    jobs = client.wait(range(1, 31))
    assert [one["id"] for one in jobs] == list(range(1, 31))


def test_a_kill_whose_answer_was_lost_is_not_refused_as_a_second_one(
    controllers: Controllers, client: Client
) -> None:
    leader = controllers.services[0]
    leader.known_jobs[1] = job_view(1, phase="Killed", cause="user_cancel")
    leader.known_jobs[2] = job_view(2, phase="Succeeded", cause="exit_zero")
    for job_id in (1, 2):
        lost = ServiceError(
            "lost", "?", kind="unavailable", retry_after_s=0.01, outcome_unknown=True
        )
        refusal = ServiceError("already_final", "is final", kind="conflict")
        leader.failures["kill"] = [lost, refusal]
        if job_id == 1:
            assert client.kill(job_id)["is_done"] is True
        else:
            with pytest.raises(ApiError, match="is final"):
                client.kill(job_id)
    leader.failures["kill"] = [ServiceError("already_final", "is final", kind="conflict")]
    with pytest.raises(ApiError, match="is final"):
        client.kill(1)
