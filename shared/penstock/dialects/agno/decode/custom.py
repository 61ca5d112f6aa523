"""Finds the canonical type of a custom event."""

from __future__ import annotations

from penstock.dialects.agno.decode.frames import AgnoFrame
from penstock.dialects.base import Draft
from penstock.dialects.custom_events import from_custom

# The keys that every frame may have. These keys are not part of a custom event's value.
_COMMON = frozenset(
    {
        *("created_at", "event", "event_index", "nested_depth", "tools", "session_id"),
        *("run_id", "parent_run_id", "workflow_run_id", "agent_id", "agent_name"),
        *("team_id", "team_name", "workflow_id", "workflow_name"),
        *("step_id", "step_name", "step_index", "parent_step_id"),
    }
)


def canonical_draft(name: str, body: AgnoFrame, name_key: str) -> Draft | None:
    """Return the canonical draft of a custom event; None if no canonical type fits.

    The value may be under `value`, `payload` or `data`. The value may also consist of the event's
    own keys without `_COMMON` and `name_key`. The first of these candidates that fits a canonical
    type is used.
    """
    values = [body[key] for key in ("value", "payload", "data") if key in body]
    values.append({k: item for k, item in body.items() if k not in _COMMON and k != name_key})
    drafts = (from_custom(name, value) for value in values)
    return next((draft for draft in drafts if draft is not None), None)
