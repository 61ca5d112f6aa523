"""The surface that serves agno-events.md to Agno's clients."""

from __future__ import annotations

from penstock_edge.surfaces.agno.runs import Runs
from penstock_edge.surfaces.agno.server_info import ServerInfo
from penstock_edge.surfaces.agno.sessions import Sessions
from penstock_edge.surfaces.surface import Surface


class Agno(Surface):
    """Has the handlers for agents, teams, workflows, runs and sessions."""

    handlers = (Runs, Sessions, ServerInfo)
