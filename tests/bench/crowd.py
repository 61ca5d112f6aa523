"""Run many clients of one edge in a process of their own: bare sockets that check their streams.

`python crowd.py PORT`. Each line of its standard input is a command: a JSON object with the fields
of `Opening` opens streams and answers `{"open": n}`. `show` answers with the figures: events, gaps,
repeats, comments, and the latency of the events that have a time in their text. `measure` answers
in the same way and then resets the figures. `load.py` uses this script where there is no C
compiler: the script costs ten times the CPU of the C program, so it delays what it measures at a
lower load.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any

AT_ONCE = 200
# The marks of the number and the time in an event's text, which `publisher.py`, `flooder.py` and
# the tests of this folder write.
_SEQUENCE = re.compile(rb'(?:@n=|"sequence":)(\d+)')
_SENT = re.compile(rb"@t=(\d+)")


@dataclass(frozen=True)
class Opening:
    """Streams to open, one for each path."""

    paths: list[str]
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: str = ""
    until: str = "event"  # a stream counts as open after its `head` or its first `event`
    per_second: float = 2000


@dataclass
class Figures:
    """What all clients have seen since the last measurement."""

    events: int = 0
    gaps: int = 0
    repeats: int = 0
    comments: int = 0
    closed: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        took = sorted(self.latencies_ms) or [0.0]
        return {
            "events": self.events,
            "gaps": self.gaps,
            "repeats": self.repeats,
            "comments": self.comments,
            "closed": self.closed,
            "p50_ms": took[len(took) // 2],
            "p99_ms": took[len(took) * 99 // 100],
            "max_ms": took[-1],
        }


class Crowd:
    """All clients of one edge, and their figures."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.figures = Figures()

    async def open(self, opening: Opening) -> None:
        loop = asyncio.get_running_loop()
        turns = asyncio.Semaphore(AT_ONCE)
        begun = loop.time()

        async def one(number: int, path: str) -> None:
            await asyncio.sleep(begun + number / opening.per_second - loop.time())
            async with turns:
                _, client = await loop.create_connection(
                    lambda: Client(self, opening, path), "127.0.0.1", self.port
                )
                await client.begun

        await asyncio.gather(*(one(*each) for each in enumerate(opening.paths)))


class Client(asyncio.Protocol):
    """The client of one stream."""

    def __init__(self, crowd: Crowd, opening: Opening, path: str) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._crowd = crowd
        self._opening = opening
        self._path = path
        self._asked_ns = 0
        self._sequence = 0
        self._left = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        opening = self._opening
        head = [f"{opening.method} {self._path} HTTP/1.1", "Host: localhost"]
        head += ["Accept: text/event-stream", f"Content-Length: {len(opening.body)}"]
        head += [f"{name}: {value}" for name, value in opening.headers.items()]
        self._asked_ns = time.time_ns()
        transport.write("\r\n".join([*head, "", opening.body]).encode())

    def data_received(self, data: bytes) -> None:
        now_ns = time.time_ns()
        figures = self._crowd.figures
        if self._opening.until == "head":
            self._set_begun()
        *frames, self._left = (self._left + data).split(b"\n\n")
        for frame in frames:
            found = _SEQUENCE.search(frame)
            if found is None:
                figures.comments += frame.endswith(b": keep-alive")
                continue
            sequence = int(found[1])
            figures.events += 1
            if self._sequence or self._opening.until == "event":
                figures.gaps += max(0, sequence - self._sequence - 1)
            figures.repeats += sequence <= self._sequence
            self._sequence = sequence
            if (sent := _SENT.search(frame)) and int(sent[1]) >= self._asked_ns:
                figures.latencies_ms.append((now_ns - int(sent[1])) / 1e6)
            self._set_begun()

    def _set_begun(self) -> None:
        if not self.begun.done():
            self.begun.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._crowd.figures.closed += 1


async def main(port: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    crowd = Crowd(port)
    asked = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    while line := (await asked.readline()).strip():
        if line in (b"measure", b"show"):
            answer = crowd.figures.shown()
            if line == b"measure":
                crowd.figures = Figures()
        else:
            opening = Opening(**json.loads(line))
            await crowd.open(opening)
            answer = {"open": len(opening.paths)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
