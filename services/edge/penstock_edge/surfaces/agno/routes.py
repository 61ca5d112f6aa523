"""What agno-events.md and Agno's clients ask of a server."""

from __future__ import annotations

from penstock_edge.surfaces.agno.runs import Runs
from penstock_edge.surfaces.agno.server_info import ServerInfo
from penstock_edge.surfaces.agno.sessions import Sessions
from penstock_edge.surfaces.surface import Surface


class Agno(Surface):
    """Agents, teams, workflows, their runs and sessions, for any agent."""

    handlers = (Runs, Sessions, ServerInfo)
