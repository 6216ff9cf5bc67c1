"""Answers that go on until either side ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class Stream(Response):
    """Sends `body` piece by piece, and closes it when it ends or the caller goes away.

    Starlette's own leaves a generator that was cut off to the garbage collector; here what is
    behind it (a connection of an agent, a place among the watchers) is given back at once.
    """

    def __init__(
        self, body: AsyncGenerator[bytes, None], *, media_type: str, headers: Mapping[str, str]
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        self._pieces = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        try:
            await until_gone(self._send(send), receive)
        finally:
            await self._pieces.aclose()

    async def _send(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do `work`, but give it up when the caller goes away: nothing is followed for nobody.

    Call it once the request's body was read: what comes then is only the end of the connection.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_wait_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
