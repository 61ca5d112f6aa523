"""Many clients of one edge, as a process of their own: bare sockets that check what they are given.

`python crowd.py PORT`, then on its standard input one line for each thing to be done: a JSON list
of run ids opens a stream of each and answers `{"open": n}` once each has its first event;
`show` answers with the figures: events, gaps, repeats, comments, and the latency of the events that
have a time (`t=<ns since the epoch>`) in them; `measure` too, and begins anew.
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
_SEQUENCE = re.compile(rb'"sequence":(\d+)')
_SENT = re.compile(rb"t=(\d+)")


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
    """The clients."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.figures = Figures()

    async def open(self, runs: list[str]) -> None:
        loop = asyncio.get_running_loop()
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(run_id: str) -> None:
            async with turns:
                _, client = await loop.create_connection(
                    lambda: Client(self, run_id), "127.0.0.1", self.port
                )
                await client.begun

        await asyncio.gather(*(one(run_id) for run_id in runs))


class Client(asyncio.Protocol):
    """One stream, from its run's start."""

    def __init__(self, crowd: Crowd, run_id: str) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._crowd = crowd
        self._run_id = run_id
        self._sequence = 0
        self._left = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        path = f"/v1/runs/{self._run_id}/events"
        transport.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now_ns = time.time_ns()
        figures = self._crowd.figures
        *frames, self._left = (self._left + data).split(b"\n\n")
        for frame in frames:
            found = _SEQUENCE.search(frame)
            if found is None:
                figures.comments += frame.endswith(b": keep-alive")
                continue
            sequence = int(found[1])
            figures.events += 1
            figures.gaps += max(0, sequence - self._sequence - 1)
            figures.repeats += sequence <= self._sequence
            self._sequence = sequence
            if sent := _SENT.search(frame):
                figures.latencies_ms.append((now_ns - int(sent[1])) / 1e6)
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
            runs = json.loads(line)
            await crowd.open(runs)
            answer = {"open": len(runs)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
