"""The Agno surface: all endpoints that Agno's clients call, and those in agno-events.md."""

from __future__ import annotations

from penstock_edge.surfaces.agno.runs import Runs
from penstock_edge.surfaces.agno.server_info import ServerInfo
from penstock_edge.surfaces.agno.sessions import Sessions
from penstock_edge.surfaces.surface import Surface


class Agno(Surface):
    """Has the handlers for agents, teams, workflows, runs and sessions."""

    handlers = (Runs, Sessions, ServerInfo)
