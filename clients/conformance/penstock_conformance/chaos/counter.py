"""Counts the side effects of scripted agents: `POST /effects/RUN/CALL`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

# The seconds between an effect and its answer. A kill in this time is the hardest case for a
# server: the effect is done, and the server does not know it.
ANSWER_AFTER_S: Final = 0.1
_REQUEST = re.compile(rb"POST /effects/([^/ ]+)/(\d+) ")
_ANSWER: Final = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"


class Effect(NamedTuple):
    """One side effect: the script's run and call, and when it was (time.monotonic)."""

    run: str
    call: int
    at_s: float


class Counter:
    """An HTTP server on the loopback address. `listener` is told each effect before its answer."""

    def __init__(self, port: int = 0) -> None:
        self.effects: list[Effect] = []
        self.listener: Callable[[Effect], None] = lambda _: None
        self._port = port
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller was killed
        finally:
            self._answering.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = _REQUEST.match(await reader.readuntil(b"\r\n\r\n"))
        if found is None:
            writer.write(b"HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n")
            return
        effect = Effect(found[1].decode(), int(found[2]), time.monotonic())
        self.effects.append(effect)
        self.listener(effect)
        await asyncio.sleep(ANSWER_AFTER_S)
        writer.write(_ANSWER)
        await writer.drain()
