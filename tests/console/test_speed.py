"""A run with very many events: the page shows it, and does not keep what nobody sees.

An API of the test has the run: a real agent server would take minutes to say so much. What it says
goes through the real page in a real browser.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.web.operation import Handler
from penstock_console.files import file_routes
from support.drive.waiting import wait_for
from support.real.devtools import page_at
from support.real.ports import free_port

MAX_HEAP_BYTES = 150_000_000
RUN_ID = "01980000-0000-7000-8000-000000000001"
RUN = {
    "run_id": RUN_ID,
    "agent": "talker",
    "user_id": "alice",
    "session_id": "s",
    "status": "completed",
    "message": "Talk",
    "created_at": "2026-01-01T00:00:00.000Z",
    "updated_at": "2026-01-01T00:10:00.000Z",
    "legs": 1,
}


def frame(sequence: int, category: str, action: str, **data: object) -> bytes:
    event = {
        "run_id": RUN_ID,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "sequence": sequence,
        "source": {"agent_id": "talker", "agent_type": "agent", "agent_name": "Talker"},
        "event": {"category": category, "action": action},
        "session_id": "s",
        "leg": 1,
        "data": data,
    }
    return f"id: {sequence}-0\ndata: {json.dumps(event)}\n\n".encode()


def frames(count: int) -> Iterator[bytes]:
    yield frame(1, "lifecycle", "started", agent="talker", user_id="alice", message="Talk")
    for first in range(2, count, 1000):
        yield b"".join(
            frame(each, "llm", "stream", message_id=f"m{each // 5000}", content=f"word{each} ")
            for each in range(first, min(first + 1000, count))
        )
    yield frame(count, "lifecycle", "completed", summary="done")


async def me(_: Request) -> JSONResponse:
    return JSONResponse({"user_id": "alice", "scopes": ["read", "start"]})


async def runs(_: Request) -> JSONResponse:
    return JSONResponse({"runs": [], "next": None})


def function_of(handler: Handler) -> Handler:
    """Return a function, since Starlette takes an object with `__call__` for an application."""

    async def handle(request: Request) -> ASGIApp | None:
        return await handler(request)

    return handle


@contextmanager
def talker(count: int) -> Iterator[str]:
    """Serve the console, and an API with one run of so many events."""

    async def stream(_: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            for each in frames(count):
                yield each

        return StreamingResponse(body(), media_type="text/event-stream")

    async def record(_: Request) -> JSONResponse:
        return JSONResponse(RUN | {"sequence": count})

    files = [Route(each.operation.path, function_of(each.handler)) for each in file_routes()]
    api = [
        Route("/v1/me", me),
        Route("/v1/runs", runs),
        Route("/v1/runs/{run_id}", record),
        Route("/v1/runs/{run_id}/events", stream),
    ]
    port = free_port()
    config = uvicorn.Config(Starlette(routes=[*api, *files]), port=port, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started, 20, "the server of the test")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.console
@pytest.mark.parametrize("count", [10_000, 100_000])
async def test_very_many_events_are_shown_within_the_memory_of_a_page(count: int) -> None:
    with talker(count) as url:
        async with page_at(f"{url}/docs") as page:
            await page.go(f"{url}/console/runs/{RUN_ID}?tab=events")
            await page.until(
                f"document.querySelector('.events .dim')?.textContent === '{count} events'"
            )
            await page.send("HeapProfiler.collectGarbage")
            heap = (await page.send("Runtime.getHeapUsage"))["usedSize"]
            assert heap < MAX_HEAP_BYTES
            await page.value("document.querySelector('.events .list').scrollTop = 1e9")
            await page.until("document.querySelector('.events').innerText.includes('completed')")
            assert await page.value("document.querySelectorAll('.event').length") < 100
            await page.click("#tab-transcript")
            await page.until("document.querySelector('.item-end') !== null")
            assert await page.value("document.querySelectorAll('.transcript li').length") < 30
            assert "word2 word3 " in await page.text(".item-message .text")
            assert page.logged == []
