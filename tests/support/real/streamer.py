"""An agent server for benchmarks that sends Agno frames at a steady rate, with send times.

`python streamer.py PORT FRAMES RATE`: the answer to every POST has FRAMES frames, RATE a second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time


def frame(event: str, **fields: object) -> bytes:
    body = json.dumps({"event": event, "agent_id": "bench", "run_id": "r", **fields})
    data = f"event: {event}\ndata: {body}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def main(port: int, frames: int, rate: float) -> None:
    loop = asyncio.get_running_loop()
    phases = (n * 0.618034 % 1 for n in itertools.count())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        for line in head.decode().split("\r\n"):
            if line.lower().startswith("content-length:"):
                await reader.readexactly(int(line.partition(":")[2]))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        writer.write(frame("RunStarted"))
        # Each run begins at another phase of the frame interval. If runs that start together sent
        # at the same moments, a benchmark would measure the queue of each burst.
        begun = loop.time() + next(phases) / rate
        for number in range(frames):
            await asyncio.sleep(max(0.0, begun + number / rate - loop.time()))
            text = f"{time.time_ns()} and some words of an answer of the usual length"
            writer.write(frame("RunContent", content=text, pad="x" * 100))
        writer.write(frame("RunContentCompleted"))
        writer.write(frame("RunCompleted", content="done") + b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
