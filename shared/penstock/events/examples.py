"""An example of every event, as it is published: the envelope around the example of its model."""

from __future__ import annotations

from typing import Final

from penstock.events.catalogue import CATALOGUE
from penstock.events.envelope import Event, parse, timestamp
from penstock.events.note import RUN_ID

_STARTED_MS: Final = 1_767_175_200_000  # 2025-12-31T10:00:00Z
_INTERVAL_MS: Final = 250  # between two events of the imagined run
_SECOND_LEG: Final = 11  # the sequence from which the events belong to the leg after the pause
_ASSISTANT: Final = {
    "agent_id": "assistant",
    "agent_type": "agent",
    "agent_name": "Assistant",
    "team_name": None,
}


def example(event_type: str) -> Event:
    """Return a whole event of the type `category.action`. Raise KeyError for an unknown type."""
    note = CATALOGUE[event_type].note
    category, action = event_type.split(".")
    return parse(
        {
            "run_id": RUN_ID,
            "timestamp": timestamp(_STARTED_MS + _INTERVAL_MS * note.sequence),
            "sequence": note.sequence,
            "source": _ASSISTANT if note.from_agent else None,
            "event": {"category": category, "action": action},
            "data": dict(note.example),
            "session_id": "thread-42",
            "leg": 2 if note.sequence >= _SECOND_LEG else 1,
        }
    )
