"""The proxies of a round: what they record, and how they cut and delay connections."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from support.chaos.links import Link, links
from support.chaos.recorder import recorder
from support.drive.waiting import eventually
from support.fakes.misbehaving import cuts, misbehaving, plays, stalls
from support.fakes.serving import close_after

BODY = b"data: one\n\ndata: two\n\n"
PATH = "/agents/a/runs"


async def test_an_answer_is_kept_and_passed_on_byte_for_byte() -> None:
    async with misbehaving() as upstream, recorder(upstream.url) as proxy:
        upstream.script(plays(BODY))
        async with httpx.AsyncClient(base_url=proxy.url) as client:
            for _ in range(2):  # over one connection
                answer = await client.post(PATH, content=b"message=x")
                assert answer.content == BODY
        assert [call.body for call in upstream.calls] == [b"message=x"] * 2
    for exchange in proxy.exchanges:
        assert (exchange.path, exchange.request) == (PATH, b"message=x")
        assert (exchange.status, bytes(exchange.body), exchange.ended) == (200, BODY, "whole")


async def test_an_answer_that_is_cut_is_cut_on_both_sides() -> None:
    async with misbehaving() as upstream, recorder(upstream.url) as proxy:
        upstream.script(plays(BODY, stalls))
        async with (
            httpx.AsyncClient(base_url=proxy.url) as client,
            client.stream("POST", PATH) as answer,
        ):
            chunks = answer.aiter_bytes()
            assert await anext(chunks) == BODY
            assert proxy.cut() == 1
            with pytest.raises(httpx.TransportError):
                await anext(chunks)
        await upstream.dropped()
    (exchange,) = proxy.exchanges
    assert (bytes(exchange.body), exchange.ended) == (BODY, "cut")


async def test_the_members_that_left_are_known() -> None:
    async with misbehaving() as upstream, recorder(upstream.url) as proxy:
        upstream.script(plays(BODY, stalls), plays(BODY, cuts))
        async with httpx.AsyncClient(base_url=proxy.url) as client:
            async with client.stream("POST", PATH) as answer:
                assert await anext(answer.aiter_bytes()) == BODY
            await upstream.dropped()
            with pytest.raises(httpx.TransportError):
                await client.post(PATH)
    assert [exchange.ended for exchange in proxy.exchanges] == ["client left", "server left"]


# A NATS client first sends its name.
HELLO = b'CONNECT {"name": "edge-host-%d-abcdef"}\r\n'
PID = os.getpid()


@asynccontextmanager
async def an_echo() -> AsyncIterator[Link]:
    """Run a link in front of a server that sends everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1000):
                writer.write(data)
        writer.transport.abort()

    async with links(1) as (link,):
        server = await asyncio.start_server(close_after(echo), "127.0.0.1", 0)
        link.target = server.sockets[0].getsockname()[1]
        yield link
        server.close()


async def says(link: Link, pid: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(HELLO % pid)
    return reader, writer


async def test_the_connections_of_one_process_are_cut_and_refused_until_they_are_healed() -> None:
    async with an_echo() as link:
        mine, others = await says(link, PID), await says(link, PID + 1)
        for reader, _ in (mine, others):
            await reader.readline()
        link.cut(PID)
        with suppress(ConnectionResetError):
            assert await mine[0].read() == b""
        again = await says(link, PID)
        with suppress(ConnectionResetError):
            assert await again[0].read() == b""
        others[1].write(b"still here\n")
        assert await others[0].readline() == b"still here\n"
        link.heal(PID)
        healed = await says(link, PID)
        assert await healed[0].readline() == HELLO % PID
        for _, writer in (mine, others, again, healed):
            writer.close()


async def test_what_is_said_while_a_connection_hangs_comes_later() -> None:
    async with an_echo() as link:
        reader, writer = await says(link, PID)
        await reader.readline()
        link.hang(PID)
        writer.write(b"hello\n")
        waiting = asyncio.create_task(reader.readline())
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        link.heal(PID)

        async def arrived() -> bool:
            return waiting.done()

        await eventually(arrived)
        assert waiting.result() == b"hello\n"
        writer.close()
