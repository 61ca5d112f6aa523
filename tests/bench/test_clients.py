"""The clients of the benchmarks detect faults of a stream, without which no figure is valid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench import load
from bench.seen import Clients, Window
from support.real.ports import free_port

GOOD = (1, 2, 3, 4, 5, 6)
WITH_A_GAP = (1, 2, 3, 5, 6)
WITH_A_REPEAT = (1, 2, 3, 3, 4, 5)


@asynccontextmanager
async def server(numbers: Sequence[int], status: str = "200 OK") -> AsyncIterator[str]:
    """Send the events of these numbers to each client, each event in a chunk."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\n"
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for number in numbers:
            frame = f'id: {number}\ndata: {{"text":"@n={number} @t={time.time_ns()}"}}\n\n'
            writer.write(f"{len(frame):x}\r\n{frame}\r\n".encode())
            await writer.drain()
            await asyncio.sleep(0.01)
        await reader.read()
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["c", "python"])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    load.program.cache_clear()
    monkeypatch.setenv(load.CLIENTS, request.param)
    if request.param == "c" and load.program() is None:
        pytest.skip("no C compiler")
    return str(request.param)


@pytest.mark.parametrize(
    ("numbers", "gaps", "repeats"), [(GOOD, 0, 0), (WITH_A_GAP, 1, 0), (WITH_A_REPEAT, 0, 1)]
)
async def test_the_clients_count_events_gaps_and_repeats(
    program: str, tmp_path: Path, numbers: Sequence[int], gaps: int, repeats: int
) -> None:
    async with server(numbers) as url:
        clients = Clients(url, ["/"], 3)
        window = Window(stop_after=len(numbers))
        seen = await load.measure(clients, window, {}, tmp_path)
    assert (seen.connected, seen.events) == (3, 3 * len(numbers))
    assert (seen.gaps, seen.repeats) == (3 * gaps, 3 * repeats)
    assert 0 < seen.p99_ms < 5000


async def test_the_c_program_counts_refusals_as_errors(tmp_path: Path) -> None:
    load.program.cache_clear()
    if load.program() is None:
        pytest.skip("no C compiler")
    async with server((), "503 Service Unavailable") as url:
        seen = await load.measure(Clients(url, ["/"], 2), Window(0.1, 0.1), {}, tmp_path)
    assert seen.connected == 0
    assert seen.errors > 0
