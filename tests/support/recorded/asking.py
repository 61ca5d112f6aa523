"""A recorded run that asks, as canonical events, for the tests of clients."""

from __future__ import annotations

from typing import Any

from support.fakes.penstock_api import APPROVAL_ID, events

_ITEM: dict[str, Any] = {
    **{"item_id": "i1", "kind": "confirmation", "digest": "d0"},
    **{"tool": "rm", "editable": False},
}
ASKING = events(
    ("lifecycle.started", {"agent": "assistant", "user_id": "ada"}),
    ("llm.stream", {"content": "Hel", "message_id": "m"}),
    ("llm.stream", {"content": "lo", "message_id": "m"}),
    (
        "approval.requested",
        {"approval_id": APPROVAL_ID, "digest": "d1", "deciders_required": 1, "items": [_ITEM]},
    ),
    ("lifecycle.paused", {"reason": "approval_required", "approval_id": APPROVAL_ID}),
    ("lifecycle.resumed", {"approval_id": APPROVAL_ID}),
    ("lifecycle.completed", {"summary": "Hello"}),
)
