"""Controllers over fake services on the loopback, in one thread of their own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

from scheduler.client import Context
from scheduler.client.client import Client
from scheduler.http.app import make_app
from scheduler.http.auth import AdminTokenAuth
from scheduler.http.forward import Forwarder
from scheduler.http.server import listen, serve
from tests.unit.http.fake import FakeService

TOKEN = "secret"


class Controllers:
    """Two of them; the first leads. They share what they know, as replicas do."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.services: list[FakeService] = []
        self.urls: list[str] = []
        self._stops: list[asyncio.Event] = []
        self._ends: list[Future[None]] = []
        for name in ("c1", "c2"):
            self._start(name)
        leader, follower = self.services
        for name in ("known_jobs", "known_attempts", "keys", "events", "log"):
            setattr(follower, name, getattr(leader, name))
        self.lead(0)

    def _start(self, name: str) -> None:
        service = FakeService()
        listener = listen("127.0.0.1", 0)
        self.services.append(service)
        self.urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
        stop = asyncio.Event()
        self._stops.append(stop)
        serving = self._serve(name, service, listener, stop)
        self._ends.append(asyncio.run_coroutine_threadsafe(serving, self.loop))

    async def _serve(
        self, name: str, service: FakeService, listener: socket.socket, stop: asyncio.Event
    ) -> None:
        forwarder = Forwarder(name=name, tls=None)
        app = make_app(service, AdminTokenAuth(TOKEN), forwarder=forwarder)
        async with serve(app, listener, cert=None, key=None):
            await stop.wait()
        await forwarder.close()

    def lead(self, number: int | None) -> None:
        """The controller at `number` leads from now on; None: nobody."""
        for at, service in enumerate(self.services):
            service.is_leader = at == number
            service.leader_name = None if number is None else f"c{number + 1}"
            service.leader_url = None if number is None else self.urls[number]

    def stop(self, number: int) -> None:
        """End one; its streams and connections end with it."""
        self.services[number].is_stopping = True
        self.do(self.services[number].news.set)
        self.do(self._stops[number].set)
        self._ends[number].result(30)

    def do(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop; returns once it ran."""
        done: Future[None] = Future()
        self.loop.call_soon_threadsafe(lambda: done.set_result(action()))
        done.result(30)

    def close(self) -> None:
        for number in range(len(self.services)):
            self.stop(number)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()

    def client(self, *, first: int = 0, deadline_s: float = 20.0) -> Client:
        urls = (*self.urls[first:], *self.urls[:first])
        return Client(Context(urls, token=TOKEN, user="ana", deadline_s=deadline_s))
