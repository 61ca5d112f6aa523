"""Stores the body of one response in RAW byte for byte, and parses it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx

from penstock.bus.budget import Budget
from penstock.http.reading import reading_of
from penstock.settings import ServerAgent
from penstock.sse import FrameTooLarge
from penstock_connector.legs.body import Body, Frames
from penstock_connector.legs.flush import Flush
from penstock_connector.legs.outcome import EOF, MAX_DETAIL_CHARACTERS, Outcome, lost
from penstock_connector.legs.progress import Progress
from penstock_connector.legs.stream_detection import MAX_BYTES, StreamDetector
from penstock_connector.settings import ConnectorSettings
from penstock_connector.upstreams.base import Upstream

MAX_DETAIL_BYTES: Final = 4 * MAX_DETAIL_CHARACTERS
DETAIL_S: Final = 5.0  # the most seconds for which the text of an error response is read


class ConnectionCut(Exception):
    """The connection broke before the end of the body."""


@dataclass(frozen=True, slots=True)
class ReattachRefused:
    """The server's answer to a reattachment does not continue the leg; `error` is the reason."""

    error: str


@dataclass(frozen=True, slots=True)
class Resources:
    """The objects that all legs of a process share; the budgets count the bytes of all legs."""

    client: httpx.AsyncClient
    settings: ConnectorSettings
    budget: Budget  # counts the bytes that are read and not yet stored
    frame_budget: Budget  # counts the bytes of incomplete frames
    stamp: Callable[[], str]  # returns the time of receipt, RFC 3339
    flush: Flush


# Stores one chunk of the body, with its time of receipt.
Store = Callable[[bytes, str], Awaitable[None]]


class ResponseBody:
    """Reads a response, and stores it at the same time.

    All bytes that are received during a write, or before the flush, are written together in the
    next write. `reattached` is True if the response continues an earlier response. In that case,
    the server may refuse to continue, and the response may contain events after the leg's last
    event.
    """

    def __init__(
        self,
        response: httpx.Response,
        *,
        resources: Resources,
        agent: ServerAgent,
        upstream: Upstream[Any],
        progress: Progress,
        store: Store,
        reattached: bool,
    ) -> None:
        self.has_frames = False  # whether at least one complete frame was received
        self._response = response
        self._settings = resources.settings
        self._agent = agent
        self._upstream = upstream
        self._progress = progress
        self._store = store
        self._reattached = reattached
        self._reading = reading_of(response)
        self._body = Body(
            resources.settings.max_buffered_bytes,
            resources.budget,
            resources.flush,
            resources.stamp,
            self._reading.resume,
        )
        self._frames = Frames(resources.settings.max_frame_bytes, resources.frame_budget)
        self._detector = StreamDetector(response.headers.get("content-type", ""))
        self._read_bytes = 0
        self._error: httpx.HTTPError | None = None  # the error that broke the connection

    async def pump(self) -> Outcome | ReattachRefused:
        """Read and store the whole response.

        Raises:
            ConnectionCut: the connection broke.
            FenceConflict: another connector has taken the leg over.
        """
        storing = asyncio.create_task(self._store_all())
        try:
            self._reading.start(self)
            await asyncio.wait({storing})
        finally:
            try:
                await self._reading.stop()
                await self._response.aclose()
            finally:
                # A write is never cancelled, because after a cancelled write it would be unknown
                # whether its bytes were stored. Bytes that were read before the leg was stopped are
                # written, too.
                self._body.close()
                await asyncio.wait({storing})
                storing.exception()  # asyncio would log the exception if it were never retrieved
                self._body.drop()
                self._frames.drop()
        return storing.result()

    # The methods of `Receiver`

    def feed(self, chunk: bytes) -> None:
        """Take a piece of the body; if too many bytes wait, stop reading."""
        self._body.feed(chunk)
        if not self._body.has_room:
            self._reading.pause()

    def end(self, error: httpx.HTTPError | None) -> None:
        """Record the end of the body; `error` is the reason if the connection broke."""
        self._error = error
        self._body.close()

    # Storing the body

    async def _store_all(self) -> Outcome | ReattachRefused:
        while True:
            received, chunk = await self._body.take()
            if not chunk:
                return self._at_end()
            outcome, stored = self._parse(chunk)
            if stored:
                await self._store(stored, received)
                self._progress.answered = True
            if outcome is not None:
                return outcome

    def _parse(self, chunk: bytes) -> tuple[Outcome | ReattachRefused | None, bytes]:
        """Parse the chunk; return the leg's outcome and the bytes to store.

        The outcome is None if the leg continues after this chunk.
        """
        limit_bytes, before = self._settings.max_response_bytes, self._read_bytes
        self._read_bytes += len(chunk)
        if self._read_bytes > limit_bytes:
            error = f"the upstream sent too much: a response is larger than {limit_bytes} bytes"
            return lost("limit", error), chunk[: limit_bytes - before]
        beginning, seen = self._detector, self._progress.seen
        beginning.feed(chunk)
        if beginning.is_other:
            is_enough = self._read_bytes >= MAX_BYTES
            return self._not_a_stream() if is_enough else None, chunk[: MAX_BYTES - before]
        try:
            frames = self._frames.feed(chunk)
        except FrameTooLarge as error:
            # The bytes over the limit are stored, too.
            return lost("limit", f"the upstream sent too much: {error}"), chunk
        for frame in frames:
            self.has_frames = True
            self._progress.watch(self._upstream.watch, frame)
        if self._reattached and seen.refusal is not None:
            return ReattachRefused(seen.refusal), b""
        # After the run's last event, the stream may continue with the run's next leg. So this leg
        # ends here.
        return EOF if self._reattached and seen.has_final_event else None, chunk

    def _at_end(self) -> Outcome | ReattachRefused:
        if self._error is not None:
            raise ConnectionCut(text_of(self._error)) from self._error
        self._detector.end()
        return self._not_a_stream() if self._detector.is_other else EOF

    def _not_a_stream(self) -> Outcome | ReattachRefused:
        status_code, agent = self._response.status_code, self._agent
        error = self._detector.error(status_code, agent.protocol, agent.url)
        if self._reattached:
            return ReattachRefused(error)
        return lost("not_a_stream", error, detail=self._detector.detail)


async def detail_of(response: httpx.Response) -> str:
    """Return the beginning of an error response's text: the part that is received within 5 s."""
    text = b""
    with suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(DETAIL_S):
            async for chunk in response.aiter_bytes():
                text += chunk
                if len(text) >= MAX_DETAIL_BYTES:
                    break
    return text.decode(response.encoding or "utf-8", "replace")


def text_of(error: Exception) -> str:
    """Return the error's text; for an error without a text, the name of the error's type."""
    return str(error) or type(error).__name__
