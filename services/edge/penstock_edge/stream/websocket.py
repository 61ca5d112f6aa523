"""A client's stream as a WebSocket: one text message an event, and a close code that says why.

1000 the stream is over (`until=idle`), 1001 it was open for long enough, 1003 the client has sent
something, 1008 it may not read any more, 1009 it has sent too much, 1012 this edge shuts down, 1013
it reads too slowly, or the stream cannot go on here: come back with the cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from penstock.web.auth import identity_of
from penstock_edge.runs.access import while_it_holds
from penstock_edge.stream.client import Client, End
from penstock_edge.views.framing import split

MAX_RECEIVED_BYTES: Final = 4096
CLOSE_S: Final = 5.0

DONE: Final = (1000, "no run is active or queued")
OLD: Final = (1001, "this connection has been open for long; come back with ?after=")
RESTART: Final = (1012, "this server shuts down; come back with ?after=")
EXPIRED: Final = (1008, "the credential holds no longer; come back with ?after= and a new one")
NOT_READ: Final = (1003, "nothing is read from clients here")
TOO_BIG: Final = (1009, "nothing is read from clients here, least of all so much")
TOO_SLOW: Final = (1013, "this connection reads too slowly; come back with ?after=")
FAILED: Final = (1013, "the stream cannot go on; come back with ?after=")

_CLOSES: Final[dict[End | None, tuple[int, str]]] = {
    End.COMPLETE: DONE,
    End.EXPIRED: EXPIRED,
    End.AGED: OLD,
    End.DRAINED: RESTART,
    End.STOPPED: RESTART,
    End.FAILED: FAILED,
}


class EventSocket:
    """The WebSocket of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._refused: tuple[int, str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this one connection; it ends when the credential does."""
        client = self._client
        client.resumable = client.hub.view.form.resumable
        client.read_for(identity_of(scope))
        with while_it_holds(scope, client.expire, client.warn):
            await self._converse(scope, receive, send)

    async def _converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        client = self._client
        client.task = asyncio.current_task()
        listening: asyncio.Task[None] | None = None
        try:
            await websocket.accept()
            listening = asyncio.create_task(self._listen(websocket))
            while (body := await client.take()) is not None:
                client.begin_write()
                for message in split(body):
                    await websocket.send_text(message)
                client.wrote()
            await self._close(websocket, self._why())
        except WebSocketDisconnect:
            pass  # it is gone, and knows
        except asyncio.CancelledError:
            if client.end is not End.SLOW:
                raise
            # cancelled by the hub's beat, not by the server: this task lives on
            if task := asyncio.current_task():
                task.uncancel()
            await self._close(websocket, TOO_SLOW)
        finally:
            if listening:
                listening.cancel()
            client.leave()

    async def _listen(self, websocket: WebSocket) -> None:
        """Clients have nothing to say here; but that they leave must be heard."""
        message = await websocket.receive()
        if message["type"] == "websocket.receive":
            received = message.get("bytes") or (message.get("text") or "").encode()
            self._refused = TOO_BIG if len(received) > MAX_RECEIVED_BYTES else NOT_READ
        self._client.leave()

    def _why(self) -> tuple[int, str]:
        return self._refused or _CLOSES.get(self._client.end, RESTART)

    async def _close(self, websocket: WebSocket, why: tuple[int, str]) -> None:
        if websocket.client_state is not WebSocketState.CONNECTED:
            return
        with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(CLOSE_S):
                await websocket.close(*why)
