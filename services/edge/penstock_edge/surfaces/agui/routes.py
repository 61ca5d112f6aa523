"""What AG-UI's clients and agent-runs-sse.md ask of a server."""

from __future__ import annotations

from penstock_edge.surfaces.agui.runs import Runs
from penstock_edge.surfaces.agui.threads import Threads
from penstock_edge.surfaces.surface import Surface


class Agui(Surface):
    """Runs and threads, for any agent."""

    handlers = (Runs, Threads)
