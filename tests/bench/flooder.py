"""An agent server for floods, which streams as Agno does.

`python flooder.py PORT`. The name of the requested agent says what the answer has, e.g.
`burst-100000`:

- `burst-N`: N frames as fast as the client reads them
- `paced-N-RATE`: N frames, RATE a second; a text ends in `@n=<number> @t=<ns since the epoch>`
- `spending-N-RATE`: as `paced`; each 50th frame is followed by the end of a model call
- `slow-N-SECONDS`: N such frames, with SECONDS between two frames
- `large-MIB`: one frame of that size
- `bytes-N`: N frames, each byte a chunk of its own
- `comments-N`: N keep-alives
- `approval-N-RATE`: as `paced`, but with a pause for a decision in the middle

Every POST that runs an agent gets such an answer; any other request gets `{}`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

WORDS = "some words of an answer of the usual length"
PADDING = "x" * 100
BURST = 100  # the number of frames in one write

_phases = (n * 0.618034 % 1 for n in itertools.count())


def frame(event: str, **fields: object) -> bytes:
    body = json.dumps({"event": event, "agent_id": "bench", "run_id": "r", **fields})
    return f"event: {event}\ndata: {body}\n\n".encode()


def content(number: int) -> bytes:
    return frame("RunContent", content=f"{number} {WORDS}", pad=PADDING)


TOOL = {"tool_call_id": "t1", "tool_name": "delete_file", "tool_args": {"path": "/x"}}
PAUSED = frame(
    "RunPaused",
    tools=[{**TOOL, "requires_confirmation": True, "confirmed": None, "result": None}],
    requirements=[],
)
APPROVED = frame("ToolCallStarted", tool={**TOOL, "confirmed": True}) + frame(
    "ToolCallCompleted", tool={**TOOL, "confirmed": True, "result": "gone"}
)
CALLED = frame(
    "ModelRequestCompleted", model="gpt-5", model_provider="OpenAI", input_tokens=9, output_tokens=3
)
COMPLETED = frame("RunContentCompleted") + frame("RunCompleted", content="done")


class Answer:
    """The body of one answer, in chunks."""

    def __init__(self, writer: asyncio.StreamWriter, continues: bool) -> None:
        self._writer = writer
        self.continues = continues

    async def send(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self._writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await self._writer.drain()


async def burst(answer: Answer, frames: int) -> None:
    for start in range(0, frames, BURST):
        numbers = range(start, min(start + BURST, frames))
        await answer.send(b"".join(map(content, numbers)))
    await answer.send(COMPLETED)


async def slow(answer: Answer, frames: int, distance_s: int) -> None:
    await paced(answer, frames, 1 / distance_s)


async def spending(answer: Answer, frames: int, rate: int) -> None:
    await paced(answer, frames, rate, frames_of_call=50)


async def paced(
    answer: Answer, frames: int, rate: float, frames_of_call: int | None = None
) -> None:
    loop = asyncio.get_running_loop()
    # The runs begin at different points of a frame's interval, even if all starts come at once:
    # frames of all runs at once would measure their queue.
    begun = loop.time() + next(_phases) / rate
    for number in range(frames):
        await asyncio.sleep(max(0.0, begun + number / rate - loop.time()))
        text = f"{time.time_ns()} {WORDS} @n={number + 1} @t={time.time_ns()}"
        await answer.send(frame("RunContent", content=text, pad=PADDING))
        if frames_of_call is not None and number % frames_of_call == frames_of_call // 2:
            await answer.send(CALLED)
    await answer.send(COMPLETED)


async def large(answer: Answer, mib: int) -> None:
    text = "x" * (mib * 1024 * 1024)
    whole = frame("RunContent", content=text)
    for start in range(0, len(whole), 1024 * 1024):
        await answer.send(whole[start : start + 1024 * 1024])
    await answer.send(COMPLETED)


async def single_bytes(answer: Answer, frames: int) -> None:
    for number in range(frames):
        whole = content(number)
        await answer.send(*(whole[at : at + 1] for at in range(len(whole))))
    await answer.send(COMPLETED)


async def comments(answer: Answer, count: int) -> None:
    for start in range(0, count, BURST):
        await answer.send(*([b": keep-alive\n\n"] * min(BURST, count - start)))
    await answer.send(COMPLETED)


async def approval(answer: Answer, frames: int, rate: int) -> None:
    half = frames // 2
    loop = asyncio.get_running_loop()
    begun = loop.time()
    if answer.continues:
        await answer.send(APPROVED)
    for number in range(half):
        await asyncio.sleep(max(0.0, begun + number / rate - loop.time()))
        await answer.send(content(number))
    await answer.send(COMPLETED if answer.continues else PAUSED)


MODES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "burst": burst,
    "paced": paced,
    "spending": spending,
    "slow": slow,
    "large": large,
    "bytes": single_bytes,
    "comments": comments,
    "approval": approval,
}
_RUNS = re.compile(r"^POST /agents/([a-z]+)((?:-[0-9]+)+)/runs(/[^ ]+/continue)? ")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    for line in head.split("\r\n"):
        if line.lower().startswith("content-length:"):
            await reader.readexactly(int(line.partition(":")[2]))
    asked = _RUNS.match(head)
    kind = b"text/event-stream" if asked else b"application/json"
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
        b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" % kind
    )
    answer = Answer(writer, continues=bool(asked and asked[3]))
    try:
        if asked:
            await answer.send(frame("RunContinued" if answer.continues else "RunStarted"))
            await MODES[asked[1]](answer, *map(int, asked[2].split("-")[1:]))
        else:
            await answer.send(b"{}")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    except ConnectionError:
        pass  # the client has cancelled the run or was killed
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
