"""The endpoints that `adk web` calls first: the server's version, and the list of apps."""

from __future__ import annotations

import asyncio
import logging
import platform
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.settings import AdkAgent, AgentConfig
from penstock.web.operation import (
    FLAG,
    OBJECT,
    TEXT,
    Operation,
    Parameter,
    a_list,
    an_object,
    json,
    serves,
)
from penstock.web.problems import DETAIL, Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.operations import ADK
from penstock_edge.surfaces.adk.servers import AdkServers
from penstock_edge.surfaces.bodies import json_response

log = logging.getLogger(__name__)

DISTRIBUTION: Final = "penstock-edge"

# Maps each text that FastAPI accepts as a bool in a query to the bool.
_BOOL: Final = {
    **dict.fromkeys(("true", "1", "on", "yes", "t", "y"), True),
    **dict.fromkeys(("false", "0", "off", "no", "f", "n"), False),
}


_APPS: Final = {"oneOf": [a_list(TEXT), an_object(apps=a_list(OBJECT))]}
_VERSION: Final = an_object(version=TEXT, language=TEXT, language_version=TEXT)
_DETAILED: Final = Parameter(
    "detailed", "Whether apps are objects with descriptions instead of names", FLAG
)
_operation = partial(Operation, method="GET", tag="adk", scopes=("read",), errors=DETAIL)


class AppList:
    """Has the handlers of /list-apps and /version."""

    def __init__(self, edge: Edge, servers: AdkServers) -> None:
        self._edge = edge
        self._servers = servers

    @serves(
        _operation(
            path="/version",
            summary="Penstock's version",
            answers={200: json("The version", _VERSION)},
        )
    )
    async def version(self, request: Request) -> ASGIApp:
        return json_response(
            {
                "version": version(DISTRIBUTION),
                "language": "python",
                "language_version": platform.python_version(),
            }
        )

    @serves(
        _operation(
            path="/list-apps",
            summary="The agents as ADK's apps",
            answers={200: json("The names, as `appName` takes them, or objects", _APPS)},
            parameters=(_DETAILED,),
        )
    )
    async def apps(self, request: Request) -> ASGIApp:
        detailed = _BOOL.get(request.query_params.get("detailed", "false").lower())
        if detailed is None:
            raise Problem(422, "detailed must be true or false")
        agents = {_name(agent): agent for agent in self._edge.config.agents}
        names = sorted(agents)
        if not detailed:
            return json_response(names)
        adk = [agent for agent in self._edge.config.agents if isinstance(agent, AdkAgent)]
        servers = {agent.url: agent for agent in adk}
        descriptions = await asyncio.gather(*map(self._described, servers.values()))
        by_server = dict(zip(servers, descriptions, strict=True))
        of_server = {_name(agent): by_server[agent.url] for agent in adk}
        described = [
            of_server.get(name, {}).get(name) or _known(name, agents[name]) for name in names
        ]
        return json_response({"apps": described})

    async def _described(self, agent: AdkAgent) -> dict[str, dict[str, Any]]:
        """Return nothing if the server does not answer."""
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
    """Return the shape of ADK's AppInfo."""
    return {
        "name": name,
        "rootAgentName": agent.name or name,
        "description": "",
        "language": "python",
        "isComputerUse": False,
        "agents": None,
    }
