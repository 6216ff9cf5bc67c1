"""The unix socket towards the agent: one attached connection, answers in the order of requests."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from agent.keeper.errors import TOO_LARGE
from agent.keeper.loop import READ, WRITE, Loop
from agent.keeper.wire import Reader, WireError, encode

#: Most bytes waiting for one agent. Above it the connection is closed; the agent finds everything
#: again in `list`.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 256 * 1024
_BACKLOG: Final = 8

Message = dict[str, Any]


class Connection:
    """One client. Loop thread only."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_message: Callable[[Connection, Message], None],
        on_close: Callable[[Connection], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._on_message = on_message
        self._on_close = on_close
        self._reader = Reader()
        self._out = bytearray()
        #: Answers not sent yet, in the order of their requests; None until they are known.
        self._slots: deque[list[Message | None]] = deque()
        self._is_flushing = False
        self.is_open = True
        loop.watch(sock.fileno(), READ, self._on_ready)

    def reserve(self) -> Callable[[Message], None]:
        """Take the next place among the answers; call the result once with the answer."""
        slot: list[Message | None] = [None]
        self._slots.append(slot)

        def fill(answer: Message) -> None:
            slot[0] = answer
            while self._slots and (ready := self._slots[0][0]) is not None:
                self._slots.popleft()
                self.send(ready)

        return fill

    def send(self, message: Message) -> None:
        """Queue a message; it goes out at the end of the turn."""
        if not self.is_open:
            return
        try:
            self._out += encode(message)
        except WireError as error:
            facts = {"is": "answer", "id": message.get("id"), "ok": False}
            self._out += encode(facts | {"code": TOO_LARGE, "message": str(error)})
        if len(self._out) > WAITING_BYTES_MAX:
            self.close()
        elif not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Close at once. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._on_close(self)

    def flush_blocking(self) -> None:
        """Send what waits before the process leaves, for at most a second."""
        if self.is_open:
            with contextlib.suppress(OSError):
                self._socket.settimeout(1.0)
                self._socket.sendall(self._out)
            self._out.clear()

    def _on_ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & READ and self.is_open:
            self._receive()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            messages = self._reader.feed(data)
        except WireError:
            self.close()
            return
        for message in messages:
            if self.is_open:
                self._on_message(self, message)

    def _flush(self) -> None:
        self._is_flushing = False
        if not self.is_open:
            return
        try:
            while self._out:
                sent = self._socket.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            self._loop.watch(self._socket.fileno(), READ | WRITE, self._on_ready)
            return
        except OSError:
            self.close()
            return
        self._loop.watch(self._socket.fileno(), READ, self._on_ready)


class Server:
    """Listens, and knows which connection is the attached agent. Loop thread only."""

    def __init__(
        self, loop: Loop, path: Path, on_message: Callable[[Connection, Message], None]
    ) -> None:
        self._loop = loop
        self._path = path
        self._on_message = on_message
        self._connections: set[Connection] = set()
        self.attached: Connection | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        old_umask = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(old_umask)
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        loop.watch(self._socket.fileno(), READ, self._on_connect)

    def attach(self, connection: Connection) -> None:
        """Make `connection` the agent's; an older one is closed."""
        older, self.attached = self.attached, connection
        if older is not None and older is not connection:
            older.close()

    def emit(self, event: Message) -> bool:
        """Send an event to the attached agent; False when there is none."""
        if self.attached is None:
            return False
        self.attached.send(event)
        return True

    def close(self) -> None:
        """Stop listening and close all connections, after what waits was sent."""
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._path.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.flush_blocking()
            connection.close()

    def _on_connect(self, _events: int) -> None:
        try:
            sock, _ = self._socket.accept()
        except OSError:
            return  # gone again, or no descriptor left for now: it stays in the backlog
        sock.setblocking(False)
        self._connections.add(Connection(self._loop, sock, self._on_message, self._forget))

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self.attached is connection:
            self.attached = None
