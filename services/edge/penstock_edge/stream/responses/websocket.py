"""Writes a client's stream to a WebSocket: a text message for each event, and then a close code
(decision 0100).

The close code tells why the stream ends:
- 1000: the stream is complete (`until=idle`);
- 1001: the connection was open for the maximum time;
- 1003: the client has sent a message;
- 1008: the credential is no longer valid;
- 1009: the client has sent a large message;
- 1012: this edge shuts down;
- 1013: the client reads too slowly, or the stream failed.

After 1001, 1008, 1012 and 1013, a client reconnects with its cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from penstock.web.auth import identity_of
from penstock_edge.stream.client import Client
from penstock_edge.stream.credential import while_valid
from penstock_edge.stream.phases import End
from penstock_edge.views.framing import split

MAX_RECEIVED_BYTES: Final = 4096
CLOSE_S: Final = 5.0

DONE: Final = (1000, "no run is active or queued")
OLD: Final = (1001, "this connection was open for long; reconnect with ?after=")
RESTART: Final = (1012, "this server shuts down; reconnect with ?after=")
EXPIRED: Final = (1008, "the credential is no longer valid; reconnect with ?after= and a new one")
NOT_READ: Final = (1003, "clients must not send messages here")
TOO_BIG: Final = (1009, "clients must not send messages here, and this one is too large")
TOO_SLOW: Final = (1013, "this connection reads too slowly; reconnect with ?after=")
FAILED: Final = (1013, "the stream cannot continue here; reconnect with ?after=")

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
        """End also when the caller's credential becomes invalid."""
        client = self._client
        client.is_resumable = client.hub.view.framing.is_resumable
        client.read_for(identity_of(scope))
        with while_valid(scope, client.expire, client.warn):
            await self._converse(scope, receive, send)

    async def _converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        client = self._client
        listening: asyncio.Task[None] | None = None
        try:
            await websocket.accept()
            listening = asyncio.create_task(self._listen(websocket))
            while (body := await client.take()) is not None:
                client.writing.begin()
                for message in split(body):
                    await websocket.send_text(message)
                client.writing.end()
            await self._close(websocket, self._close_reason())
        except WebSocketDisconnect:
            pass  # the client has closed the connection
        except asyncio.CancelledError:
            if client.end is not End.SLOW:
                raise
            # `Client.maintain`, not the server, has cancelled this task to drop a slow client. So
            # the cancellation is undone, and the task continues.
            if task := asyncio.current_task():
                task.uncancel()
            await self._close(websocket, TOO_SLOW)
        finally:
            if listening:
                listening.cancel()
            client.leave()

    async def _listen(self, websocket: WebSocket) -> None:
        """Leave the hub when the client closes the connection, or sends a message (forbidden)."""
        message = await websocket.receive()
        if message["type"] == "websocket.receive":
            received = message.get("bytes") or (message.get("text") or "").encode()
            self._refused = TOO_BIG if len(received) > MAX_RECEIVED_BYTES else NOT_READ
        self._client.leave()

    def _close_reason(self) -> tuple[int, str]:
        return self._refused or _CLOSES.get(self._client.end, RESTART)

    async def _close(self, websocket: WebSocket, reason: tuple[int, str]) -> None:
        if websocket.client_state is not WebSocketState.CONNECTED:
            return
        with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(CLOSE_S):
                await websocket.close(*reason)
