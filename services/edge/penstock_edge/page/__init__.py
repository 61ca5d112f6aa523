"""The first page, `/docs` and what both load: static files, and `GET /v1/agents`."""

from penstock_edge.page.agents import Agents
from penstock_edge.page.files import files

__all__ = ["Agents", "files"]
