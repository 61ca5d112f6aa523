"""The response for a client that opens a stream before the run has begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from penstock.bus import Bus, BusError, Msg
from penstock.log_fields import run_of
from penstock.web.answers import until_closed
from penstock.web.problems import Problem
from penstock_edge.stream.credential import while_valid
from penstock_edge.stream.direct_write import cycle_of
from penstock_edge.stream.open_streams import (
    OpenStreams,
    ReconnectReason,
    check_period_s,
    is_keep_alive_due,
    retry_ms,
)
from penstock_edge.stream.responses.event_stream import EventStream, head
from penstock_edge.views.framing import NAMED_SSE

log = logging.getLogger(__name__)

CHECK_AGAIN_S: Final = 1.0  # seconds after which `begun` is called even if no notice has come


class WaitEnd(Enum):
    """Why a client's wait ends although no run has begun."""

    LEFT = "left"  # the client has closed the connection
    EXPIRED = "expired"  # the client's credential has expired or was revoked
    MOVED = "moved"  # the client is asked to reconnect, perhaps to another edge


class WaitingStream:
    """Sends the head at once, then keep-alives until `begun` returns a stream, then this stream.

    `begun` is called after each message on the core subject `notices`, and, because core messages
    may be lost, every `CHECK_AGAIN_S`.
    """

    def __init__(
        self,
        bus: Bus,
        notices: str,
        begun: Callable[[], Awaitable[EventStream | None]],
        keep_alive_s: float,
        streams: OpenStreams,
    ) -> None:
        self._bus = bus
        self._notices = notices
        self._begun = begun
        self._keep_alive_s = keep_alive_s
        self._streams = streams
        self._moved = asyncio.Event()  # is set when a notice comes, or when the wait ends
        self._end: WaitEnd | None = None
        # the client has got no frame yet, so a reconnection loses no frame
        self.is_resumable = True

    def ask_to_reconnect(self, reason: ReconnectReason) -> None:
        self._finish(WaitEnd.MOVED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(head(200))
        leaving = asyncio.create_task(self._watch(receive))
        self._streams.add(self)
        try:
            stream = await self._stream(scope, send)
        finally:
            leaving.cancel()
            self._streams.discard(self)
        if stream is None:
            await self._write_end(receive, send)
            return

        async def send_body(message: Message) -> None:
            if message["type"] != "http.response.start":
                await send(message)

        await stream(scope, receive, send_body)

    async def _stream(self, scope: Scope, send: Send) -> EventStream | None:
        stream: EventStream | None = None
        try:
            with while_valid(scope, lambda: self._finish(WaitEnd.EXPIRED)):
                subscription = await self._bus.subscribe(self._notices, self._on_notice)
                try:
                    stream = await self._wait(send)
                finally:
                    await subscription.unsubscribe()
        except (BusError, Problem) as error:
            # The head has been sent, so the response can no longer be an error. The response ends,
            # and the client reconnects. The client has no frames yet, so no frame is lost.
            text = "a stream that waits for %s ends, and its client comes again: %s"
            log.warning(text, self._notices, error, extra=run_of(self._notices))
        except BaseException:
            if stream is not None:
                # If the stream were not discarded, the hub would keep a client that has no
                # response.
                stream.discard()
            raise
        return stream

    async def _wait(self, send: Send) -> EventStream | None:
        """Return None if the wait ends without a stream."""
        loop = asyncio.get_running_loop()
        wrote_at = loop.time()
        period_s = check_period_s(self._keep_alive_s)
        wait_s = min(CHECK_AGAIN_S, period_s)
        while self._end is None:
            self._moved.clear()
            if (stream := await self._try_begin()) is not None:
                return stream
            if self._end is None:
                await self._wait_for_notice(wait_s)
            if self._end is None and is_keep_alive_due(loop.time() - wrote_at, period_s):
                wrote_at = loop.time()
                body = NAMED_SSE.keep_alive
                await send({"type": "http.response.body", "body": body, "more_body": True})
        return None

    async def _wait_for_notice(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()
        except TimeoutError:
            return

    async def _try_begin(self) -> EventStream | None:
        try:
            return await self._begun()
        except BusError as error:
            extra = run_of(self._notices)
            log.warning("%s is looked at later: %s", self._notices, error, extra=extra)
            return None

    async def _write_end(self, receive: Receive, send: Send) -> None:
        body = b""
        if self._end is WaitEnd.MOVED:
            body = NAMED_SSE.reconnect(retry_ms())
            if cycle := cycle_of(receive):
                # The connection is closed after this response. So the client's next request opens a
                # new connection, which may reach another edge.
                cycle.keep_alive = False
        await send({"type": "http.response.body", "body": body})

    async def _on_notice(self, msg: Msg) -> None:
        self._moved.set()

    async def _watch(self, receive: Receive) -> None:
        await until_closed(receive)
        self._finish(WaitEnd.LEFT)

    def _finish(self, end: WaitEnd) -> None:
        self._end = self._end or end
        self._moved.set()
