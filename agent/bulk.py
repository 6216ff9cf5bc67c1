"""Log streams on connections of their own, so that a slow reader never delays a heartbeat (6.5).

On OpenBulk the agent dials the leader a second time, names the request, and sends the stream from
the keeper's files. It sends only as fast as the other side reads (drain), keeps at most one chunk
in memory per stream, and decodes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from agent.config import AgentConfig, split_address
from agent.errors import ConnectFailed
from agent.keeper.output import STREAMS, read_stream, stream_size
from agent.logs import EventLog
from agent.tls import check_peer, client_context
from scheduler.protocol.errors import ProtocolError
from scheduler.protocol.framing import encode_frame
from scheduler.protocol.ids import parse_token
from scheduler.protocol.messages import (
    BulkData,
    BulkEnd,
    BulkHello,
    Message,
    OpenBulk,
    encode_message,
)

#: Bytes in one BulkData.
CHUNK_BYTES: Final = 256 * 1024
#: Streams served at once; more are refused with BulkEnd `error`.
STREAMS_MAX: Final = 64
#: How often a followed stream is looked at for new bytes.
FOLLOW_S: Final = 0.2
#: A connection must stand within this time.
CONNECT_S: Final = 5.0
#: A reader that takes nothing for this long is given up.
STALLED_S: Final = 300.0


class Sink(Protocol):
    """Where messages of one stream go. `send` returns once there is room for more."""

    @property
    def is_open(self) -> bool:
        """Whether the reader is still there."""
        ...

    async def send(self, message: Message) -> None: ...


async def serve_stream(
    request: OpenBulk, directory: Path, sink: Sink, *, is_over: Callable[[], bool]
) -> None:
    """Send what `request` asks for from `directory` (the attempt's output), then BulkEnd.

    Following ends once `is_over` and everything written before was sent, or the reader has gone.
    """
    if request.stream not in STREAMS:
        await sink.send(BulkEnd(code="error", message=f"{request.stream!r} is no stream"))
        return
    offset = max(0, request.offset)
    if request.tail_bytes > 0:
        size = await asyncio.to_thread(stream_size, directory, request.stream)
        offset = max(0, size - request.tail_bytes)
    while sink.is_open:
        # Read before the files: what was written until the end is then certainly seen.
        has_ended = not request.is_following or is_over()
        at, data = await asyncio.to_thread(
            read_stream, directory, request.stream, offset, CHUNK_BYTES
        )
        if data:
            await sink.send(BulkData(offset=at, data=data))
            offset = at + len(data)
        elif has_ended:
            break
        else:
            await asyncio.sleep(FOLLOW_S)
    size = await asyncio.to_thread(stream_size, directory, request.stream)
    await sink.send(BulkEnd(code="complete", size_bytes=size))


class _Connection:
    """A Sink over a TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def is_open(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def send(self, message: Message) -> None:
        self._writer.write(encode_frame(encode_message(message)))
        async with asyncio.timeout(STALLED_S):
            await self._writer.drain()


class BulkStreams:
    """All log streams of this agent. Loop thread only."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        node_uuid: str,
        attempts: Path,
        is_live: Callable[[str], bool],
        log: EventLog,
    ) -> None:
        self._config = config
        self._node_uuid = node_uuid
        #: Directory of the attempts' output directories.
        self._attempts = attempts
        self._is_live = is_live
        self._log = log
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def open(self, request: OpenBulk, address: str) -> None:
        """Serve `request` over a new connection to `address`, in the background."""
        if request.request in self._tasks:
            return
        task = asyncio.create_task(self._serve(request, address))
        self._tasks[request.request] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.request, None))

    def close(self, request: str) -> None:
        """The reader went away."""
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()

    async def close_all(self) -> None:
        """End every stream."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, request: OpenBulk, address: str) -> None:
        try:
            reader, writer = await self._connect(address)
        except ConnectFailed as error:
            self._log.warning("bulk_failed", request=request.request, reason=str(error))
            return
        sink = _Connection(reader, writer)
        hello = BulkHello(
            name=self._config.name, node_uuid=self._node_uuid, request=request.request
        )
        try:
            await sink.send(hello)
            if (refusal := self._refusal_of(request)) is not None:
                await sink.send(refusal)
            else:
                directory = self._attempts / request.token
                await serve_stream(
                    request, directory, sink, is_over=lambda: not self._is_live(request.token)
                )
            writer.close()
            async with asyncio.timeout(STALLED_S):
                await writer.wait_closed()
        except (OSError, TimeoutError) as error:
            self._log.info("bulk_cut", request=request.request, reason=str(error))
        finally:
            writer.close()

    def _refusal_of(self, request: OpenBulk) -> BulkEnd | None:
        if len(self._tasks) > STREAMS_MAX:
            return BulkEnd(code="error", message=f"{STREAMS_MAX} streams are open on this node")
        try:
            parse_token(request.token)  # A token is a directory's name: nothing else may be read.
        except ProtocolError as error:
            return BulkEnd(code="error", message=str(error))
        is_there = (self._attempts / request.token).is_dir() or self._is_live(request.token)
        return None if is_there else BulkEnd(code="missing", message="no output of it is here")

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            host, port = split_address(address)
            context = client_context(self._config.tls) if self._config.tls is not None else None
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
        except (OSError, ValueError, TimeoutError) as error:
            raise ConnectFailed(f"{address}: {error or 'no answer'}") from None
        if context is not None:
            try:
                check_peer(writer.transport)
            except ConnectFailed:
                writer.close()
                raise
        return reader, writer
