"""A run with very many events: the page shows it, and does not keep what nobody sees.

An API of the test has the run: a real agent server would take minutes to say so much. What it says
goes through the real page in a real browser.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.web.operation import Handler
from penstock_console.files import file_routes
from support.drive.waiting import wait_for
from support.real.consoles import frames_of, note
from support.real.devtools import Page, page_at
from support.real.ports import free_port

pytestmark = [pytest.mark.console, pytest.mark.timeout(180)]

MAX_HEAP_MB = 150
STORED = 50_000  # runs
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
REQUEST = {
    "status": "decided",
    "requested_at": "2026-01-01T00:01:00.000Z",
    "items": [{"item_id": "t1", "tool": "weather", "args": {}}],
    "decision": {"outcome": "approved", "by": "policy", "at": "2026-01-01T00:01:00.000Z"},
}


def event(sequence: int, category: str, action: str, **data: object) -> dict[str, Any]:
    return {
        "run_id": RUN_ID,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "sequence": sequence,
        "source": {"agent_id": "talker", "agent_type": "agent", "agent_name": "Talker"},
        "event": {"category": category, "action": action},
        "session_id": "s",
        "leg": 1,
        "data": data,
    }


def text(sequence: int) -> dict[str, Any]:
    message_id, content = f"m{sequence // 5000}", f"w{sequence} "
    return event(sequence, "llm", "stream", message_id=message_id, content=content)


def tool(sequence: int) -> dict[str, Any]:
    number, is_result = divmod(sequence, 2)
    call = {"tool_call_id": f"c{number}", "tool": f"tool{number % 7}"}
    if is_result:
        return event(sequence, "llm", "tool_result", outcome="ok", result={"n": number}, **call)
    return event(sequence, "llm", "tool_call", args={"query": f"what is {number}?"}, **call)


KINDS: dict[str, Callable[[int], dict[str, Any]]] = {"text": text, "tools": tool}


def events(kind: str, count: int, first: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield these events of the run, the first of which has the number 1."""
    for number in range(first, min(last, count) + 1):
        if number == 1:
            said = {"agent": "talker", "user_id": "alice", "message": "Talk"}
            yield event(1, "lifecycle", "started", **said)
        elif number == count:
            yield event(count, "lifecycle", "completed", summary="done")
        else:
            yield KINDS[kind](number)


def frames(kind: str, count: int, first: int) -> Iterator[bytes]:
    for begin in range(first, count + 1, 1000):
        some = events(kind, count, begin, begin + 999)
        parts = [f"id: {each['sequence']}-0\ndata: {json.dumps(each)}\n\n" for each in some]
        yield "".join(parts).encode()


def first_of(request: Request, count: int) -> int:
    """Return where the answer begins, as the edge does for `from`."""
    first = int(request.query_params.get("from", 1))
    return first if first > 0 else max(1, count + 1 + first)


async def me(_: Request) -> JSONResponse:
    return JSONResponse({"user_id": "alice", "scopes": ["read", "start"]})


async def runs(request: Request) -> JSONResponse:
    """Serve a page of 50,000 runs."""
    if request.query_params.get("parent_run_id"):
        return JSONResponse({"runs": [], "next": None})
    last = int(request.query_params.get("before", f"{STORED:012}")[-12:])
    found = [
        RUN | {"run_id": f"01980000-0000-7000-8000-{number:012}", "message": f"Talk {number}"}
        for number in range(last - 1, max(0, last - 1 - 50), -1)
    ]
    return JSONResponse({"runs": found, "next": found[-1]["run_id"] if found else None})


async def approvals(request: Request) -> JSONResponse:
    """Serve the run's 150 requests by pages; nothing waits in the inbox."""
    query = request.query_params
    first = int(query.get("after", 0))
    last = min(first + int(query.get("limit", 100)), 150) if "run_id" in query else 0
    found = [REQUEST | {"approval_id": f"a{number}"} for number in range(first, last)]
    return JSONResponse({"approvals": found, "next": str(last) if 0 < last < 150 else None})


def function_of(handler: Handler) -> Handler:
    """Return a function, since Starlette takes an object with `__call__` for an application."""

    async def handle(request: Request) -> ASGIApp | None:
        return await handler(request)

    return handle


@contextmanager
def talker(
    kind: str, count: int, per_s: int | None = None, *, is_erased: bool = False, of_steps: int = 0
) -> Iterator[str]:
    """Serve the console, and an API with one run of so many events, which come at once, or so many
    in a second. With `is_erased`, pages of them are those of a run whose content was erased after
    its stream was read. With `of_steps`, it is a workflow's, and the run of its step has so many
    more events."""

    async def stream(request: Request) -> Response:
        first = first_of(request, count)
        if "application/json" in request.headers["accept"]:
            some = [*events(kind, count, first, first + int(request.query_params["limit"]) - 1)]
            if is_erased:
                begun = event(1, "lifecycle", "started", agent="talker", user_id="alice")
                end = event(count + 2, "lifecycle", "completed", summary="")
                some = [begun, event(count + 1, "system", "erased", by="alice"), end]
            return JSONResponse({"events": some, "next": None})

        async def body() -> AsyncIterator[bytes]:
            begin = time.monotonic()
            sent = 0
            for each in frames(kind, count, first):
                parts = [each] if per_s is None else each.split(b"\n\n")[:-1]
                for part in parts:
                    yield part if per_s is None else part + b"\n\n"
                    sent += 1
                    if per_s is not None and sent % (per_s // 50) == 0:
                        await asyncio.sleep(max(0.0, begin + sent / per_s - time.monotonic()))

        return StreamingResponse(body(), media_type="text/event-stream")

    async def silence(_: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            yield b": nothing\n\n"
            await asyncio.sleep(3600)

        return StreamingResponse(body(), media_type="text/event-stream")

    async def record(_: Request) -> JSONResponse:
        kind = {"target": "workflows"} if of_steps else {}
        return JSONResponse(RUN | {"sequence": count} | kind)

    async def listed(request: Request) -> JSONResponse:
        if of_steps and request.query_params.get("parent_run_id"):
            step = RUN | {"run_id": "of a step", "step_id": "step_a", "sequence": of_steps}
            return JSONResponse({"runs": [step], "next": None})
        return await runs(request)

    async def agents(_: Request) -> JSONResponse:
        return JSONResponse({"agents": []})

    files = [Route(each.operation.path, function_of(each.handler)) for each in file_routes()]
    api = [
        Route("/v1/me", me),
        Route("/v1/agents", agents),
        Route("/v1/events", silence),
        Route("/v1/approvals", approvals),
        Route("/v1/runs", listed),
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


ITEMS = "document.querySelectorAll('.transcript > li').length"


async def heap(page: Page) -> float:
    """Return the megabytes that the page's scripts keep."""
    await page.send("HeapProfiler.collectGarbage")
    return float((await page.send("Runtime.getHeapUsage"))["usedSize"]) / 1e6


async def task_s(page: Page) -> float:
    """Return the seconds of CPU that the page has used."""
    metrics = (await page.send("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


@pytest.mark.parametrize("count", [10_000, 100_000])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_with_very_many_events_opens_with_its_last_ones_and_reads_others_when_wanted(
    kind: str, count: int
) -> None:
    with talker(kind, count) as url:
        async with page_at(f"{url}/docs") as page:
            await page.send("Performance.enable")
            await page.go(f"{url}/console/runs/{RUN_ID}")
            opened = "!!document.querySelector('.item-end') && performance.now()"
            shown_ms = await page.until(opened)
            used_s = await task_s(page)
            note(f"{count} {kind}", shown_s=shown_ms / 1000, cpu_s=used_s, heap_mb=await heap(page))
            read = [each for each in page.requested if "/events?" in each and RUN_ID in each]
            assert [urlsplit(each).query.partition("&from=")[2] for each in read] == ["-1000"]
            assert await page.value(f"{ITEMS} <= 600")
            first = "document.querySelector('.transcript > li')"
            if kind == "text":
                # The beginning of its message is among what is not read.
                assert (await page.text(".transcript .text")).startswith("… w")
            # Items that are here come first, and then those of earlier events.
            while f"{count - 1000:,} earlier events" in await page.text(".more"):
                before = await page.value(ITEMS)
                key = await page.value(f"{first}.dataset.key")
                await page.click(".more button")
                await page.until(f"{ITEMS} > {before} || {first}.textContent.length > 9000")
                assert await page.value(f"!!document.querySelector('[data-key=\"{key}\"]')")
            assert f"{count - 2000:,} earlier events" in await page.text(".more")

            await page.click("#tab-events")
            counted = "document.querySelector('.events .dim')?.textContent"
            await page.until(f"{counted} === '{count} events'")
            rows = "document.querySelector('.events').innerText"
            await page.until(f"/^1\\s+lifecycle.started/m.test({rows})")
            for place, number in ((0.5, count // 2), (1, count)):
                top = f"document.querySelector('.events .list').scrollTop = {place} * {count} * 30"
                await page.value(top)
                await page.until(f"/^{number}\\s+l/m.test({rows})")
            assert await page.value("document.querySelectorAll('.event').length") < 100
            # The page of the transcript, the first one, and one or both in the middle.
            assert len([each for each in page.requested if "&limit=1000" in each]) in (3, 4)

            begun = await page.value("performance.now()")
            await page.click("#tab-timeline")
            await page.until("!!document.querySelector('.bar-of')")
            whole_ms = await page.value("performance.now()") - begun
            await page.click("#tab-transcript")
            await page.until(f"{ITEMS} > 0 && !document.querySelector('.more .dim')")
            if kind == "text":
                assert "w2 w3 " in await page.text(".item-message .text")
            note(f"all of {count} {kind}", read_s=whole_ms / 1000, heap_mb=await heap(page))
            assert await heap(page) < MAX_HEAP_MB
            assert page.logged == []


async def test_a_workflow_whose_steps_have_very_many_events_opens_with_its_own() -> None:
    with talker("text", 5000, of_steps=100_000) as url:
        async with page_at(f"{url}/console/runs/{RUN_ID}") as page:
            await page.until("!!document.querySelector('.item-end')")
            assert "100,000 events more" in await page.text(".steps-apart")
            read = [each for each in page.requested if f"{RUN_ID}/events?" in each]
            assert [urlsplit(each).query for each in read] == ["names=off&from=-1000"]
            # What it has called is known with the events of its steps only.
            await page.click(".run-again")
            await page.until("!!document.querySelector('#again-text')")
            assert not await page.value("!!document.querySelector('.steps-apart')")
            read = [each for each in page.requested if f"{RUN_ID}/events?" in each]
            assert urlsplit(read[1]).query == "names=off&include=children"
            assert page.logged == []


async def test_words_are_found_among_all_events_of_a_run_with_very_many() -> None:
    with talker("tools", 5000) as url:
        async with page_at(f"{url}/console/runs/{RUN_ID}?tab=events") as page:
            await page.until("!!document.querySelector('#event-words')")
            await page.type("#event-words", "what is 7?")
            counted = "document.querySelector('.events .dim').textContent"
            await page.until(f"{counted} === '1 of 5000 events'")
            assert "tool0" in await page.text(".event")
            assert page.logged == []


async def test_a_page_whose_run_is_erased_meanwhile_says_that_events_are_gone() -> None:
    with talker("tools", 5000, is_erased=True) as url:
        async with page_at(f"{url}/console/runs/{RUN_ID}") as page:
            await page.until("!!document.querySelector('.item-end')")
            await page.click("#tab-events")
            await page.value("document.querySelector('.events .list').scrollTop = 0")
            gone = "Events of this run are not there any more. Load the page again."
            said = "document.querySelector('.events .notice')?.textContent"
            await page.until(f"{said}?.startsWith({json.dumps(gone)})")
            await page.click("#tab-timeline")
            await page.until(f"document.querySelector('.notice')?.textContent === '{gone}'")
            assert page.logged == []


async def test_a_place_of_a_run_with_very_many_events_is_shown_as_it_was() -> None:
    with talker("text", 5000) as url:
        async with page_at(f"{url}/console/runs/{RUN_ID}?at=3") as page:
            await page.until("!!document.querySelector('.item-message')")
            assert await page.text(".item-message .text") == "w2 w3 "
            assert await page.text(".watch [role=status]") == "after event 3 of 5000"
            assert page.logged == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_thousand_events_a_second_leave_the_page_time_for_its_frames(kind: str) -> None:
    with talker(kind, 15_000, per_s=1000) as url:
        async with page_at(f"{url}/docs") as page:
            await page.send("Performance.enable")
            await page.go(f"{url}/console/runs/{RUN_ID}")
            await page.until("document.querySelectorAll('.transcript li').length > 0")
            before = await task_s(page)
            longest_ms, per_s = await frames_of(page, 8)
            used_s = (await task_s(page) - before) / 8
            note(f"1,000 events/s of {kind}", frames_per_s=per_s, longest_ms=longest_ms, cpu=used_s)
            # A page that has the machine for itself has more frames; `note` says how many.
            assert longest_ms < 5000
            await page.until("!!document.querySelector('.item-end')")
            assert page.logged == []


async def test_a_list_of_very_many_runs_is_painted_at_once_and_scrolls() -> None:
    with talker("text", 2) as url:
        async with page_at(f"{url}/docs") as page:
            await page.go(f"{url}/console/runs")
            rows = "document.querySelectorAll('tbody tr').length"
            await page.until(f"{rows} === 50")
            paints = "performance.getEntriesByType('paint').map((each) => each.startTime)"
            first_ms = max(await page.value(paints))
            for number in range(2, 21):
                await page.value("document.querySelector('.more button').click()")
                await page.until(f"{rows} === {number * 50}")
            move = "scrollBy(0, scrollY + innerHeight > document.body.scrollHeight - 9 ? -1e9 : 60)"
            longest_ms, per_s = await frames_of(page, 4, move)
            note("1,000 rows", first_paint_ms=first_ms, frames_per_s=per_s, longest_ms=longest_ms)
            assert longest_ms < 5000
            assert page.logged == []


async def test_all_requests_of_a_run_are_in_its_links() -> None:
    with talker("text", 2) as url:
        async with page_at(f"{url}/console/runs/{RUN_ID}?tab=links") as page:
            asked = "document.querySelectorAll('.asked').length"
            await page.until(f"{asked} === 100")
            await page.click(".links-of .more button")
            await page.until(f"{asked} === 150")
            assert not await page.value("document.querySelector('.links-of .more')")
            assert page.logged == []
