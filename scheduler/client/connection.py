"""Sending one call to one controller with the standard library's HTTP client. Blocking.

A connection is kept for each controller and used again. Used by the thread that owns the client.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from scheduler.client.calls import Call
from scheduler.client.context import Context
from scheduler.client.errors import ClientError
from scheduler.client.failover import Answer, Broken
from scheduler.protocol.peers import is_agent

#: A stream that says nothing for this long is broken: controllers send a sign of life every 5 s.
STREAM_SILENCE_MAX_S: Final = 20.0
#: Bytes read of a stream at once.
READ_BYTES: Final = 64 * 1024
#: Largest answer that is read, bytes.
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024


class BadContext(ClientError):
    """The context cannot be used: a URL or the CA file is wrong."""

    code = "bad_context"


class Body:
    """The body of an answer that goes on, and the connection it comes over. Close it."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._response = response

    def read(self) -> bytes:
        """What is there, or the next that comes; nothing once it ended or broke off."""
        try:
            return self._response.read1(READ_BYTES)
        except (OSError, http.client.HTTPException):
            return b""

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class Connections:
    """The connections of one client, at most one kept open for each controller."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ssl: ssl.SSLContext | None = None
        self._kept: dict[str, http.client.HTTPConnection] = {}
        self.headers = {"User-Agent": "pertinax", "Accept": "application/json"}
        if context.token:
            self.headers["Authorization"] = f"Bearer {context.token}"
        if context.user:
            self.headers["Pertinax-User"] = context.user

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()

    def send(self, url: str, call: Call, timeout_s: float) -> Answer | Broken:
        """One exchange; the answer is complete."""
        kept = self._kept.pop(url, None)
        if kept is not None:
            outcome = self._exchange(url, kept, call, timeout_s)
            # The controller may have closed it while it was idle: that says nothing of the call.
            if isinstance(outcome, Answer) or not outcome.reason.startswith(_CLOSED):
                return outcome
        connection = self._connect(url, timeout_s)
        if isinstance(connection, Broken):
            # Or it died with the call in its hands.
            return Broken(connection.reason, is_sent=kept is not None)
        return self._exchange(url, connection, call, timeout_s)

    def open_stream(
        self, url: str, call: Call, timeout_s: float
    ) -> tuple[Answer | Broken, Body | None]:
        """The head of an answer, and its body to read when it is a success. Close the body."""
        connection = self._connect(url, timeout_s)
        if isinstance(connection, Broken):
            return connection, None
        try:
            response = _ask(connection, call, self.headers)
            if response.status >= 400:
                answer = _whole(response)
                connection.close()
                return answer, None
            if connection.sock is not None:
                connection.sock.settimeout(STREAM_SILENCE_MAX_S)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return Broken(_reason(url, error), is_sent=True), None
        return Answer(response.status, _headers(response)), Body(connection, response)

    def _exchange(
        self, url: str, connection: http.client.HTTPConnection, call: Call, timeout_s: float
    ) -> Answer | Broken:
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            response = _ask(connection, call, self.headers)
            answer = _whole(response)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return Broken(_reason(url, error), is_sent=True)
        if response.will_close:
            connection.close()
        else:
            self._kept[url] = connection
        return answer

    def _connect(self, url: str, timeout_s: float) -> http.client.HTTPConnection | Broken:
        """A new connection; the time limit covers TCP and the TLS handshake."""
        parts = urlsplit(url)
        limit_s = min(timeout_s, self._context.connect_timeout_s)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.netloc, timeout=limit_s, context=self._ssl_context()
            )
        elif parts.scheme == "http":
            connection = http.client.HTTPConnection(parts.netloc, timeout=limit_s)
        else:
            raise BadContext(f"{url!r} is no http or https address")
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            return Broken(f"{url}: its certificate is not trusted: {error.verify_message}", False)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return Broken(_reason(url, error), is_sent=False)
        if isinstance(connection.sock, ssl.SSLSocket) and is_agent(connection.sock.getpeercert()):
            connection.close()
            return Broken(f"{url}: the certificate of an agent answers there", is_sent=False)
        connection.sock.settimeout(timeout_s)
        return connection

    def _ssl_context(self) -> ssl.SSLContext:
        if self._ssl is None:
            try:
                self._ssl = ssl.create_default_context(cafile=self._context.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise BadContext(
                    f"cannot use the CA file {self._context.ca_file}: {error}"
                ) from error
        return self._ssl


_CLOSED: Final = "closed: "


def _reason(url: str, error: Exception) -> str:
    if isinstance(error, (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected)):
        return f"{_CLOSED}{url} closed the connection"
    if isinstance(error, TimeoutError):
        return f"{url} did not answer in time"
    return f"{url}: {error or type(error).__name__}"


def _ask(
    connection: http.client.HTTPConnection, call: Call, common: dict[str, str]
) -> http.client.HTTPResponse:
    body = call.body if call.is_change else None
    connection.request(call.method, call.target, body=body, headers={**common, **call.headers})
    return connection.getresponse()


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _whole(response: http.client.HTTPResponse) -> Answer:
    body = response.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    return Answer(response.status, _headers(response), body)
