"""The surface for AG-UI clients: their runs and threads."""

from __future__ import annotations

from penstock_edge.surfaces.agui.runs import Runs
from penstock_edge.surfaces.agui.threads import Threads
from penstock_edge.surfaces.surface import Surface


class Agui(Surface):
    """Has the handlers for runs and threads, for agents of every protocol."""

    handlers = (Runs, Threads)
