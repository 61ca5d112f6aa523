"""The edge checks seldom whether an agent server answers, however many clients want to know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.settings import AgnoAgent, Config
from penstock_edge.edge import Edge
from penstock_edge.surfaces.v1.agent_list import AgentList
from support.fakes.serving import close_after
from support.real.ports import free_port


def agents_at(*urls: str) -> AgentList:
    config = Config(
        agents=[
            AgnoAgent(id=f"agent-{number}", protocol="agno", url=url, headers={"x-key": "secret"})
            for number, url in enumerate(urls)
        ]
    )
    return AgentList(cast("Edge", SimpleNamespace(config=config)))


@asynccontextmanager
async def answering(head: bytes, asked: list[bytes]) -> AsyncIterator[str]:
    """Serve this answer to every request; yield the URL of the server."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 " + head + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(close_after(answer), "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_server_of_many_agents_is_asked_once_for_many_callers_without_their_headers() -> (
    None
):
    asked: list[bytes] = []
    async with answering(b"404 Not Found", asked) as url:
        agents = agents_at(url, url)
        told = await asyncio.gather(*(agents.states() for _ in range(20)))
        await agents.close()
    assert told == [["answering", "answering"]] * 20
    assert len(asked) == 1
    assert b"secret" not in asked[0]


@pytest.mark.parametrize(
    ("head", "state"),
    [
        (b"503 Service Unavailable\r\nRetry-After: 5", "starting"),
        (b"503 Service Unavailable", "answering"),
        (b"429 Too Many Requests\r\nRetry-After: 5", "answering"),
    ],
)
async def test_a_server_that_says_when_to_come_back_is_starting(head: bytes, state: str) -> None:
    async with answering(head, []) as url:
        agents = agents_at(url)
        assert await agents.states() == [state]
        await agents.close()


async def test_a_server_that_is_not_there_does_not_answer() -> None:
    agents = agents_at(f"http://127.0.0.1:{free_port()}")
    assert await agents.states() == ["silent"]
    await agents.close()
