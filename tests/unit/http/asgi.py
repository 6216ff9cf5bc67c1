"""Calling an ASGI application without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def code(self) -> str:
        return str(self.json()["code"])


async def call(
    app: ASGIApp,
    method: str,
    target: str,
    *,
    body: bytes | Sequence[bytes] | dict[str, Any] = b"",
    headers: dict[str, str] | None = None,
    token: str | None = "secret",
    until: bytes | None = None,
) -> Answer:
    """One request; with `until`, the caller goes away once the body holds that."""
    path, _, query = target.partition("?")
    found = dict(headers or {})
    if token is not None:
        found.setdefault("Authorization", f"Bearer {token}")
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    parts = [body] if isinstance(body, bytes) else list(body)
    messages: list[Message] = [
        {"type": "http.request", "body": part, "more_body": at < len(parts) - 1}
        for at, part in enumerate(parts)
    ]
    answer = Answer()
    gone = asyncio.Event()

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
        else:
            answer.body += message.get("body", b"")
            answer.is_complete = not message.get("more_body", False)
            if answer.is_complete or (until is not None and until in answer.body):
                gone.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "https",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in found.items()],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 443),
        "state": {},
    }
    await asyncio.wait_for(app(scope, receive, send), 30)
    return answer
