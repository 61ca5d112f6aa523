"""Makes the events that clients get of a run whose content was erased. Pure.

EVENTS has only the event `system.erased` of such a run. The begin and the end of the run are made
from its record, because a client of each dialect needs them to know that the stream is complete.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.bus import Stored, subjects
from penstock.bus.records.erasures import Erasure
from penstock.bus.records.runs import RunRecord
from penstock.dialects.agui.encode import PROFILES
from penstock.dialects.encoders import CLIENT_DIALECTS

JsonObject = dict[str, Any]

TEXT: Final = "The content of this run was erased."
ERASED: Final = "system.erased"
_MESSAGE: Final = {"message_id": "erased", "role": "assistant"}
# The dialects whose clients know the event itself.
_CANONICAL: Final = ("canonical", "executions")


def erased_text(record: RunRecord, erasure: Erasure) -> str:
    return f"the content of run {record.run_id} was erased at {erasure.at} by {erasure.by}"


def erased_events(record: RunRecord, erasure: Erasure, dialect: str) -> list[JsonObject]:
    """Return the events of the run in this dialect, in order."""
    begin = ("lifecycle.started", {"agent": record.agent, "user_id": record.user_id})
    end = (f"lifecycle.{record.status}", _end_of(record))
    of_erasure = {"erasure_id": erasure.id, "by": erasure.by, "reason": erasure.reason}
    told: list[tuple[str, JsonObject]]
    known = CLIENT_DIALECTS.get(dialect)
    if dialect in _CANONICAL:
        told = [(ERASED, of_erasure)]
    elif dialect in PROFILES or (known is not None and known.has_warnings):
        told = [("system.warning", {"message": TEXT, "code": "erased"})]
    else:
        told = [
            ("llm.message_started", _MESSAGE),
            ("llm.stream", {"message_id": "erased", "content": TEXT}),
            ("llm.message_completed", {**_MESSAGE, "content": TEXT}),
        ]
    return [
        _event(record, 1, record.created_at, *begin),
        *(
            _event(record, erasure.sequence + at, erasure.at, *each)
            for at, each in enumerate([*told, end])
        ),
    ]


def erased_messages(
    record: RunRecord, erasure: Erasure, dialect: str, stored_at: int
) -> list[Stored]:
    """Return the events as messages. `stored_at` is the stream sequence of `system.erased`, around
    which the run has no other messages, so theirs are in no other cursor of the run."""
    return [
        Stored(subjects.event(_type_of(each), record.run_id), sequence, {}, orjson.dumps(each))
        for sequence, each in enumerate(
            erased_events(record, erasure, dialect), max(stored_at - 1, 1)
        )
    ]


def _event(
    record: RunRecord, sequence: int, timestamp: str, type_: str, data: JsonObject
) -> JsonObject:
    category, _, action = type_.partition(".")
    return {
        "run_id": record.run_id,
        "timestamp": timestamp,
        "sequence": sequence,
        "source": None,
        "event": {"category": category, "action": action},
        "data": {name: value for name, value in data.items() if value is not None},
        "session_id": record.session_id,
        "leg": 1,
    }


def _end_of(record: RunRecord) -> JsonObject:
    if record.status == "failed":
        return {"error": TEXT, "code": record.code or "internal"}
    if record.status == "cancelled":
        return {"reason": "user_stop", "confirmed": True}
    return {"summary": ""}


def _type_of(event: JsonObject) -> str:
    return f"{event['event']['category']}.{event['event']['action']}"
