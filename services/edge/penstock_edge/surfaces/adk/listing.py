"""What `adk web` asks first: which version answers, and which apps there are."""

from __future__ import annotations

import asyncio
import logging
import platform
from importlib.metadata import version
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from penstock.settings import AgentConfig
from penstock.web.auth import identity_of, require
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.common import ADK
from penstock_edge.surfaces.adk.server import AdkServers
from penstock_edge.surfaces.endpoint import route
from penstock_edge.surfaces.errors import detail_shape
from penstock_edge.surfaces.responses import json_response

log = logging.getLogger(__name__)

DISTRIBUTION: Final = "penstock-edge"

# How FastAPI reads a bool of a query.
_BOOL: Final = {
    **dict.fromkeys(("true", "1", "on", "yes", "t", "y"), True),
    **dict.fromkeys(("false", "0", "off", "no", "f", "n"), False),
}


class Listing:
    """Handlers of /list-apps and /version."""

    def __init__(self, edge: Edge, servers: AdkServers) -> None:
        self._edge = edge
        self._servers = servers

    def routes(self) -> list[BaseRoute]:
        """Both; errors are `{detail}`."""
        handlers = {"/list-apps": self.apps, "/version": self.version}
        bus = self._edge.bus
        return [route(bus, path, {"GET": get}, detail_shape) for path, get in handlers.items()]

    async def version(self, request: Request) -> ASGIApp:
        """The version of Penstock: ADK servers of several versions may be behind it."""
        require(identity_of(request), "read")
        told = {"version": version(DISTRIBUTION), "language": "python"}
        return json_response({**told, "language_version": platform.python_version()})

    async def apps(self, request: Request) -> ASGIApp:
        """The names by which ADK's clients call the agents; `detailed`: with descriptions."""
        require(identity_of(request), "read")
        detailed = _BOOL.get(request.query_params.get("detailed", "false").lower())
        if detailed is None:
            raise Problem(422, "detailed must be true or false")
        agents = {_name(agent): agent for agent in self._edge.config.agents}
        names = sorted(agents)
        if not detailed:
            return json_response(names)
        servers = {agent.url: agent for agent in agents.values() if agent.protocol == ADK}
        told = await asyncio.gather(*map(self._described, servers.values()))
        by_server = dict(zip(servers, told, strict=True))
        described = [
            by_server.get(agents[name].url, {}).get(name) or _known(name, agents[name])
            for name in names
        ]
        return json_response({"apps": described})

    async def _described(self, agent: AgentConfig) -> dict[str, dict[str, Any]]:
        """What this agent's ADK server says about its apps, by their names."""
        try:
            apps = await self._servers.described(agent)
        except Problem as problem:
            log.warning("the server of agent %s describes no apps: %s", agent.id, problem.detail)
            return {}
        named = [app for app in apps if isinstance(app, dict) and isinstance(app.get("name"), str)]
        return {app["name"]: app for app in named}


def _name(agent: AgentConfig) -> str:
    return agent.agent if agent.protocol == ADK else agent.id


def _known(name: str, agent: AgentConfig) -> dict[str, Any]:
    """An app as the configuration knows it, in the shape of ADK's AppInfo."""
    return {
        "name": name,
        "rootAgentName": agent.name or name,
        "description": "",
        "language": "python",
        "isComputerUse": False,
        "agents": None,
    }
