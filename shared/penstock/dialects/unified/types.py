"""Lists the 22 types of unified-events.md and their nine categories."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "session": ("session_started", "session_ended"),
    "agent_messages": ("agent_message_start", "agent_message_delta", "agent_message_end"),
    "tools": ("tool_call_started", "tool_call_delta", "tool_call_result"),
    "workflows": (
        "workflow_started",
        "workflow_step_started",
        "workflow_step_completed",
        "workflow_transition",
        "workflow_completed",
    ),
    "reasoning": ("agent_thought",),
    "errors": ("run_error", "run_retry", "run_interrupted"),
    "rag": ("retrieval_started", "retrieval_result"),
    "n8n": ("automation_triggered", "automation_completed"),
    "infrastructure": ("metrics_update",),
}

# Maps each unified type to its category. The names of the categories come from the summary table in
# unified-events.md, in snake_case.
CATEGORY_OF: Final[Mapping[str, str]] = {
    type: category for category, types in _TYPES.items() for type in types
}


def selected_types(categories: Collection[str] = (), types: Collection[str] = ()) -> frozenset[str]:
    """Return the types that are in one of the given categories and also among the given types.

    No categories means all categories, and no types means all types.

    Raises:
        ValueError: A category or type is unknown. The error's text names the unknown category or
            type.
    """
    known = set(CATEGORY_OF.values())
    if unknown := sorted({*categories} - known):
        raise ValueError(f"no such category: {', '.join(unknown)}")
    if unknown := sorted({*types} - CATEGORY_OF.keys()):
        raise ValueError(f"no such type: {', '.join(unknown)}")
    return frozenset(
        type
        for type, category in CATEGORY_OF.items()
        if (not categories or category in categories) and (not types or type in types)
    )
