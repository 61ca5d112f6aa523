"""Reads the body of a response into a `Receiver`, directly from the connection where possible.

httpx reads responses that come through a proxy, or that a server has compressed unasked. All other
bodies go from the parser to the receiver, so no task is woken for each piece.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import httpx

from penstock.http.exchange import Exchange, Receiver
from penstock.http.transport import EXCHANGE

_PLAIN: Final = ("", "identity")


class Reading(Protocol):
    """Reads one body."""

    def start(self, receiver: Receiver) -> None: ...

    def pause(self) -> None:
        """Stop reading for now; the receiver may still get one more piece."""
        ...

    def resume(self) -> None: ...

    async def stop(self) -> None:
        """Give no more pieces to the receiver; the caller closes the response."""
        ...


def reading_of(response: httpx.Response) -> Reading:
    exchange = response.extensions.get(EXCHANGE)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if isinstance(exchange, Exchange) and encoding in _PLAIN:
        return exchange
    return _ByHttpx(response)


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
