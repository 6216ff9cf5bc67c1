"""The agents' port over real sockets: TLS, names, and how a connection's end is told apart."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

from scheduler.controller.certs import client_context, issue, make_ca, server_context
from scheduler.controller.wire import AgentLink, Close
from scheduler.protocol.errors import DecodeError
from scheduler.protocol.framing import encode_frame
from scheduler.protocol.messages import AgentMessage, ComeBack, Goodbye, encode_message

#: Generous: passed only when something is broken.
DEADLINE_S = 20.0


@dataclass
class Owner:
    """Takes links in and notes what becomes of them."""

    links: list[AgentLink] = field(default_factory=list)
    messages: list[AgentMessage] = field(default_factory=list)
    closes: list[Close] = field(default_factory=list)
    garbage: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def on_open(self, link: AgentLink) -> bool:
        self.links.append(link)
        self.news.set()
        return True

    def on_message(self, link: AgentLink, message: AgentMessage) -> None:
        self.messages.append(message)
        self.news.set()

    def on_writable(self, link: AgentLink) -> None: ...

    def on_closed(self, link: AgentLink, how: Close) -> None:
        self.closes.append(how)
        self.news.set()

    def on_garbage(self, link: AgentLink, error: DecodeError) -> None:
        self.garbage += 1

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.news.clear()
                await self.news.wait()


@dataclass
class Tls:
    server: ssl.SSLContext
    agent: ssl.SSLContext
    stranger: ssl.SSLContext


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder: Path = tmp_path_factory.mktemp("tls")
    ca = make_ca(folder)
    controller, agent = issue(folder, "controller:c1"), issue(folder, "agent:a1")
    return Tls(
        server_context(ca=ca.cert, cert=controller.cert, key=controller.key),
        client_context(ca=ca.cert, cert=agent.cert, key=agent.key),
        client_context(ca=ca.cert),
    )


Scenario = Callable[[Owner, int], Awaitable[None]]


def serve(scenario: Scenario, *, context: ssl.SSLContext | None, is_uvloop: bool) -> None:
    async def whole() -> None:
        owner = Owner()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: AgentLink(owner, is_named_by_tls=context is not None),
            "127.0.0.1",
            0,
            ssl=context,
        )
        try:
            await scenario(owner, server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for link in owner.links:
                link.abort()
            await owner.until(lambda: len(owner.closes) == len(owner.links))

    factory = uvloop.new_event_loop if is_uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(whole())


def connect(port: int, context: ssl.SSLContext | None) -> socket.socket:
    """A blocking client socket; its handshake needs the server's loop, so call it in a thread."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    if context is None:
        return raw
    try:
        return context.wrap_socket(raw)
    except OSError:
        raw.close()
        raise


def reset(sock: socket.socket) -> None:
    """Close it with an RST, as the kernel does for a killed process with unread input."""
    raw = sock
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


both_loops = pytest.mark.parametrize("is_uvloop", [False, True], ids=["asyncio", "uvloop"])


@both_loops
def test_the_certificates_name_reaches_the_owner(tls: Tls, is_uvloop: bool) -> None:
    async def scenario(owner: Owner, port: int) -> None:
        sock = await asyncio.to_thread(connect, port, tls.agent)
        with sock:
            await owner.until(lambda: owner.links)
            assert owner.links[0].certificate_name == "agent:a1"
            await asyncio.to_thread(
                sock.sendall, encode_frame(encode_message(Goodbye(mode="restart")))
            )
            await owner.until(lambda: owner.messages)
            assert owner.messages == [Goodbye(mode="restart")]

    serve(scenario, context=tls.server, is_uvloop=is_uvloop)


@both_loops
def test_a_stranger_without_a_certificate_never_reaches_the_owner(
    tls: Tls, is_uvloop: bool
) -> None:
    async def scenario(owner: Owner, port: int) -> None:
        def talk() -> bytes:
            with connect(port, tls.stranger) as sock:
                sock.sendall(b"\0\0\0\1\x80")
                return sock.recv(4096)

        try:
            answer = await asyncio.to_thread(talk)
        except OSError:
            answer = b""
        assert answer == b""
        assert owner.messages == []

    serve(scenario, context=tls.server, is_uvloop=is_uvloop)


@both_loops
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("end", ["fin", "rst"])
def test_the_end_of_the_peers_process_is_told_as_its_close(
    tls: Tls, is_uvloop: bool, is_tls: bool, end: str
) -> None:
    async def scenario(owner: Owner, port: int) -> None:
        sock = await asyncio.to_thread(connect, port, tls.agent if is_tls else None)
        await owner.until(lambda: owner.links)
        # Neither says anything in TLS before: so ends a process that was killed.
        sock.close() if end == "fin" else reset(sock)
        await owner.until(lambda: owner.closes)
        assert owner.closes == [Close.BY_PEER]

    serve(scenario, context=tls.server if is_tls else None, is_uvloop=is_uvloop)


@both_loops
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_our_own_close_sends_its_last_word_and_is_told_as_ours(
    tls: Tls, is_uvloop: bool, is_tls: bool
) -> None:
    async def scenario(owner: Owner, port: int) -> None:
        sock = await asyncio.to_thread(connect, port, tls.agent if is_tls else None)
        with sock:
            await owner.until(lambda: owner.links)
            last = ComeBack(after_ms=7)
            owner.links[0].close(last)

            def read_all() -> bytes:
                data = b""
                while chunk := sock.recv(4096):
                    data += chunk
                return data

            assert await asyncio.to_thread(read_all) == encode_frame(encode_message(last))
        await owner.until(lambda: owner.closes)
        assert owner.closes == [Close.BY_US]

    serve(scenario, context=tls.server if is_tls else None, is_uvloop=is_uvloop)


@both_loops
def test_plain_bytes_on_the_tls_port_end_their_own_connection(tls: Tls, is_uvloop: bool) -> None:
    async def scenario(owner: Owner, port: int) -> None:
        def talk() -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as raw:
                raw.sendall(b"\x00\x00\x00\x10" + b"\x80" * 16)
                try:
                    return raw.recv(4096)
                except OSError:
                    return b""

        answer = await asyncio.to_thread(talk)
        assert answer == b"" or answer[:1] == b"\x15"  # nothing, or a TLS alert
        sock = await asyncio.to_thread(connect, port, tls.agent)
        with sock:
            await owner.until(lambda: owner.links)

    serve(scenario, context=tls.server, is_uvloop=is_uvloop)
