"""The protocols that `chaos` speaks, by their names on the command line."""

from __future__ import annotations

from penstock_conformance.chaos.protocols.adk import Adk
from penstock_conformance.chaos.protocols.agno import Agno
from penstock_conformance.chaos.protocols.agui import Agui
from penstock_conformance.chaos.protocols.base import Protocol
from penstock_conformance.chaos.protocols.langgraph import LangGraph
from penstock_conformance.chaos.protocols.penstock import Penstock

PROTOCOLS: dict[str, type[Protocol]] = {
    "adk": Adk,
    "agno": Agno,
    "agui": Agui,
    "langgraph": LangGraph,
    "penstock": Penstock,
}
