"""The artifacts of ADK sessions, read only: relays to the session's own ADK server.

Agents that are no ADK agents keep none, which is what an ADK server says of an empty session.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.apps import PATH as SESSIONS
from penstock_edge.surfaces.adk.apps import readable_by
from penstock_edge.surfaces.adk.common import ADK
from penstock_edge.surfaces.adk.server import AdkServers, relayed
from penstock_edge.surfaces.endpoint import route
from penstock_edge.surfaces.errors import detail_shape
from penstock_edge.surfaces.responses import json_response

PATH: Final = f"{SESSIONS}/{{session}}/artifacts"
VERSIONS: Final = "versions"

_SEPARATORS: Final = re.compile(r"[/\\]")


class Artifacts:
    """Handlers of a session's artifacts: the list, one of them, its versions."""

    def __init__(self, edge: Edge, servers: AdkServers) -> None:
        self._edge = edge
        self._servers = servers

    def routes(self) -> list[BaseRoute]:
        """Two paths: what is below an artifact's name is the ADK server's to tell apart."""
        bus = self._edge.bus
        return [
            route(bus, PATH, {"GET": self.index}, detail_shape),
            route(bus, f"{PATH}/{{artifact:path}}", {"GET": self.show}, detail_shape),
        ]

    async def index(self, request: Request) -> ASGIApp:
        """The names of the session's artifacts."""
        return await self._relay(request, [])

    async def show(self, request: Request) -> ASGIApp:
        """An artifact, one version of it, its versions, or what is known about them."""
        path = request.path_params["artifact"]
        if any(part in (".", "..") for part in _SEPARATORS.split(path)):
            # a server or a proxy on the way might take it for the path to another user's session
            raise Problem(404, "Artifact not found")
        return await self._relay(request, path.split("/"))

    async def _relay(self, request: Request, below: list[str]) -> ASGIApp:
        named = readable_by(self._edge, request)
        if named.agent.protocol != ADK:
            if not below or below[-1] == VERSIONS:
                return json_response([])
            raise Problem(404, "Artifact not found")
        query = {"version": version} if (version := request.query_params.get("version")) else {}
        return relayed(
            await self._servers.artifact(named.agent, named.user_id, named.id, below, query)
        )
