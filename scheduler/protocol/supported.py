"""What this release takes no part in yet, refused by name instead of being ignored.

A feature leaves this table in the change that implements it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scheduler.protocol.errors import Mistake
from scheduler.protocol.spec import JobSpec, TaskSpec

#: The words every such message contains, for programs and tests.
NOT_YET: Final = "not supported by this release"

Predicate = Callable[[Any], bool]

_JOB_FEATURES: Final[tuple[tuple[str, str, Predicate], ...]] = (
    ("tasks", "jobs of several tasks are", lambda job: len(job.tasks) > 1),
    ("queue", "queues other than default are", lambda job: job.queue != "default"),
    ("after", "dependencies between jobs are", lambda job: bool(job.after)),
    ("stopped", "submitting a stopped job is", lambda job: job.stopped),
)
_TASK_FEATURES: Final[tuple[tuple[str, str, Predicate], ...]] = (
    ("replicas", "tasks of several or no replicas are", lambda task: task.replicas != 1),
    ("array", "array jobs are", lambda task: task.array is not None),
    ("kind", "service tasks are", lambda task: task.kind == "service"),
    ("gang", "gangs are", lambda task: bool(task.gang)),
    ("constraints", "placement constraints are", lambda task: bool(task.constraints)),
    ("prefer", "placement preferences are", lambda task: bool(task.prefer)),
    ("spread", "spreading over labels is", lambda task: task.spread is not None),
    ("requires", "addons are", lambda task: bool(task.requires)),
)
#: Options of `submit` and `run` that fill no field of a job yet.
UNSUPPORTED_OPTIONS: Final = {
    "--env-secret": "secret environment variables are",
    "--notify": "notifications are",
}


def unsupported_features(job: JobSpec) -> tuple[Mistake, ...]:
    """A mistake for everything `job` asks for that this release cannot do; empty when none."""
    found = [_mistake(path, what) for path, what, asks in _JOB_FEATURES if asks(job)]
    for name, task in sorted(job.tasks.items()):
        found.extend(_of_task(f"tasks.{name}", task))
    return tuple(found)


def unsupported_option(option: str) -> Mistake:
    """The refusal of one of UNSUPPORTED_OPTIONS."""
    return _mistake(option, UNSUPPORTED_OPTIONS[option])


def unsupported_kind(kind: object, known: tuple[str, ...]) -> Mistake:
    """The refusal of a document that is no job."""
    if isinstance(kind, str) and kind in known:
        return _mistake("kind", f"{kind} documents are")
    from scheduler.protocol.specread import shown, suggestion

    hint = suggestion(kind, known) if isinstance(kind, str) else ""
    return Mistake("kind", f"{shown(kind)} is no kind of document", hint)


def _of_task(path: str, task: TaskSpec) -> list[Mistake]:
    return [_mistake(f"{path}.{field}", what) for field, what, asks in _TASK_FEATURES if asks(task)]


def _mistake(path: str, what: str) -> Mistake:
    return Mistake(path, f"{what} {NOT_YET}")
