"""One connection on the agents' port: bytes in, messages out, and how it ended.

A stranger's bytes can only end his own connection. Whether a close counts as the peer's matters
(specification 1.6): a FIN or RST of a living session may end jobs, everything else is silence.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Final, Protocol, cast

from scheduler.controller import logs
from scheduler.controller.certs import common_name
from scheduler.protocol.errors import DecodeError
from scheduler.protocol.framing import (
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    FrameReader,
    encode_frame,
)
from scheduler.protocol.messages import (
    AgentMessage,
    Message,
    decode_agent_message,
    encode_message,
)

#: Bytes waiting for one peer. Above it the link is cut and the node resumes from state: an
#: unbounded buffer would let one stalled agent take the leader's memory.
SEND_BYTES_MAX: Final = 16 * 1024 * 1024
#: Above this many waiting bytes, orders are held back until the peer has read.
SEND_BYTES_HIGH: Final = 1024 * 1024
#: A connection that has not said who it is within this time is closed.
HELLO_TIMEOUT_S: Final = 10.0


class Close(enum.Enum):
    """How a link ended."""

    #: The peer's FIN or RST: its process is gone, or it left.
    BY_PEER = "by_peer"
    #: This controller closed it.
    BY_US = "by_us"
    #: The network gave up (timeout, unreachable) or the TLS layer failed: says nothing of the peer.
    FAILED = "failed"


class LinkOwner(Protocol):
    """Who is told what a link brings. Event loop."""

    def on_open(self, link: AgentLink) -> bool:
        """A new link; False refuses it."""
        ...

    def on_message(self, link: AgentLink, message: AgentMessage) -> None: ...

    def on_writable(self, link: AgentLink) -> None:
        """The peer has read what was waiting for it."""
        ...

    def on_closed(self, link: AgentLink, how: Close) -> None:
        """Called once, for links that `on_open` took."""
        ...

    def on_garbage(self, link: AgentLink, error: DecodeError) -> None: ...


class AgentLink(asyncio.Protocol):
    """A connection that an agent (or somebody) opened. Event loop only."""

    def __init__(self, owner: LinkOwner, *, is_named_by_tls: bool) -> None:
        self._owner = owner
        self._reader = FrameReader(bytes_max=HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._is_taken = False
        self._is_closed_by_us = False
        self._is_named_by_tls = is_named_by_tls
        #: Common name of the peer's certificate; empty without TLS.
        self.certificate_name = ""
        self.peer = ""
        self.is_writable = True
        #: Set when it has ended.
        self.how_closed: Close | None = None
        #: What the owner keeps with it: the session it belongs to.
        self.session: object | None = None
        #: When set, messages go there instead of to the owner: a bulk stream's.
        self.sink: Callable[[AgentMessage], None] | None = None
        self.on_sink_closed: Callable[[Close], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether what is sent now can still arrive."""
        transport = self._transport
        return transport is not None and not transport.is_closing()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's, so this cannot be asserted.
        stream = self._transport = cast("asyncio.Transport", transport)
        if self._is_named_by_tls:
            self.certificate_name = common_name(stream.get_extra_info("peercert"))
        self.peer = str(stream.get_extra_info("peername"))
        stream.set_write_buffer_limits(high=SEND_BYTES_HIGH)
        self._is_taken = self._owner.on_open(self)
        if not self._is_taken:
            self.abort()
            return
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(HELLO_TIMEOUT_S, self._cut_if_unnamed)

    def data_received(self, data: bytes) -> None:
        if self._is_closed_by_us:
            return  # What still arrives after our close belongs to no session any more.
        try:
            for body in self._reader.feed(data):
                message = decode_agent_message(body)
                if self.sink is not None:
                    self.sink(message)
                else:
                    self._owner.on_message(self, message)
                if self._is_closed_by_us:
                    return
        except DecodeError as error:
            self._owner.on_garbage(self, error)
            self.abort()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._owner.on_writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_hello_timer()
        how = self.how_closed = self._how_it_ended(exc)
        if self.on_sink_closed is not None:
            self.on_sink_closed(how)
        if self._is_taken:
            self._is_taken = False
            self._owner.on_closed(self, how)

    # What the owner calls.

    def named(self) -> None:
        """The peer has said who it is and was believed: larger frames are taken from now on."""
        self._stop_hello_timer()
        self._reader.bytes_max = FRAME_BYTES_MAX

    def send(self, message: Message) -> None:
        """Queue one message; cuts the link when the peer does not read. No-op on a closed link."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(encode_frame(encode_message(message)))
        if transport.get_write_buffer_size() > SEND_BYTES_MAX:
            logs.warning("agent_does_not_read", peer=self.peer, name=self.certificate_name)
            self.abort()

    def pause_reading(self) -> None:
        """Take nothing more from the peer for now. Idempotent."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on after `pause_reading`. Idempotent."""
        if self.is_open and self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def close(self, last: Message | None = None) -> None:
        """Send `last`, then close; the close is ours and says nothing of the peer."""
        if last is not None:
            self.send(last)
        self._is_closed_by_us = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, dropping what was not sent yet."""
        self._is_closed_by_us = True
        if self._transport is not None:
            self._transport.abort()

    def _how_it_ended(self, exc: Exception | None) -> Close:
        if self._is_closed_by_us:
            return Close.BY_US
        if exc is None or isinstance(exc, (ConnectionResetError, BrokenPipeError)):
            return Close.BY_PEER
        return Close.FAILED

    def _cut_if_unnamed(self) -> None:
        self._hello_timer = None
        logs.info("agent_link_without_hello", peer=self.peer)
        self.abort()

    def _stop_hello_timer(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None
