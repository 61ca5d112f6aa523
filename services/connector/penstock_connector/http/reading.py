"""Reads the body of a response into a `Receiver`, from its connection where possible.

httpx reads what comes through a proxy, and what the server has compressed although nobody asked for
it. Any other body goes from the parser to the receiver without a task that is woken for each piece.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import httpx

from penstock_connector.http.exchange import Exchange, Receiver
from penstock_connector.http.transport import EXCHANGE

_PLAIN: Final = ("", "identity")


class Reading(Protocol):
    """The reading of one body."""

    def start(self, receiver: Receiver) -> None:
        """Begin to call the receiver."""
        ...

    def pause(self) -> None:
        """Hold the server back. One more piece may come."""
        ...

    def resume(self) -> None:
        """Read on after `pause`."""
        ...

    async def stop(self) -> None:
        """Call the receiver no more. The caller closes the response."""
        ...


def reading_of(response: httpx.Response) -> Reading:
    """Return how the response's body is read best."""
    exchange = response.extensions.get(EXCHANGE)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if isinstance(exchange, Exchange) and encoding in _PLAIN:
        return _FromConnection(exchange)
    return _ByHttpx(response)


class _FromConnection:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def start(self, receiver: Receiver) -> None:
        self._exchange.attach(receiver)

    def pause(self) -> None:
        self._exchange.pause()

    def resume(self) -> None:
        self._exchange.resume()

    async def stop(self) -> None:
        self._exchange.detach()


class _ByHttpx:
    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._task: asyncio.Task[None] | None = None

    def start(self, receiver: Receiver) -> None:
        self._task = asyncio.create_task(self._read(receiver))

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _read(self, receiver: Receiver) -> None:
        try:
            async for chunk in self._response.aiter_bytes():
                receiver.feed(chunk)
                await self._may_read.wait()
        except httpx.HTTPError as error:
            receiver.end(error)
        else:
            receiver.end(None)
