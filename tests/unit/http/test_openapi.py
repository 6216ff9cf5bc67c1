"""The description of the API: made from what runs, and complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from scheduler.http.app import OPERATIONS

from .asgi import call


def references(part: Any) -> set[str]:
    if isinstance(part, dict):
        found = {part["$ref"]} if "$ref" in part else set()
        return found.union(*map(references, part.values()))
    if isinstance(part, list):
        return set().union(*map(references, part))
    return set()


async def test_every_operation_is_described_and_every_reference_resolves(app: ASGIApp) -> None:
    document = (await call(app, "GET", "/openapi.json", token=None)).json()
    described = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert described == {(one.method, one.path) for one in OPERATIONS}
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


async def test_operation_ids_are_unique(app: ASGIApp) -> None:
    document = (await call(app, "GET", "/openapi.json", token=None)).json()
    ids = [one["operationId"] for item in document["paths"].values() for one in item.values()]
    assert sorted(ids) == sorted(set(ids))


async def test_each_described_parameter_is_taken_and_no_other(app: ASGIApp) -> None:
    document = (await call(app, "GET", "/openapi.json", token=None)).json()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            answer = await call(app, method.upper(), re.sub("{[a-z]+}", "1", path) + "?zzz=1")
            assert (answer.status, answer.code) == (400, "bad_query"), path
            hint = answer.json()["hint"]
            for parameter in operation["parameters"]:
                assert parameter["in"] == "path" or parameter["name"] in hint


async def test_the_description_is_json_of_a_bounded_size(app: ASGIApp) -> None:
    body = (await call(app, "GET", "/openapi.json", token=None)).body
    assert json.loads(body)["openapi"].startswith("3.")
    assert len(body) < 200_000


def test_the_page_for_people_lists_every_operation_and_no_other() -> None:
    text = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
    rows = re.findall(r"^\| ([A-Z]+) \| `(/[^`]*)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted((one.method, one.path) for one in OPERATIONS)
