"""What official clients ask before anything else: is somebody there, and which agents are there.

Agno's `AgentOSClient` asks `/config` and `/health`, `adk web` asks `/list-apps`.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from penstock.bus.messages import now
from penstock.web.auth import identity_of, require
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.common import ADK, detail_shape, json_response
from penstock_edge.surfaces.agno.routes import KINDS
from penstock_edge.surfaces.endpoint import route

OS_ID: Final = "penstock"


class FirstLooks:
    """Handlers of /config, /health and /list-apps."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._since = now()

    def routes(self) -> list[BaseRoute]:
        """All of them; errors are `{detail}`."""
        handlers = {"/config": self.config, "/health": self.health, "/list-apps": self.apps}
        bus = self._edge.bus
        return [route(bus, path, {"GET": get}, detail_shape) for path, get in handlers.items()]

    async def config(self, request: Request) -> ASGIApp:
        """Agno's configuration: the agents, teams and workflows; no database is ours to name."""
        require(identity_of(request), "read")
        told: dict[str, Any] = {"os_id": OS_ID, "name": "Penstock", "databases": []}
        for kind in KINDS:
            told[f"{kind}s"] = [
                {"id": agent.id, "name": agent.name or agent.id}
                for agent in self._edge.config.agents
                if agent.kind == kind
            ]
        return json_response({**told, "interfaces": []})

    async def health(self, request: Request) -> ASGIApp:
        """That this edge answers; whether it should be given work is said by `/readyz`."""
        require(identity_of(request), "read")
        return json_response({"status": "ok", "instantiated_at": self._since})

    async def apps(self, request: Request) -> ASGIApp:
        """The names by which ADK's clients call the agents."""
        require(identity_of(request), "read")
        if request.query_params.get("detailed", "false") != "false":
            raise Problem(422, "detailed: only the names of the apps are known here")
        agents = self._edge.config.agents
        names = [agent.agent if agent.protocol == ADK else agent.id for agent in agents]
        return json_response(sorted(set(names)))
