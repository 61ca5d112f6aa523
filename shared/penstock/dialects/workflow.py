"""The decoder for the runs of workflows, which decodes nothing: these runs have no agent server.

The service `workflows` writes the canonical events of such a run itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.dialects.base import AgentFacts, Draft, JsonObject, Pause
from penstock.sse import Frame

PROTOCOL: Final = "workflow"  # The protocol in the facts of the run's first `open` frame.
WRITER: Final = "workflows"  # The only writer of the run's events.


class WorkflowDecoder:
    """A decoder without any state, which makes no drafts."""

    def __init__(self, facts: AgentFacts) -> None:
        pass

    def open(self, leg: int) -> Sequence[Draft | Pause]:
        return ()

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        return ()

    def feed(self, frame: Frame) -> Sequence[Draft | Pause]:
        return ()

    def end(self) -> Sequence[Draft | Pause]:
        return ()

    def abort(self) -> Sequence[Draft | Pause]:
        return ()

    def snapshot(self) -> JsonObject:
        return {}

    def restore(self, state: JsonObject) -> None:
        """Restore nothing."""
