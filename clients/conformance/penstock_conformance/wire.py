"""Sends requests, and records what comes back."""

from __future__ import annotations

import asyncio
import codecs
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Final, Self

import httpx

from penstock_conformance.exchange import End, Exchange, Frame, Frames, Request, User

CONNECT_TIMEOUT_S: Final = 10.0
# A server that answers with more has lost its way.
MAX_BYTES: Final = 64 * 1024 * 1024
# Of a client that reads slowly: what it does not read soon waits at the server.
_SMALL_BUFFER: Final = (socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)

# Called when frames have come, with the exchange so far. The client leaves when it returns False.
# Nothing is read meanwhile.
OnFrame = Callable[[Exchange], Awaitable[bool]]


class NotReachable(Exception):
    """Nothing answers HTTP at the address."""


class Wire:
    """The connections to one server. `credentials` are the headers of each user, and `log` gets
    each exchange when it is over."""

    def __init__(
        self,
        url: str,
        credentials: Mapping[User, Mapping[str, str]] | None = None,
        limit_s: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
        log: Callable[[Exchange], None] | None = None,
    ) -> None:
        self.limit_s = limit_s
        self._log = log
        self.credentials = credentials or {}
        self._has_answered = False
        slow = transport or httpx.AsyncHTTPTransport(socket_options=[_SMALL_BUFFER])
        self._http, self._slow_http = (
            httpx.AsyncClient(
                base_url=url.rstrip("/"),
                timeout=httpx.Timeout(limit_s, connect=CONNECT_TIMEOUT_S),
                limits=httpx.Limits(max_connections=None),
                transport=each,
            )
            for each in (transport, slow)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()
        await self._slow_http.aclose()

    async def send(
        self, request: Request, on_frame: OnFrame | None = None, *, slowly: bool = False
    ) -> Exchange:
        """Send a request and read its answer to the end, for at most `limit_s` seconds. A server
        that has answered before and does not now is recorded as an answer without a status. With
        `slowly`, the client has little room for what it has not read.

        Raises:
            NotReachable: nothing has ever answered HTTP at the address.
        """
        began = time.monotonic()
        recorded = _Recorded(request, began)
        try:
            async with asyncio.timeout(self.limit_s):
                http = self._slow_http if slowly else self._http
                await self._read(http, request, recorded, on_frame)
        except (TimeoutError, httpx.TimeoutException) as error:
            self._require_an_answer(f"within {self.limit_s:g} s", error)
            recorded.end = End.LATE
        except httpx.HTTPError as error:
            self._require_an_answer(f"as HTTP: {error or type(error).__name__}", error)
            recorded.end = End.CUT
        except asyncio.CancelledError:
            recorded.end = End.LEFT
            self._logged(recorded)
            raise
        return self._logged(recorded)

    def _logged(self, recorded: _Recorded) -> Exchange:
        exchange = recorded.exchange(is_over=True)
        if self._log is not None:
            self._log(exchange)
        return exchange

    def _require_an_answer(self, how: str, error: Exception) -> None:
        if not self._has_answered:
            raise NotReachable(f"{self._http.base_url.host} does not answer {how}") from error

    async def _read(
        self,
        http: httpx.AsyncClient,
        request: Request,
        recorded: _Recorded,
        on_frame: OnFrame | None,
    ) -> None:
        headers = {
            "accept": "text/event-stream",
            **self.credentials.get(request.user, {}),
            **request.headers,
        }
        made = http.build_request(
            request.method,
            request.path,
            json=request.body,
            data=dict(request.form) if request.form is not None else None,
            content=request.content,
            headers=headers,
        )
        answer = await http.send(made, stream=True)
        try:
            self._has_answered = True
            recorded.status = answer.status_code
            recorded.headers = {name.lower(): value for name, value in answer.headers.items()}
            async for piece in answer.aiter_bytes():
                if not recorded.add(piece):
                    recorded.end = End.LATE
                    return
                if on_frame is None or not recorded.has_new():
                    continue
                if not await on_frame(recorded.exchange()):
                    recorded.end = End.LEFT
                    return
        finally:
            await answer.aclose()


class _Recorded:
    """An answer that is being read."""

    def __init__(self, request: Request, began: float) -> None:
        self.request = request
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.frames: list[Frame] = []
        self.end = End.WHOLE
        self._began = began
        self._content = bytearray()
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._parser = Frames()
        self._told = 0

    def add(self, piece: bytes) -> bool:
        """Add a piece of the body; return whether the body is within its limit."""
        self._content += piece
        at_s = time.monotonic() - self._began
        self.frames.extend(self._parser.feed(self._text.decode(piece), at_s))
        return len(self._content) <= MAX_BYTES

    def has_new(self) -> bool:
        """Return whether frames have come since the last call."""
        told, self._told = self._told, len(self.frames)
        return self._told > told

    def exchange(self, *, is_over: bool = False) -> Exchange:
        """Return what was recorded; the bytes only when it is over, because copies take time."""
        return Exchange(
            self.request,
            self.status,
            self.headers,
            bytes(self._content) if is_over else b"",
            tuple(self.frames),
            self.end,
            time.monotonic() - self._began,
        )
