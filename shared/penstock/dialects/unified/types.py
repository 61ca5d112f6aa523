"""Lists the 22 types of unified-events.md and their nine categories.

`OMITTED` lists the canonical types that have no unified type.
"""

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

# The canonical types that have no unified type. Each value says where a client sees the content of
# such an event instead.
OMITTED: Final[Mapping[str, str]] = {
    "lifecycle.resumed": "what follows shows that the run goes on",
    "llm.tool_args": "tool_call_started has the arguments whole",
    "dispatch.team": "the team's own messages and calls name it as their agent",
    "dispatch.worker": "the worker's own messages and calls name it as their agent",
    "dispatch.transfer": "what follows names the new agent",
    "dispatch.finished": "the worker's messages and results have ended",
    "workflow.step_progress": "no field of the document could carry it",
    "workflow.failed": "run_error of the run that failed with it",
    "approval.requested": "run_interrupted, where a person must decide",
    "approval.decided": "the run goes on; a refused call has a result with is_error",
    "approval.escalated": "no type of the document",
    "approval.expired": "the run goes on or ends",
    "approval.withdrawn": "session_ended came before",
    "state.snapshot": "no type of the document",
    "state.delta": "no type of the document",
    "state.messages": "no type of the document",
    "artifact.updated": "no type of the document",
    "custom.event": "no type of the document",
}


def selected_types(categories: Collection[str] = (), types: Collection[str] = ()) -> frozenset[str]:
    """Returns the types that are in one of the given categories and also among the given types.

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
