"""Reads the stream of a workflow's run, with the runs of its steps, by the hubs of an edge."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.dialects.agui.encode import PROFILES
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.sse import Frame, Parser
from penstock_edge.edge import Edge
from penstock_edge.sources.locate import locate
from penstock_edge.stream.client import Client
from penstock_edge.views.cursor import Cursor

DIALECTS = (*CLIENT_DIALECTS, *PROFILES)
READ_S = 60


@dataclass
class TreeReader:
    """Reads trees as clients of this edge do."""

    edge: Edge

    async def join(self, run_id: str, dialect: str, after: str | None = None) -> Client:
        """Return a client that begins after this cursor."""
        view = self.edge.view(run_id, dialect, children=True)
        position = await locate(self.edge.bus, view, Cursor.parse(after) if after else None)
        return await self.edge.hubs.join(view, position)

    async def frames(self, run_id: str, dialect: str, after: str | None = None) -> list[Frame]:
        """Return all frames after this cursor, up to the end of the stream."""
        return await taken(await self.join(run_id, dialect, after))


async def taken(client: Client) -> list[Frame]:
    """Return all frames up to the end of the client's stream."""
    parser, frames = Parser(), []
    async with asyncio.timeout(READ_S):
        while (body := await client.take()) is not None:
            frames += parser.feed(body)
    client.leave()
    return frames
