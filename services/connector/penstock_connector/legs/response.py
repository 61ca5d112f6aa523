"""Stores the body of one response in RAW as it came, and parses it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx

from penstock.bus.budget import Budget
from penstock.settings import AgentConfig
from penstock.sse import Frame, FrameTooLarge
from penstock_connector.legs.body import Body, Frames
from penstock_connector.legs.not_a_stream import MAX_BYTES, Beginning
from penstock_connector.legs.outcome import Outcome, ended, lost
from penstock_connector.legs.progress import Progress
from penstock_connector.legs.tasks import stop
from penstock_connector.settings import ConnectorSettings
from penstock_connector.upstreams.base import Upstream

MAX_DETAIL_CHARACTERS: Final = 4000  # of an error response's text
MAX_DETAIL_BYTES: Final = 4 * MAX_DETAIL_CHARACTERS
DETAIL_S: Final = 5.0  # to read an error response's text


class Cut(Exception):
    """The connection broke before the body had ended."""


@dataclass(frozen=True, slots=True)
class ReattachRefused:
    """The server's answer to a reattachment does not continue the leg. `error` says why."""

    error: str


@dataclass(frozen=True, slots=True)
class Resources:
    """What all legs of a process share. The budgets count the bytes of all legs."""

    client: httpx.AsyncClient
    settings: ConnectorSettings
    budget: Budget  # bytes that are read and not yet stored
    frame_budget: Budget  # bytes of unfinished frames
    stamp: Callable[[], str]  # the time of receipt, RFC 3339


# Stores one chunk of the body, with its time of receipt.
Store = Callable[[bytes, str], Awaitable[None]]


class ResponseBody:
    """Reads a response and stores it at the same time.

    Bytes that come during a write are written together in the next write. `reattached` is true if
    the response continues an earlier response. In that case, the server may refuse to continue, and
    the response may contain events after the last event of the leg.
    """

    def __init__(
        self,
        response: httpx.Response,
        resources: Resources,
        agent: AgentConfig,
        upstream: Upstream[Any],
        progress: Progress,
        store: Store,
        *,
        reattached: bool,
    ) -> None:
        self.has_frames = False  # at least one whole frame has come
        self._response = response
        self._settings = resources.settings
        self._agent = agent
        self._upstream = upstream
        self._progress = progress
        self._store = store
        self._reattached = reattached
        self._body = Body(resources.settings.max_buffered_bytes, resources.budget, resources.stamp)
        self._frames = Frames(resources.settings.max_frame_bytes, resources.frame_budget)

    async def pump(self) -> Outcome | ReattachRefused:
        """Read and store the whole response.

        Raises:
            Cut: the connection broke.
            FenceConflict: another connector has taken the leg over.
        """
        try:
            return await self._pump()
        finally:
            self._body.drop()

    async def _pump(self) -> Outcome | ReattachRefused:
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write())
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                await stop(reading)
                await self._response.aclose()
            finally:
                # A write is never cancelled. After a cancelled write, the next write could not tell
                # whether the cancelled one was stored.
                await asyncio.wait({writing})
        writing.result()
        return reading.result()

    async def _write(self) -> None:
        while True:
            received, chunk = await self._body.take()
            if not chunk:
                return
            await self._store(chunk, received)
            self._progress.answered = True

    async def _read(self) -> Outcome | ReattachRefused:
        try:
            return await self._read_chunks()
        except FrameTooLarge as error:
            return lost("limit", f"the upstream sent too much: {error}")
        except httpx.HTTPError as error:
            raise Cut(text_of(error)) from error
        finally:
            self._frames.drop()
            self._body.close()

    async def _read_chunks(self) -> Outcome | ReattachRefused:
        response, seen = self._response, self._progress.seen
        limit_bytes, read_bytes = self._settings.max_response_bytes, 0
        beginning = Beginning(response.headers.get("content-type", ""))
        async for chunk in response.aiter_bytes():
            read_bytes += len(chunk)
            if read_bytes > limit_bytes:
                error = f"the upstream sent too much: a response is larger than {limit_bytes} bytes"
                return lost("limit", error)
            beginning.feed(chunk)
            if beginning.is_other:
                await self._body.put(chunk[: MAX_BYTES + len(chunk) - read_bytes])
                if read_bytes >= MAX_BYTES:
                    break
                continue
            for frame in await self._parsed(chunk):
                self.has_frames = True
                self._progress.watch(self._upstream.watch, frame)
            if self._reattached and seen.refusal is not None:
                return ReattachRefused(seen.refusal)
            await self._body.put(chunk)
            if self._reattached and seen.over:
                return ended("eof")  # the stream may go on with the run's next leg
        beginning.end()
        return self._not_a_stream(beginning) if beginning.is_other else ended("eof")

    async def _parsed(self, chunk: bytes) -> list[Frame]:
        try:
            return self._frames.feed(chunk)
        except FrameTooLarge:
            await self._body.put(chunk)  # RAW gets also the bytes over the limit
            raise

    def _not_a_stream(self, beginning: Beginning) -> Outcome | ReattachRefused:
        status_code, agent = self._response.status_code, self._agent
        error = beginning.error(status_code, agent.protocol, agent.url)
        if self._reattached:
            return ReattachRefused(error)
        return lost("not_a_stream", error, detail=beginning.detail)


async def detail_of(response: httpx.Response) -> str:
    """The beginning of an error response's text, as far as it comes within 5 s."""
    text = b""
    with suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(DETAIL_S):
            async for chunk in response.aiter_bytes():
                text += chunk
                if len(text) >= MAX_DETAIL_BYTES:
                    break
    return text.decode(response.encoding or "utf-8", "replace")


def text_of(error: Exception) -> str:
    """The error's text, or its type where it has none."""
    return str(error) or type(error).__name__
