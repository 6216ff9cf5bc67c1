"""/openapi.json: made from the operations and the schemas, so it cannot drift from them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import msgspec
from starlette.responses import Response

from scheduler.http import schemas
from scheduler.http.exchange import Exchange, Operation

#: Version of the API, as in its paths.
VERSION: Final = "1"
_REF: Final = "#/components/schemas/{name}"

#: Bodies of requests by the name that operations use. A job document's fields are many and checked
#: one by one with their paths (422); `pertinax validate` knows them all.
_BODIES: Final[dict[str, Any]] = {
    "JobDocument": {
        "type": "object",
        "description": "A job as in specification files (docs/http-api.md).",
        "required": ["tasks"],
        "properties": {
            "kind": {"const": "job"},
            "name": {"type": "string"},
            "tasks": {"type": "object", "additionalProperties": {"type": "object"}},
        },
    },
    "Submit": {
        "oneOf": [
            {"$ref": _REF.format(name="JobDocument")},
            {
                "type": "object",
                "required": ["jobs"],
                "additionalProperties": False,
                "properties": {
                    "jobs": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": 10_000,
                        "items": {"$ref": _REF.format(name="JobDocument")},
                    }
                },
            },
        ]
    },
    "Submitted": {
        "type": "object",
        "description": "`job` of a single submit, `jobs` of {jobs: […]}.",
        "required": ["as_of"],
        "properties": {
            "job": {"$ref": _REF.format(name="Job")},
            "jobs": {"type": "array", "items": {"$ref": _REF.format(name="Job")}},
            "as_of": {"$ref": _REF.format(name="AsOfView")},
        },
    },
    "Why": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"why": {"type": "string", "maxLength": 4096}},
    },
    "SettingsChange": {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"type": ["integer", "string"]},
    },
}


def document(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """The OpenAPI 3.1 description of `operations`."""
    names = list(schemas.ANSWERS)
    refs, components = msgspec.json.schema_components(
        list(schemas.ANSWERS.values()), ref_template=_REF
    )
    found = {**components, **_BODIES}
    for name, ref in zip(names, refs, strict=True):
        found.setdefault(name, ref)
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pertinax", "version": VERSION, "license": {"name": "Apache-2.0"}},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(found.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "parameters": _parameters(operation),
        "responses": _responses(operation),
    }
    if operation.body:
        found["requestBody"] = {
            "required": operation.body == "Submit",
            "content": {"application/json": {"schema": {"$ref": _REF.format(name=operation.body)}}},
        }
    if not operation.needs_token:
        found["security"] = []
    return found


def _operation_id(operation: Operation) -> str:
    words = re.findall(r"[a-z]+", operation.path.removeprefix("/v1").lower())
    return "_".join([operation.method.lower(), *words])


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": "percent-encoded",
            "schema": {"type": "string"},
        }
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    found += (
        {
            "name": param.name,
            "in": "query",
            "description": param.doc,
            "schema": dict(param.schema),
            **({"style": "form", "explode": False} if param.schema["type"] == "array" else {}),
        }
        for param in operation.all_params
    )
    return found


def _responses(operation: Operation) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if operation.answer:
        schema = {"schema": {"$ref": _REF.format(name=operation.answer)}}
    problem = {
        "description": "An error; `code` is stable.",
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
    return {
        str(operation.status): {
            "description": operation.summary,
            "content": {operation.media_type: schema},
        },
        "default": problem,
    }


async def show(exchange: Exchange) -> Response:
    """GET /openapi.json"""
    del exchange
    return Response(_encoded(), media_type="application/json")


@cache
def _encoded() -> bytes:
    from scheduler.http.app import OPERATIONS as ALL

    return msgspec.json.encode(document(ALL))


OPERATIONS: Final = (
    Operation("GET", "/openapi.json", show, "This description.", needs_token=False),
)
