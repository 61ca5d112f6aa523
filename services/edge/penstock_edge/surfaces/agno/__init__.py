"""The surface that serves agno-events.md to Agno's clients."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus.messages import now
from penstock.web.operation import OBJECT, TEXT, Operation, an_object, json, serves
from penstock.web.problems import DETAIL
from penstock_edge.edge import Edge
from penstock_edge.surfaces.agno.request import KINDS
from penstock_edge.surfaces.agno.runs import Runs, agents_shown
from penstock_edge.surfaces.agno.sessions import Sessions
from penstock_edge.surfaces.bodies import json_response
from penstock_edge.surfaces.surface import Surface

OS_ID: Final = "penstock"


_operation = partial(Operation, method="GET", tag="agno", scopes=("read",), errors=DETAIL)


class ServerInfo:
    """Has the handlers of /config and /health, which Agno's `AgentOSClient` calls first."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._since = now()

    @serves(
        _operation(
            path="/config",
            summary="The configuration, as AgentOSClient asks for it",
            answers={200: json("The configuration", OBJECT)},
        )
    )
    async def config(self, request: Request) -> ASGIApp:
        shown: dict[str, Any] = {"os_id": OS_ID, "name": "Penstock", "databases": []}
        for kind in KINDS:
            shown[f"{kind}s"] = agents_shown(self._edge.config, kind)
        return json_response({**shown, "interfaces": []})

    @serves(
        _operation(
            path="/health",
            summary="Whether the edge answers",
            answers={200: json("The edge answers", an_object(status=TEXT, instantiated_at=TEXT))},
        )
    )
    async def health(self, request: Request) -> ASGIApp:
        return json_response({"status": "ok", "instantiated_at": self._since})


class Agno(Surface):
    """Has the handlers for agents, teams, workflows, runs and sessions."""

    handlers = (Runs, Sessions, ServerInfo)
