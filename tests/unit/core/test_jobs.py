"""Submitting, killing, retrying, collecting; and what a kill meets on its way."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core import queries
from scheduler.core.commands import KillRequested, SubmitJobs, SubmittedJob
from scheduler.core.records import TaskRow, Worker
from scheduler.core.results import KillAnswer, Rejected, Submitted
from scheduler.core.retries import NextTry, backoff_ms, next_try
from scheduler.protocol.messages import Report
from scheduler.protocol.spec import Backoff, JobSpec, Retry, TaskSpec
from tests.unit.core.harness import Core

SPEC = JobSpec(tasks={"main": TaskSpec(command=("true",))})


def submit_keyed(core: Core, key: str, digest: str = "d", count: int = 1) -> Any:
    jobs = tuple(SubmittedJob(spec=SPEC, user="alice") for _ in range(count))
    return core.apply(SubmitJobs(jobs=jobs, key=key, body_digest=digest), actor="user:alice")


# ---- submit ------------------------------------------------------------------------------------


def test_ids_count_up_and_a_batch_is_all_or_nothing() -> None:
    core = Core()
    assert submit_keyed(core, "", count=3) == Submitted((1, 2, 3))
    core.node()
    huge = JobSpec(tasks={"main": TaskSpec(command=("x",))}, node="nowhere")
    jobs = (SubmittedJob(spec=SPEC), SubmittedJob(spec=huge))
    refused = core.apply(SubmitJobs(jobs=jobs))
    assert isinstance(refused, Rejected)
    assert (refused.code, refused.kind) == ("unsatisfiable", "invalid")
    assert submit_keyed(core, "") == Submitted((4,))


def test_one_key_gives_one_job_and_refuses_another_body() -> None:
    core = Core()
    assert submit_keyed(core, "k", count=2) == Submitted((1, 2))
    assert submit_keyed(core, "k", count=2) == Submitted((1, 2), is_known=True)
    refused = submit_keyed(core, "k", digest="other")
    assert refused.code == "key_reused"
    assert core.state.next_job == 3


def test_a_key_is_kept_until_its_retention_after_the_last_job_is_final() -> None:
    core = Core(idempotency_retention=10_000)
    submit_keyed(core, "k", count=2)
    core.kill("1", why="w")
    core.pass_ms(50_000)
    core.deadlines()
    assert submit_keyed(core, "k", count=2).is_known
    core.kill("2")
    core.pass_ms(9_999)
    core.deadlines()
    assert submit_keyed(core, "k", count=2).is_known
    core.pass_ms(1)
    core.deadlines()
    assert submit_keyed(core, "k", count=2) == Submitted((3, 4))


def test_what_no_node_could_ever_run_is_refused_unless_it_may_wait() -> None:
    core = Core()
    big = JobSpec(tasks={"main": TaskSpec(command=("x",), resources=SPEC.tasks["main"].resources)})
    core.submit(cpu=64_000)  # With no node known, it waits.
    assert core.reasons(1) == ["NoNodes"]
    core.node(cpu=8000)
    assert core.view(1)["pending_reasons"] == [
        {
            "code": "Unsatisfiable",
            "message": "asks 64 cpu; the largest node has 8",
            "count": 1,
        }
    ]
    core.offline()
    with pytest.raises(AssertionError, match="asks 64 cpu"):
        core.submit(cpu=64_000)
    core.submit(cpu=64_000, job={"wait_for_capacity": True})
    assert big.tasks


# ---- kill --------------------------------------------------------------------------------------


def test_a_pending_job_is_killed_at_once_and_says_by_whom() -> None:
    core = Core()
    job_id = core.submit()
    assert core.kill(str(job_id), why="typo").is_done
    assert core.end_of(job_id) == ("Killed", "user_cancel", "never_started")
    view = core.view(job_id)
    assert (view["phase"], view["cause"], view["by"], view["why"]) == (
        "Killed",
        "user_cancel",
        "user:alice",
        "typo",
    )
    assert core.place() == {}


def test_a_running_kill_is_an_order_until_the_node_reports() -> None:
    core = Core()
    job_id, token = core.given_running()
    assert not core.kill(str(job_id), why="enough").is_done
    assert core.view(job_id)["ending"]["to"] == "Killed"
    assert core.view(job_id)["phase"] == "Running"
    assert core.orders() == [("kill", f"{job_id}/main/0#1")]
    assert core.orders(sent={("kill", token)}) == []
    core.report(core.finished(token, "killed", signal="SIGTERM", was_signalled=True))
    assert core.end_of(job_id) == ("Killed", "user_cancel", "observed")
    assert core.view(job_id)["ending"] is None


def test_a_kill_committed_first_wins_over_exit_zero() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.kill(str(job_id))
    core.report(core.finished(token, has_exited_before_kill=True))
    view = core.view(job_id)
    assert (view["phase"], view["cause"], view["exit_code"]) == ("Killed", "user_cancel", 0)
    assert view["exited_before_kill"]


@pytest.mark.parametrize("reason", ["disconnected", "left"])
def test_a_kill_committed_first_wins_over_a_disconnect(reason: str) -> None:
    core = Core()
    job_id, _ = core.given_running()
    core.kill(str(job_id))
    core.offline(reason=reason)
    assert core.end_of(job_id) == ("Killed", "user_cancel", "declared")
    assert core.job(job_id).phase == "Killed"


def test_the_kill_of_an_unreachable_attempt_ends_at_its_deadline() -> None:
    core = Core()
    job_id, _ = core.given_running()
    core.offline(lease_ms=300_000)
    core.kill(str(job_id), why="gone")
    assert core.view(job_id)["ending"]["unreachable"]
    core.pass_ms(300_000)
    core.deadlines()
    assert core.end_of(job_id) == ("Killed", "user_cancel", "declared")
    assert (job_id, "main", 0, 2) not in core.state.attempts


def test_the_kill_of_an_unconfirmed_attempt_waits_for_its_node() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    token = core.place()[f"{job_id}/main/0#1"]
    assert not core.kill(str(job_id)).is_done
    assert core.orders() == [("kill", f"{job_id}/main/0#1")]
    core.report(Report(kind="not_started", token=token))
    assert core.end_of(job_id) == ("Killed", "user_cancel", "never_started")


def test_a_finish_committed_first_refuses_the_kill_with_what_to_do() -> None:
    core = Core()
    job_id, token = core.given_running()
    core.report(core.finished(token))
    answer = core.kill(str(job_id))
    assert isinstance(answer, Rejected)
    assert (answer.code, answer.kind) == ("already_final", "conflict")
    assert "Succeeded" in answer.message
    assert "clone" in answer.hint


def test_the_same_kill_again_is_done_and_another_is_refused() -> None:
    core = Core()
    job_id = core.submit()
    core.kill(str(job_id), why="x")
    assert core.kill(str(job_id), why="x") == KillAnswer(1, is_done=True, message="job 1 is Killed")
    assert core.kill(str(job_id), why="x", user="bob").code == "already_final"


def test_the_first_kill_keeps_its_reason() -> None:
    core = Core()
    job_id, _ = core.given_running()
    core.kill(str(job_id), why="first")
    answer = core.kill(str(job_id), why="second", user="bob")
    assert not answer.is_done
    kill = core.attempt(job_id).kill
    assert kill is not None
    assert (kill.by, kill.why) == ("user:alice", "first")


@pytest.mark.parametrize("part", ["/main", "/main/0", "/main/0#1", "#1"])
def test_a_worker_or_attempt_is_killed_for_good(part: str) -> None:
    core = Core()
    job_id, token = core.given_running(retry=Retry(limit=5))
    core.kill(f"{job_id}{part}")
    core.report(core.finished(token, "killed", was_signalled=True))
    assert core.view(job_id)["phase"] == "Killed"
    assert core.view(job_id)["by"] == "user:alice"


@pytest.mark.parametrize(
    ("target", "kind"),
    [("9", "not_found"), ("1/other", "not_found"), ("1/main/3", "not_found"),
     ("1#2", "not_found"), ("x", "invalid"), ("1/main/0#9", "not_found")],
)  # fmt: skip
def test_a_target_that_names_nothing_is_refused(target: str, kind: str) -> None:
    core = Core()
    core.submit()
    assert core.kill(target).kind == kind


def test_if_version_and_causes_are_checked() -> None:
    core = Core()
    job_id = core.submit()
    version = core.job(job_id).version
    moved = core.apply(KillRequested(target="1", if_version=version + 1))
    assert (moved.code, moved.kind) == ("version_moved", "version")
    assert core.apply(KillRequested(target="1", cause="preempted")).code == "bad_cause"
    assert core.apply(KillRequested(target="1", if_version=version), actor="user:a").is_done


# ---- retries -----------------------------------------------------------------------------------


def worker(**used: int) -> Worker:
    return Worker(job=1, task="main", index=0, version=1, phase="Running", **used)


def spec(**retry: Any) -> TaskSpec:
    codes = retry.pop("exit_codes", {})
    return TaskSpec(command=("x",), retry=Retry(**retry), exit_codes=codes)


@pytest.mark.parametrize(
    ("task", "used", "cause", "code", "expected"),
    [
        (spec(), {}, "exit_nonzero", 1, None),
        (spec(limit=1), {}, "exit_nonzero", 1, NextTry("task", 1000)),
        (spec(limit=2), {"task_failures": 1}, "oom", None, NextTry("task", 2000)),
        (spec(limit=2), {"task_failures": 2}, "oom", None, None),
        (spec(), {}, "node_lost", None, NextTry("node", 1000)),
        (spec(), {"node_failures": 3}, "node_lost", None, None),
        (spec(), {"task_failures": 9, "node_failures": 9}, "preempted", None, NextTry("always")),
        (spec(), {}, "revoked", None, NextTry("always", 1000)),
        (spec(limit=9), {}, "user_cancel", None, None),
        (spec(limit=1), {}, "resource_overuse", None, NextTry("task", 1000)),
        (spec(limit=9, on=("oom",)), {}, "exit_nonzero", 1, None),
        (spec(limit=9, on=("oom",)), {}, "node_lost", None, NextTry("node", 1000)),
        (spec(limit=9, on=("75",)), {}, "exit_nonzero", 75, NextTry("task", 1000)),
        (spec(limit=9, not_on=("75",)), {}, "exit_nonzero", 75, None),
        (spec(on=("node_lost",)), {}, "node_rebooted", None, None),
        (spec(limit=9, exit_codes={2: "fail_job"}), {}, "exit_nonzero", 2, None),
        (spec(limit=9, on=("oom",), exit_codes={75: "retry"}), {}, "exit_nonzero", 75,
         NextTry("task", 1000)),
    ],
)  # fmt: skip
def test_who_gets_another_try(
    task: TaskSpec, used: dict[str, int], cause: str, code: int | None, expected: NextTry | None
) -> None:
    assert next_try(task, worker(**used), cause=cause, exit_code=code) == expected


def test_backoff_grows_to_its_maximum_and_never_overflows() -> None:
    backoff = Backoff(first_ms=1000, factor_millis=2500, max_ms=10_000)
    assert [backoff_ms(backoff, n) for n in range(1, 6)] == [1000, 2500, 6250, 10_000, 10_000]
    assert backoff_ms(backoff, 10**6) == 10_000
    assert backoff_ms(Backoff(first_ms=0), 50) == 0


def test_a_retry_waits_for_its_backoff_then_runs() -> None:
    core = Core()
    job_id, token = core.given_running(retry=Retry(limit=1))
    core.report(core.finished(token, "exit_nonzero", exit_code=3))
    assert core.view(job_id)["phase"] == "Pending"
    assert core.reasons(job_id) == ["Backoff"]
    assert core.place() == {}
    assert core.state.pending.next_ready_ms() == core.now_ms + 1000
    core.pass_ms(1000)
    token = core.place()[f"{job_id}/main/0#2"]
    core.report(core.started(token), core.finished(token))
    assert core.view(job_id)["phase"] == "Succeeded"
    view = core.attempt_view(job_id, 1)
    assert view["replaced_by"] == f"{job_id}/main/0#2"
    assert core.attempt_view(job_id, 2)["replaces"] == f"{job_id}/main/0#1"


def test_a_node_that_failed_it_is_avoided_while_another_can() -> None:
    core = Core()
    core.node("a1", cpu=9000)
    core.node("a2", cpu=2000)
    job_id = core.submit()
    token = core.place()[f"{job_id}/main/0#1"]
    core.report(core.finished(token, "launch_failed", exit_code=None))
    core.pass_ms(1000)
    core.place()
    placed = core.attempt(job_id, 2).placed
    assert placed is not None
    assert placed.node == "a2"


def test_attempts_of_a_worker_are_bounded_first_and_last() -> None:
    core = Core()
    core.node()
    job_id = core.submit()
    for number in range(1, 230):
        token = core.place()[f"{job_id}/main/0#{number}"]
        core.report(Report(kind="not_started", token=token))
        core.pass_ms(1000)
    kept = [view["number"] for view in queries.attempts_view(core.state, str(job_id)) or []]
    assert kept == [*range(1, 21), *range(51, 231)]


# ---- queue limit, retention ----------------------------------------------------------------------


def test_a_pending_timeout_kills_what_still_waits() -> None:
    core = Core()
    job_id = core.submit(pending_timeout_ms=5_000)
    core.pass_ms(4_999)
    core.deadlines()
    assert core.attempt(job_id).phase == "Pending"
    assert core.attempt_view(job_id)["decided_by"]["rule"] == "pending_timeout"
    core.pass_ms(1)
    core.deadlines()
    assert core.end_of(job_id) == ("Killed", "pending_timeout", "never_started")


def test_final_jobs_are_collected_and_leave_tombstones() -> None:
    core = Core(tombstone_retention=20_000)
    job_id, token = core.given_running(job={"retention_ms": 10_000})
    core.report(core.finished(token))
    core.pass_ms(10_000)
    core.deadlines()
    assert queries.job_view(core.state, job_id) is None
    assert core.state.tombstones[token].phase == "Succeeded"
    assert core.report(core.finished(token)) == ["committed"]
    answer = core.node("a1", core.started(token), start=2)
    assert [verdict.verdict for verdict in answer.verdicts] == ["kill"]
    assert core.kill(str(job_id)).code == "already_final"
    core.pass_ms(20_000)
    core.deadlines()
    assert len(core.state.tombstones) == 0
    assert core.kill(str(job_id)).code == "not_found"


def test_nothing_is_collected_while_its_tree_may_live() -> None:
    core = Core()
    job_id, token = core.given_running(retry=Retry(node_limit=0), job={"retention_ms": 1_000})
    core.offline(reason="disconnected", lease_ms=5_000)
    core.pass_ms(500_000)
    core.deadlines()
    assert core.job(job_id).phase == "Failed"
    core.node("a1", core.finished(token, "killed", was_signalled=True), start=2)
    core.deadlines()
    assert queries.job_view(core.state, job_id) is None


# ---- several tasks and replicas (the records carry them) -----------------------------------------


def several(**job: Any) -> JobSpec:
    task = TaskSpec(command=("x",), replicas=2, retry=Retry(node_limit=0))
    return JobSpec(tasks={"a": task, "b": TaskSpec(command=("y",))}, **job)


def finish_all(core: Core, causes: dict[str, str]) -> None:
    for attempt, token in core.place().items():
        core.report(core.started(token))
        core.report(core.finished(token, causes.get(attempt, "exit_zero")))


def test_a_job_succeeds_with_the_last_of_its_workers() -> None:
    core = Core()
    core.node()
    job_id = core.submit(spec=several())
    finish_all(core, {})
    assert core.view(job_id)["phase"] == "Succeeded"
    assert core.job(job_id).tasks == (
        TaskRow(name="a", kind="run", replicas=2, succeeded=2),
        TaskRow(name="b", kind="run", replicas=1, succeeded=1),
    )


def test_a_failure_outranks_a_kill_and_the_rest_runs_out() -> None:
    core = Core()
    core.node()
    job_id = core.submit(spec=several())
    core.kill(f"{job_id}/b")
    assert core.view(job_id)["phase"] == "Pending"
    finish_all(core, {f"{job_id}/a/1#1": "signal"})
    view = core.view(job_id)
    assert (view["phase"], view["cause"]) == ("Failed", "signal")


def test_with_fail_fast_the_first_failure_ends_the_others() -> None:
    core = Core()
    core.node()
    job_id = core.submit(spec=several(fail_fast=True))
    tokens = core.place()
    core.report(*(core.started(token) for token in tokens.values()))
    core.report(core.finished(tokens[f"{job_id}/a/0#1"], "oom"))
    assert core.view(job_id)["ending"]["to"] == "Failed"
    assert sorted(core.orders()) == [("kill", f"{job_id}/a/1#1"), ("kill", f"{job_id}/b/0#1")]
    for attempt in (f"{job_id}/a/1#1", f"{job_id}/b/0#1"):
        core.report(core.finished(tokens[attempt], "killed", was_signalled=True))
    view = core.view(job_id)
    assert (view["phase"], view["cause"]) == ("Failed", "oom")
    assert view["tasks"][1]["phase"] == "Killed"


# ---- what a node may say -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"cause": "made_up"}, ("Failed", "status_lost", "seen_gone")),
        ({"cause": "user_cancel"}, ("Failed", "status_lost", "seen_gone")),
        ({"cause": "exit_zero", "exit_code": 3}, ("Failed", "status_lost", "seen_gone")),
        ({"cause": "exit_zero", "evidence": "seen_gone"}, ("Failed", "status_lost", "seen_gone")),
        ({"cause": "accepted_exit", "exit_code": 7}, ("Failed", "status_lost", "seen_gone")),
        ({"cause": "accepted_exit", "exit_code": 143}, ("Succeeded", "accepted_exit", "observed")),
        ({"cause": "oom", "evidence": "hearsay"}, ("Failed", "oom", "seen_gone")),
        ({"cause": "node_drain"}, ("Killed", "node_drain", "observed")),
        ({"cause": "killed"}, ("Killed", "fenced", "observed")),
        ({"cause": "resource_overuse"}, ("Killed", "resource_overuse", "observed")),
    ],
)
def test_an_end_is_believed_only_as_far_as_it_is_proven(
    facts: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    core = Core()
    job_id, token = core.given_running(exit_codes={143: "success"}, retry=Retry(node_limit=0))
    core.report(core.finished(token, **facts))
    assert core.end_of(job_id) == expected
