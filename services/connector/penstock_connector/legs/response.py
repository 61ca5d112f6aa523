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
from penstock_connector.legs.body import Body, Flush, Frames
from penstock_connector.legs.outcome import EOF, MAX_DETAIL_CHARACTERS, Outcome, lost
from penstock_connector.legs.progress import Progress
from penstock_connector.settings import ConnectorSettings
from penstock_connector.upstreams.base import Upstream

# The most bytes that are read and stored if a response is no event stream.
MAX_BYTES: Final = 256 * 1024
# The number of characters of such a response that the run's error shows.
MAX_SHOWN_CHARACTERS: Final = 1000

_STREAM: Final = "text/event-stream"
_FIELDS: Final = (b"data:", b"event:", b"retry:", b"id:", b":")
_LONGEST_FIELD: Final = max(map(len, _FIELDS))
# the bytes that may come before the content: a byte order mark, and white space
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"


class StreamDetector:
    """Detects a response with a 2xx status that is no event stream, for example JSON or HTML. Pure.

    The beginning of such a response is kept, so that the run's error can show it and give advice.
    A body with the content type of event streams, or without a content type, is a stream unless it
    begins like JSON or HTML. A body with another content type is a stream only if it begins like an
    event stream.
    """

    def __init__(self, content_type: str) -> None:
        self.media_type = content_type.partition(";")[0].strip().lower()
        self._claims = self.media_type in (_STREAM, "")
        self._is_stream: bool | None = None
        self._kept = b""

    @property
    def is_other(self) -> bool:
        return self._is_stream is False

    def feed(self, chunk: bytes) -> None:
        if self._is_stream:
            return
        self._kept += chunk[: MAX_BYTES - len(self._kept)]
        if self._is_stream is None:
            self._is_stream = self._decide(self._kept.lstrip(_BLANK))
            if self._is_stream:
                self._kept = b""

    def end(self) -> None:
        """Let the content type decide if the body was too short for a decision."""
        if self._is_stream is None:
            self._is_stream = self._claims

    def error(self, status_code: int, protocol: str, url: str) -> str:
        detail = self.detail
        called = f"with {self.media_type}" if self.media_type else "without a content type"
        if self.media_type == _STREAM:
            called = f"with what it calls {_STREAM} and is none"
        text = (
            f"the agent server answered {status_code} {called} where an event stream "
            f"({_STREAM}) was expected: {self._advice(detail.lstrip()[:1], protocol, url)}"
        )
        return f"{text}. It said: {detail}" if detail else f"{text}. The answer was empty"

    @property
    def detail(self) -> str:
        return self._kept.decode("utf-8", "replace")[:MAX_SHOWN_CHARACTERS]

    def _decide(self, first: bytes) -> bool | None:
        if not first:
            return None
        if self._claims:
            return first[:1] not in (b"{", b"[", b"<")
        if first.startswith(_FIELDS):
            return True
        return None if len(first) < _LONGEST_FIELD and _may_become_a_field(first) else False

    @staticmethod
    def _advice(first: str, protocol: str, url: str) -> str:
        if first == "[":
            return (
                f"it looks like a list of events, as ADK's /run gives it; is {protocol!r} the "
                f"right protocol, and is {url} the address that streams?"
            )
        if first == "<":
            return f"it looks like a page for people; is {url} the agent server itself?"
        return f"is {protocol!r} the right protocol for the agent, and {url} its address?"


def _may_become_a_field(first: bytes) -> bool:
    return any(field.startswith(first) for field in _FIELDS)


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
        self._body.feed(chunk)
        if not self._body.has_room:
            self._reading.pause()

    def end(self, error: httpx.HTTPError | None) -> None:
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
        """Return the leg's outcome, None if the leg continues after this chunk, and the bytes to
        store."""
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
    return str(error) or type(error).__name__
