"""What the handlers of the ADK surface have in common."""

from __future__ import annotations

from typing import Final

from penstock.web.problems import Problem
from penstock_edge.edge import Edge

ADK: Final = "adk"
NOT_ENABLED: Final = (
    "ADK canonical streaming not enabled. "
    "Set ENABLE_ADK_CANONICAL_STREAM=true to use this endpoint."
)


def require_enabled(edge: Edge) -> None:
    """Raises Problem 501 unless the contract's flag is set."""
    if not edge.settings.enable_adk_canonical_stream:
        raise Problem(501, NOT_ENABLED)
