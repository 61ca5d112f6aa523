"""Keeps the approvals for which a run waits.

A workflow's run may wait for several approvals at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.dialects.base import Json, JsonObject
from penstock.dialects.json import objects

# The types of the events after which an approval can no longer be decided.
_SETTLED: Final = frozenset({"approval.decided", "approval.expired", "approval.withdrawn"})


@dataclass(slots=True)
class OpenApprovals:
    """Keeps the requests that wait for a decision, in the order of the requests."""

    requests: dict[Json, JsonObject] = field(default_factory=dict)

    def feed(self, event_type: str, data: JsonObject) -> None:
        """Take an event of the category `approval`."""
        approval_id = data.get("approval_id")
        if event_type == "approval.requested":
            self.requests[approval_id] = data
        elif event_type in _SETTLED:
            self.requests.pop(approval_id, None)

    def items(self) -> Iterator[tuple[JsonObject, JsonObject]]:
        """Yield each open item, with the data of its `approval.requested`."""
        for request in self.requests.values():
            for item in objects(request.get("items")):
                yield request, item
