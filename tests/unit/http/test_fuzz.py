"""Any request gets an answer of ours: never a fault, never a change for what is no request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.http.app import make_app
from scheduler.http.auth import AdminTokenAuth
from scheduler.http.forward import Forwarder

from .asgi import Answer, call
from .fake import FakeService, attempt_view, job_view

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
KNOWN = st.sampled_from(
    [
        "kind",
        "name",
        "tasks",
        "jobs",
        "main",
        "command",
        "resources",
        "cpu",
        "retry",
        "env",
        "after",
    ]
)
DOCUMENTS = st.recursive(
    VALUES, lambda inner: st.dictionaries(KNOWN, inner, max_size=4), max_leaves=20
)
PATHS = st.sampled_from(
    ["/v1/jobs", "/v1/jobs/1", "/v1/jobs/1/logs", "/v1/jobs/1/attempts", "/v1/jobs/1:kill",
     "/v1/nodes/a1:cordon", "/v1/cluster/config", "/v1/nodes", "/v1/jobs/%31%2Fmain/why"]
)  # fmt: skip
#: What servers let through: their parsers refuse control characters before the application.
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=24)


def ask(method: str, target: str, **options: Any) -> tuple[Answer, FakeService]:
    service = FakeService()
    service.known_jobs = {1: job_view(1)}
    service.known_attempts = {1: [attempt_view("1/main/0#1", phase="Failed")]}
    service.known_nodes = {"a1": {"name": "a1", "unschedulable": False}}
    app = make_app(service, AdminTokenAuth("secret"), forwarder=Forwarder(name="c1", tls=None))
    return asyncio.run(call(app, method, target, **options)), service


def is_ours(answer: Answer) -> None:
    assert answer.status != 500, answer.body
    if answer.status >= 400:
        assert answer.code
        assert answer.headers["content-type"] == "application/problem+json"


@given(DOCUMENTS)
@settings(max_examples=30)
def test_any_document_is_taken_or_refused_with_its_mistakes(document: Any) -> None:
    answer, service = ask("POST", "/v1/jobs", body=json.dumps(document).encode())
    is_ours(answer)
    assert (answer.status == 201) == ("submit" in dict(service.asked))


@given(st.binary(max_size=64) | PRINTABLE.map(str.encode), PATHS)
@settings(max_examples=30)
def test_any_bytes_as_a_body_are_answered(body: bytes, path: str) -> None:
    for method in ("POST", "PATCH"):
        is_ours(ask(method, path, body=body)[0])


@given(PATHS, PRINTABLE, st.sampled_from(["GET", "POST", "PUT", "HEAD", "DELETE", "BREW"]))
@settings(max_examples=30)
def test_any_query_and_method_is_answered(path: str, query: str, method: str) -> None:
    answer, _ = ask(method, f"{path}?{query.replace('#', '')}")
    if method != "HEAD":
        is_ours(answer)


@given(PRINTABLE.filter(lambda text: "?" not in text and "#" not in text))
@settings(max_examples=30)
def test_any_path_is_answered(path: str) -> None:
    is_ours(ask("GET", f"/v1/{path}")[0])
    is_ours(ask("GET", f"/v1/jobs/{path}/why")[0])


@given(
    st.dictionaries(
        st.sampled_from(["Idempotency-Key", "If-Match", "Last-Event-ID", "Pertinax-User",
                         "Authorization", "Content-Length", "Content-Type"]),
        st.text(st.characters(max_codepoint=255, exclude_categories=("Cc",)), max_size=12),
    )
)  # fmt: skip
@settings(max_examples=30)
def test_any_headers_are_answered(headers: dict[str, str]) -> None:
    body = b'{"tasks": {"main": {"command": ["true"]}}}'
    for path in ("/v1/jobs", "/v1/jobs/1:kill"):
        is_ours(ask("POST", path, body=body if path == "/v1/jobs" else b"", headers=headers)[0])
