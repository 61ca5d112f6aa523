"""A stream that is asked for before there is anything to follow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from penstock.bus import Bus, BusError, Msg
from penstock_edge.runs.access import while_it_holds
from penstock_edge.stream.direct_write import direct_of
from penstock_edge.stream.open_streams import Departure, OpenStreams, retry_ms
from penstock_edge.stream.response import EventStream, head
from penstock_edge.views.framing import Sse

log = logging.getLogger(__name__)

# A notice may be lost.
LOOK_AGAIN_S: Final = 1.0


class WaitingStream:
    """Sends the head at once and keep-alives until `begun` gives a stream; then it is that stream.

    `notices`: a core subject on which is said that it is worth looking again.
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
        self._leaving: asyncio.Task[None] | None = None
        self._departs = False
        self.resumable = True  # there is nothing yet that it could miss

    def depart(self, why: Departure) -> None:
        """The client comes back, and waits elsewhere."""
        self._departs = True
        if self._leaving:
            self._leaving.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this one response."""
        await send(head(200))
        leaving = self._leaving = asyncio.create_task(_left(receive))
        self._streams.add(self)
        stream = None
        try:
            with while_it_holds(scope, leaving.cancel):
                stream = await self._wait(send, leaving)
        except BusError as error:
            # it may come back: there is no cursor to lose
            log.warning("waiting for %s: %s", self._notices, error)
        finally:
            leaving.cancel()
            self._streams.discard(self)
        if stream is None:
            if self._departs and (direct := direct_of(receive)):
                direct.close_after()
            words = Sse().come_back(retry_ms()) if self._departs else b""
            await send({"type": "http.response.body", "body": words})
            return

        async def send_body(message: Message) -> None:
            if message["type"] != "http.response.start":
                await send(message)

        await stream(scope, receive, send_body)

    async def _wait(self, send: Send, leaving: asyncio.Task[None]) -> EventStream | None:
        """What began; None when the client has left, or may not wait any longer."""
        moved = asyncio.Event()

        async def on_notice(msg: Msg) -> None:
            moved.set()

        subscription = await self._bus.subscribe(self._notices, on_notice)
        loop = asyncio.get_running_loop()
        wrote_at = loop.time()
        try:
            while not leaving.done():
                moved.clear()
                if (stream := await self._look()) is not None:
                    return stream
                notice = asyncio.create_task(moved.wait())
                wait_s = min(LOOK_AGAIN_S, self._keep_alive_s / 3)
                await asyncio.wait(
                    {leaving, notice}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
                )
                notice.cancel()
                if loop.time() - wrote_at >= self._keep_alive_s * 2 / 3:
                    wrote_at = loop.time()
                    body = Sse().keep_alive
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            await subscription.unsubscribe()
        return None

    async def _look(self) -> EventStream | None:
        try:
            return await self._begun()
        except BusError as error:
            log.warning("waiting for %s: %s", self._notices, error)
            return None


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
