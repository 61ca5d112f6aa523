"""A client of a running edge that reads a stream frame by frame and keeps its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from penstock.sse import Frame, Parser

WAIT_S = 30

Client = httpx.AsyncClient
MakeEdge = Callable[..., Awaitable[Client]]


class Stream:
    """One response of `text/event-stream`. `body` has every byte that was read so far."""

    def __init__(self, client: Client, method: str, path: str, **request: Any) -> None:
        self._context = client.stream(method, path, **request)
        self._parser = Parser()
        self._frames: list[Frame] = []
        self._chunks: AsyncIterator[bytes]
        self.response: httpx.Response
        self.body = b""
        self.chunks: list[bytes] = []

    async def __aenter__(self) -> Self:
        self.response = await asyncio.wait_for(self._context.__aenter__(), WAIT_S)
        self._chunks = self.response.aiter_raw()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._context.__aexit__(kind, error, trace)

    @property
    def run_id(self) -> str:
        """The run id in the response's headers."""
        return self.response.headers["penstock-run-id"]

    async def frame(self) -> Frame:
        """Return the next frame; fail if the stream ends before it."""
        while not self._frames:
            assert await self._more(), "the stream has ended"
        return self._frames.pop(0)

    async def event(self) -> dict[str, Any]:
        """Return the data of the next frame."""
        data: dict[str, Any] = orjson.loads((await self.frame()).data)
        return data

    async def read_until(self, marker: bytes) -> None:
        """Read until these bytes have come, also in a comment; fail if the stream ends before."""
        while marker not in self.body:
            assert await self._more(), f"the stream has ended without {marker!r}"

    async def rest(self) -> list[Frame]:
        """Return all frames up to the stream's end."""
        while await self._more():
            pass
        frames, self._frames = self._frames, []
        return frames

    async def until(self, text: bytes) -> None:
        """Read until these bytes have come."""
        while text not in self.body:
            assert await self._more(), f"the stream has ended without {text!r}"

    async def _more(self) -> bool:
        try:
            chunk = await asyncio.wait_for(anext(self._chunks), WAIT_S)
        except StopAsyncIteration:
            return False
        self.chunks.append(chunk)
        self.body += chunk
        self._frames += self._parser.feed(chunk)
        return True


def contents(frames: list[Frame]) -> list[Any]:
    """Return the data of each frame."""
    return [orjson.loads(frame.data) for frame in frames]
