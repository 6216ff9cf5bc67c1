"""Job documents: every mistake at once with its path, and both directions agree."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.protocol.errors import InvalidSpec, Mistake
from scheduler.protocol.spec import Backoff, JobSpec, Resources, Retry, Success, TaskSpec
from scheduler.protocol.specfile import RETRY_CAUSES, document_from_job, job_from_document
from scheduler.protocol.supported import NOT_YET


def with_task(**fields: Any) -> dict[str, Any]:
    return {"tasks": {"main": {"command": ["true"], **fields}}}


def mistakes_of(document: object, *, allow_unsupported: bool = False) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as caught:
        job_from_document(document, allow_unsupported=allow_unsupported)
    return {one.path: f"{one.message} {one.hint}" for one in caught.value.mistakes}


def test_the_smallest_document_has_the_defaults_of_the_specification() -> None:
    job = job_from_document({"tasks": {"main": {"command": ["echo", "hello"]}}})
    assert job == JobSpec(tasks={"main": TaskSpec(command=("echo", "hello"))})
    assert job.retention_ms == 7 * 86_400_000
    assert job.tasks["main"].resources.cpu_millis == 1000
    assert (job.tasks["main"].retry.limit, job.tasks["main"].retry.node_limit) == (0, 3)


def test_every_field_of_the_specifications_example_is_taken() -> None:
    document = {
        "kind": "job", "name": "train", "queue": "default", "priority": 0, "labels": {},
        "fail_fast": None, "retention": "7d", "after": ["41", "40:finished"],
        "tasks": {"main": {
            "command": ["python", "train.py"], "kind": "run", "replicas": 1, "gang": None,
            "resources": {"cpu": 2, "memory": "4GiB", "gpu": 1, "custom": {}},
            "constraints": [], "prefer": [], "spread": None, "requires": [],
            "env": {}, "env_mode": "none", "cwd": None, "user": None, "files": {}, "stdin": None,
            "timeout": "1h", "pending_timeout": None, "stall_timeout": None, "grace": "10s",
            "stop_signal": "TERM", "on_lease_end": None, "on_disconnect": None,
            "retry": {"limit": 0, "node_limit": 3, "on": [], "not_on": [],
                      "backoff": {"first": "1s", "factor": 2, "max": "5m"}},
            "exit_codes": {}, "ready_check": None, "log_limit": "64MiB",
            "success": {"output_nonempty": [], "output_matches": {}, "check": None}}},
    }  # fmt: skip
    job = job_from_document(document, allow_unsupported=True)
    assert job.after == ("41", "40:finished")
    task = job.tasks["main"]
    assert task.resources == Resources(cpu_millis=2000, memory_bytes=4 << 30, gpu=1)
    assert task.timeout_ms == 3_600_000
    assert task.log_limit_bytes == 64 << 20


def test_all_mistakes_are_told_at_once_each_with_its_path_and_what_was_meant() -> None:
    found = mistakes_of(
        {
            "nam": "x",
            "queue": "a b",
            "tasks": {
                "main": {
                    "comand": ["x"],
                    "timeout": "10",
                    "resources": {"memory": "4Q"},
                    "stop_signal": "TRM",
                    "exit_codes": {"300": "success"},
                }
            },
        }
    )
    assert set(found) == {
        "nam",
        "queue",
        "tasks.main",
        "tasks.main.comand",
        "tasks.main.timeout",
        "tasks.main.resources.memory",
        "tasks.main.stop_signal",
        "tasks.main.exit_codes.300",
    }
    assert "did you mean name?" in found["nam"]
    assert "did you mean command?" in found["tasks.main.comand"]
    assert "did you mean TERM?" in found["tasks.main.stop_signal"]


@pytest.mark.parametrize(
    ("document", "path", "part"),
    [
        ([], "", "an object is wanted"),
        ("x", "", "an object is wanted"),
        ({}, "tasks", "missing"),
        ({"command": ["x"]}, "tasks", "inside"),
        ({"tasks": {}}, "tasks", "0 tasks"),
        ({"tasks": {"a/b": {"command": ["x"]}}}, "tasks.'a/b'", "no task name"),
        ({"tasks": {"main": None}}, "tasks.main", "null where an object"),
        (with_task(shell="x"), "tasks.main", "exclude each other"),
        (with_task(command="a b"), "tasks.main.command", "list is wanted"),
        (with_task(command=[]), "tasks.main.command", "0 elements"),
        (with_task(command=[""]), "tasks.main.command[0]", "empty program"),
        (with_task(command=["a", 1]), "tasks.main.command[1]", "text is wanted"),
        (with_task(command=["a\0b"]), "tasks.main.command[0]", "NUL"),
        (with_task(command=["\ud800"]), "tasks.main.command[0]", "Unicode"),
        (with_task(env={"A=B": "x"}), "tasks.main.env.'A=B'", "name of an environment"),
        (with_task(env={"A": 1}), "tasks.main.env.A", 'write "1"'),
        (with_task(files={"../x": "y"}), "tasks.main.files.'../x'", "without a slash"),
        (with_task(files={"..": "y"}), "tasks.main.files.'..'", "without a slash"),
        (with_task(retry={"on": ["oops"]}), "tasks.main.retry.on[0]", "no cause"),
        (with_task(retry={"on": [0]}), "tasks.main.retry.on[0]", "no cause"),
        (with_task(retry={"limit": True}), "tasks.main.retry.limit", "whole number"),
        (with_task(retry={"backoff": {"factor": 0.5}}), "tasks.main.retry.backoff.factor", "1 and"),
        (with_task(env_mode="all"), "tasks.main.env_mode", "none or agent"),
        (with_task(umask=18), "tasks.main.umask", '"022"'),
        (with_task(success={"output_matches": {"f": "("}}),
         "tasks.main.success.output_matches.f", "regular expression"),
        (with_task(on_disconnect="fial"), "tasks.main.on_disconnect", "did you mean fail?"),
        (with_task(array="5", replicas=2), "tasks.main", "exclude"),
        ({**with_task(), "after": ["x"]}, "after[0]", "41:finished"),
        ({**with_task(), "priority": 10**10}, "priority", "not between"),
        ({**with_task(), "name": "a\x1b[31m"}, "name", "control characters"),
        ({**with_task(), "kind": "wrokflow"}, "kind", "did you mean workflow?"),
        ({**with_task(), "kind": 3}, "kind", "no kind"),
    ],
)  # fmt: skip
def test_mistakes(document: object, path: str, part: str) -> None:
    found = mistakes_of(document)
    assert path in found, found
    assert part in found[path]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"tasks": {n: {"command": ["x"]} for n in "ab"}}, "tasks"),
        (with_task(replicas=2), "tasks.main.replicas"),
        (with_task(replicas=0), "tasks.main.replicas"),
        (with_task(array="0-9%2"), "tasks.main.array"),
        (with_task(kind="service"), "tasks.main.kind"),
        (with_task(gang=True), "tasks.main.gang"),
        (with_task(constraints=["a == b"]), "tasks.main.constraints"),
        (with_task(prefer=["a == b"]), "tasks.main.prefer"),
        (with_task(spread="rack"), "tasks.main.spread"),
        (with_task(requires=["toolkit>=12"]), "tasks.main.requires"),
        ({**with_task(), "queue": "gpu"}, "queue"),
        ({**with_task(), "after": ["41"]}, "after"),
        ({**with_task(), "stopped": True}, "stopped"),
        ({"kind": "workflow", "jobs": {}}, "kind"),
        ({"kind": "schedule"}, "kind"),
    ],
)
def test_what_this_release_cannot_do_is_refused_by_name(document: object, path: str) -> None:
    found = mistakes_of(document)
    assert NOT_YET in found[path]
    assert list(found) == [path]


def test_numbers_too_long_to_print_are_mistakes_like_others() -> None:
    huge = 10**5000
    document = {**with_task(env={"A": huge}, exit_codes={huge: "success"}), "priority": huge}
    assert set(mistakes_of(document)) >= {"priority", "tasks.main.env.A"}


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,8}", fullmatch=True)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
words = st.lists(texts.filter(bool), min_size=1, max_size=3).map(tuple)
durations = st.integers(0, 10**9)
sizes = st.integers(0, 1 << 45)
checks = st.none() | texts | words
tasks = st.builds(
    TaskSpec,
    command=words,
    replicas=st.integers(0, 9),
    kind=st.sampled_from(["run", "service"]),
    gang=st.none() | st.booleans(),
    resources=st.builds(
        Resources,
        cpu_millis=st.integers(0, 10**6),
        memory_bytes=sizes,
        gpu=st.integers(0, 8),
        disk_bytes=sizes,
        custom=st.dictionaries(names, st.integers(0, 100), max_size=2),
    ),
    constraints=st.lists(texts, max_size=2).map(tuple),
    env=st.dictionaries(names, texts, max_size=2),
    env_mode=st.sampled_from(["none", "agent"]) | st.lists(names, max_size=2).map(tuple),
    umask=st.none() | st.integers(0, 0o777),
    files=st.dictionaries(names, texts, max_size=2),
    stdin=st.none() | texts,
    timeout_ms=st.none() | durations,
    grace_ms=durations,
    stop_signal=st.sampled_from(["TERM", "INT", "USR1"]),
    on_lease_end=st.sampled_from([None, "freeze", "kill", "run"]),
    retry=st.builds(
        Retry,
        limit=st.integers(0, 9),
        on=st.lists(st.sampled_from([*RETRY_CAUSES, "75"]), max_size=2).map(tuple),
        backoff=st.builds(Backoff, first_ms=durations, factor_millis=st.integers(1000, 9999)),
    ),
    exit_codes=st.dictionaries(
        st.integers(0, 255), st.sampled_from(["success", "retry", "fail_job"]), max_size=2
    ),
    success=st.builds(Success, check=checks),
    ready_check=checks,
    log_limit_bytes=sizes,
)
jobs = st.builds(
    JobSpec,
    tasks=st.dictionaries(names, tasks, min_size=1, max_size=2),
    name=names,
    queue=names,
    priority=st.integers(-99, 99),
    labels=st.dictionaries(texts, texts, max_size=2),
    fail_fast=st.none() | st.booleans(),
    retention_ms=durations,
    after=st.lists(st.sampled_from(["1", "7:failed"]), max_size=2).map(tuple),
    node=st.none() | names,
    wait_for_capacity=st.booleans(),
    stopped=st.booleans(),
)


@settings(max_examples=50)
@given(jobs, st.booleans())
def test_a_job_written_and_read_again_is_the_same(job: JobSpec, full: bool) -> None:
    document = json.loads(json.dumps(document_from_job(job, full=full)))
    assert job_from_document(document, allow_unsupported=True) == job


@pytest.mark.parametrize(
    "task", [TaskSpec(shell="echo 1"), TaskSpec(command=("x",), array="0-9%3")]
)
def test_alternatives_are_written_without_the_other(task: TaskSpec) -> None:
    job = JobSpec(tasks={"main": task})
    document = document_from_job(job)
    assert job_from_document(document, allow_unsupported=True) == job
    assert ("shell" in document["tasks"]["main"]) != ("command" in document["tasks"]["main"])
    assert ("array" in document["tasks"]["main"]) != ("replicas" in document["tasks"]["main"])


def test_a_short_document_shows_only_what_differs() -> None:
    job = job_from_document({**with_task(timeout="90s"), "name": "x"})
    assert document_from_job(job, full=False) == {
        "kind": "job",
        "name": "x",
        "tasks": {"main": {"command": ["true"], "timeout": "1m30s"}},
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
fields = st.sampled_from(
    ["tasks", "main", "command", "shell", "env", "retry", "on", "resources", "cpu", "success",
     "exit_codes", "name", "kind", "after", "backoff", "check"]
)  # fmt: skip
documents = st.recursive(
    json_values, lambda inner: st.dictionaries(fields, inner, max_size=4), max_leaves=12
)


@given(documents)
def test_nothing_but_invalid_spec_is_raised(document: object) -> None:
    found: tuple[Mistake, ...] | None = None
    try:
        job_from_document(document)
    except InvalidSpec as error:
        found = error.mistakes
    assert found is None or (found and all(one.message for one in found))
