"""Relays the artifacts of ADK sessions from the ADK server; clients can only read them.

Agents of other protocols have no artifacts. A request about a session of such an agent gets the
response that an ADK server gives for a session without artifacts.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.web.operation import TEXT, Parameter, a_list, in_path, json, serves
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.adk.operations import ADK, UPSTREAM, operation
from penstock_edge.surfaces.adk.servers import AdkServers, relayed
from penstock_edge.surfaces.adk.sessions import readable_by
from penstock_edge.surfaces.bodies import json_response

VERSIONS: Final = "versions"

_SESSION: Final = (by.APP, by.USER_ID, by.APP_SESSION_ID)
_ARTIFACT: Final = in_path(
    "artifact", "The artifact's name and what is below it: `report.txt`, `report.txt/versions/1`"
)
_VERSION: Final = Parameter(
    "version", "The version of the artifact; the newest without it", {"type": "integer"}
)
_operation = partial(operation, method="GET", scopes=("read",), refusals=UPSTREAM)
_SEPARATORS: Final = re.compile(r"[/\\]")


class Artifacts:
    """Has the handlers for a session's artifacts: the list, one artifact, and its versions."""

    def __init__(self, edge: Edge, servers: AdkServers) -> None:
        self._edge = edge
        self._servers = servers

    @serves(
        _operation(
            path="/apps/{app}/users/{user}/sessions/{session}/artifacts",
            summary="The names of a session's artifacts",
            answers={200: json("The names", a_list(TEXT))},
            parameters=_SESSION,
        )
    )
    async def index(self, request: Request) -> ASGIApp:
        return await self._relay(request, [])

    @serves(
        _operation(
            path="/apps/{app}/users/{user}/sessions/{session}/artifacts/{artifact:path}",
            summary="An artifact, one of its versions, or what is known of its versions",
            answers={200: json("What the ADK server answers", {})},
            parameters=(*_SESSION, _ARTIFACT, _VERSION),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        path = request.path_params["artifact"]
        if any(part in (".", "..") for part in _SEPARATORS.split(path)):
            # A server or a proxy could resolve `..` to the path of another user's session.
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
