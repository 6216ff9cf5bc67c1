"""/v1/jobs: submit, list, look at, end."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from scheduler.http import params, schemas
from scheduler.http.bodies import (
    idempotency_key,
    if_match,
    read_body,
    read_specs,
    read_why,
    specs_digest,
)
from scheduler.http.exchange import READ_PARAMS, Exchange, Operation, sparse
from scheduler.http.port import View
from scheduler.http.problems import Problem, not_found

#: Jobs of one page.
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000

PHASES: Final = ("Pending", "Running", "Succeeded", "Failed", "Killed", "Stopped")
FIELDS: Final = params.names("fields", "only these fields, and the id", *schemas.JOB_FIELDS)
LIST_PARAMS: Final = (
    params.names("state", "phases", *PHASES),
    params.text("user", "only this user's"),
    params.text("queue", "only of this queue"),
    params.text("name", "names that match this glob"),
    params.flag("overdue", "only jobs with an overdue attempt"),
    params.integer("limit", f"jobs of one page; {PAGE_DEFAULT} unless told", low=1, high=PAGE_MAX),
    params.integer("after", "the `next` of the page before"),
    FIELDS,
    *READ_PARAMS,
)


async def submit(exchange: Exchange) -> Response:
    """POST /v1/jobs"""
    key = idempotency_key(exchange.request)
    specs, is_bulk = read_specs(await read_body(exchange.request))
    user = exchange.principal.user
    submitted, index = await exchange.service.submit(
        specs, user=user, key=key, body_digest=specs_digest(specs)
    )
    as_of = await exchange.read_own_write(index)
    fields = exchange.query.get("fields")
    views: list[View]
    if fields == ("id",):  # asked for by bulk submits: views would cost more than all the rest
        views = [{"id": job_id} for job_id in submitted.job_ids]
    else:
        views = sparse([_known_job(exchange, job_id) for job_id in submitted.job_ids], fields)
    headers = {"Location": f"/v1/jobs/{submitted.job_ids[0]}"} if not is_bulk else {}
    if submitted.is_known:
        headers["Pertinax-Replayed"] = "true"
    document: View = {"jobs": views} if is_bulk else {"job": views[0]}
    return exchange.answer(document, as_of, status=201, headers=headers)


def _known_job(exchange: Exchange, job_id: int) -> View:
    # A repeated key can name a job that was deleted since: its id is what is left of it.
    return exchange.service.job(job_id) or {"id": job_id}


async def list_jobs(exchange: Exchange) -> Response:
    """GET /v1/jobs"""
    as_of = await exchange.read()
    query = exchange.query
    views, following = exchange.service.jobs(
        states=query.get("state", ()),
        user=query.get("user"),
        queue=query.get("queue"),
        name=query.get("name"),
        is_overdue=query.get("overdue", False),
        limit=query.get("limit", PAGE_DEFAULT),
        after=None if "after" not in query else str(query["after"]),
    )
    shown = sparse(views, query.get("fields"))
    return exchange.answer({"jobs": shown, "next": following}, as_of)


async def show_job(exchange: Exchange) -> Response:
    """GET /v1/jobs/{id}"""
    as_of = await exchange.read()
    view = _job(exchange)
    headers = {"ETag": f'"{view["version"]}"'}
    [shown] = sparse([view], exchange.query.get("fields"))
    return exchange.answer(shown, as_of, headers=headers)


async def list_workers(exchange: Exchange) -> Response:
    """GET /v1/jobs/{id}/workers"""
    as_of = await exchange.read()
    _job(exchange)
    views = exchange.service.workers(str(exchange.target()))
    return exchange.answer({"workers": _found(exchange, views)}, as_of)


async def list_attempts(exchange: Exchange) -> Response:
    """GET /v1/jobs/{id}/attempts"""
    as_of = await exchange.read()
    _job(exchange)
    views = exchange.service.attempts(str(exchange.target()))
    return exchange.answer({"attempts": _found(exchange, views)}, as_of)


async def list_events(exchange: Exchange) -> Response:
    """GET /v1/jobs/{id}/events"""
    as_of = await exchange.read()
    _job(exchange)
    views = exchange.service.history(str(exchange.target()))
    return exchange.answer({"events": _found(exchange, views)}, as_of)


async def show_why(exchange: Exchange) -> Response:
    """GET /v1/jobs/{id}/why: how it came to be as it is, and what it waits for."""
    as_of = await exchange.read()
    view = _job(exchange)
    target = exchange.target()
    if target.number is not None:
        view = _found(exchange, exchange.service.attempts(str(target)))[0]
    elif target.task is not None:
        view = _found(exchange, exchange.service.workers(str(target)))[0]
    shown: View = {name: view[name] for name in schemas.WHY_FIELDS if name in view}
    return exchange.answer(shown, as_of)


async def kill(exchange: Exchange) -> Response:
    """POST /v1/jobs/{id}:kill"""
    version = if_match(exchange.request)
    why = read_why(await read_body(exchange.request))
    target = exchange.target()
    answer, index = await exchange.service.kill(
        str(target), user=exchange.principal.user, why=why, if_version=version
    )
    as_of = await exchange.read_own_write(index)
    document = {"job": answer.job, "is_done": answer.is_done, "message": answer.message}
    return exchange.answer(document, as_of)


def _job(exchange: Exchange) -> View:
    target = exchange.target()
    view = exchange.service.job(target.job)
    if view is None:
        raise not_found(f"job {target.job}", hint="`pertinax jobs` lists what there is")
    return view


def _found(exchange: Exchange, views: list[View] | None) -> list[View]:
    if not views and exchange.target().task is not None:
        raise not_found(str(exchange.target()))
    return views or []


def attempt_of(exchange: Exchange, number: int | None) -> View:
    """The attempt whose output is meant: the named one, else the newest that was placed.

    Raises Problem 404, or 409 `several_workers` when the job has more than one.
    """
    target = exchange.target()
    _job(exchange)
    number = number if number is not None else target.number
    views = _found(exchange, exchange.service.attempts(str(target)))
    if len({view["id"].partition("#")[0] for view in views}) > 1:
        raise Problem(
            409,
            "several_workers",
            f"{target} has several workers",
            hint="name one, such as " + quote(views[0]["id"].partition("#")[0], safe="/"),
        )
    if number is not None:
        views = [view for view in views if view["number"] == number]
        if not views:
            raise not_found(f"attempt {number} of {target}", code="unknown_attempt")
    begun = [view for view in views if _may_have_output(view)]
    if not begun:
        raise Problem(409, "not_started", f"{target} has not started yet", hint="try again later")
    return begun[-1]


def _may_have_output(view: dict[str, Any]) -> bool:
    return view["uid"] is not None and view["phase"] != "Pending"


_ID: Final = "/v1/jobs/{id}"

OPERATIONS: Final = (
    Operation(
        "POST",
        "/v1/jobs",
        submit,
        "Submit one job, or up to 10,000 as {jobs: […]}, all or nothing.",
        (FIELDS,),
        is_leaders=True,
        body="Submit",
        answer="Submitted",
        status=201,
    ),
    Operation("GET", "/v1/jobs", list_jobs, "Jobs, newest first.", LIST_PARAMS, answer="JobPage"),
    Operation("GET", _ID, show_job, "One job.", (FIELDS, *READ_PARAMS), answer="Job"),
    Operation("GET", f"{_ID}/workers", list_workers, "Its workers.", READ_PARAMS, answer="Workers"),
    Operation(
        "GET",
        f"{_ID}/attempts",
        list_attempts,
        "Attempts of a job or worker, by number.",
        READ_PARAMS,
        answer="Attempts",
    ),
    Operation(
        "GET",
        f"{_ID}/events",
        list_events,
        "History of a job, worker or attempt.",
        READ_PARAMS,
        answer="Events",
    ),
    Operation(
        "GET", f"{_ID}/why", show_why, "Why it is as it is.", READ_PARAMS, answer="WhyAnswer"
    ),
    *(
        Operation(
            "POST",
            path,
            kill,
            "End a job, worker or attempt for good; If-Match insists on a version.",
            is_leaders=True,
            body="Why",
            answer="Killed",
        )
        for path in (f"{_ID}:kill", "/v1/workers/{id}:kill", "/v1/attempts/{id}:kill")
    ),
)
