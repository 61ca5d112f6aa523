"""Decodes the runs of workflows, which have no agent server: there is nothing to decode.

The service `workflows` writes the events of such a run as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.dialects.base import AgentFacts, Draft, JsonObject, Pause
from penstock.sse import Frame

PROTOCOL: Final = "workflow"  # in the facts of the run's first `open` frame
WRITER: Final = "workflows"  # the only writer whose events make up the run


class WorkflowDecoder:
    """A decoder without any state, which makes no drafts."""

    def __init__(self, facts: AgentFacts) -> None:
        pass

    def open(self, leg: int) -> Sequence[Draft | Pause]:
        """Return no drafts."""
        return ()

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        """Return no drafts."""
        return ()

    def feed(self, frame: Frame) -> Sequence[Draft | Pause]:
        """Return no drafts."""
        return ()

    def end(self) -> Sequence[Draft | Pause]:
        """Return no drafts."""
        return ()

    def abort(self) -> Sequence[Draft | Pause]:
        """Return no drafts."""
        return ()

    def snapshot(self) -> JsonObject:
        """Return an empty state."""
        return {}

    def restore(self, state: JsonObject) -> None:
        """Restore nothing."""
