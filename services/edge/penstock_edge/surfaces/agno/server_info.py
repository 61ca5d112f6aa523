"""What Agno's `AgentOSClient` asks first: whether the server answers, and which agents it has."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from penstock.bus.messages import now
from penstock.web.auth import identity_of, require
from penstock_edge.edge import Edge
from penstock_edge.surfaces.agno.routes import KINDS
from penstock_edge.surfaces.endpoint import route
from penstock_edge.surfaces.errors import detail_shape
from penstock_edge.surfaces.responses import json_response

OS_ID: Final = "penstock"


class FirstLooks:
    """Handlers of /config and /health."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._since = now()

    def routes(self) -> list[BaseRoute]:
        """All of them; errors are `{detail}`."""
        handlers = {"/config": self.config, "/health": self.health}
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
