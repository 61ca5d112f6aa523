"""Makes the envelope of a canonical event, encoded as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import orjson

from penstock.bus import masking
from penstock.dialects.base import Draft, JsonObject
from penstock.redaction import redacted_value

_TEXT_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "lifecycle.failed": ("error", "error_type", "detail"),
    "lifecycle.retrying": ("reason",),
    "llm.message_completed": ("error",),
    "llm.tool_result": ("error",),
    "dispatch.finished": ("error",),
    "workflow.step_failed": ("error",),
    "workflow.failed": ("error",),
    "automation.failed": ("error",),
    "system.warning": ("message", "detail"),
    "system.error": ("message", "detail"),
}


def redacted(event_type: str, data: JsonObject, hosts: Sequence[str]) -> JsonObject:
    """Return the event's data, redacted for clients; the same object if nothing was redacted.

    `hosts` are the host names of the run's agent server, which are redacted even if they look
    public.
    """
    fields = _TEXT_FIELDS.get(event_type)
    if fields is None:
        return data
    if event_type == "llm.tool_result" and data.get("outcome") == "error":
        fields = ("error", "result")  # if a tool failed, its result is the error text
    changed = {
        name: clean
        for name in fields
        if data.get(name) is not None and (clean := redacted_value(data[name], hosts)) != data[name]
    }
    return {**data, **changed} if changed else data


class NotEncodable(ValueError):
    """The event cannot be encoded as JSON: it is nested too deeply, or a number is out of range."""


# Facts that a run has, in addition to its parent's id, only if a workflow's step started the run.
_OF_CHILD: Final = ("step_id", "workflow_depth")


@dataclass(slots=True)
class CanonicalEvent:
    """An event with its sequence number in the run; `body` is the whole envelope as JSON."""

    type: str
    sequence: int
    timestamp: str
    data: JsonObject
    body: bytes
    unredacted: JsonObject | None = None  # `data` before redaction, if redaction changed it
    redactions: Sequence[JsonObject] = ()  # what the run's redactions took out


def canonical_event(
    draft: Draft,
    *,
    run_id: str,
    sequence: int,
    timestamp: str,
    facts: JsonObject,
    leg: int,
    attempt: int,
) -> CanonicalEvent:
    """Return the canonical event of a draft, with this sequence number in its run. `facts` is the
    payload of the run's first `open` frame. Raises NotEncodable."""
    data = redacted(draft.type, draft.data, facts.get("hosts", ()))
    body: JsonObject = {
        "run_id": run_id,
        "timestamp": timestamp,
        "sequence": sequence,
        "source": draft.source,
        "event": _event_name(draft.type),
        "data": data,
        "session_id": facts.get("session_id", ""),
        "leg": leg,
    }
    if attempt > 1:
        body["attempt"] = attempt
    if "parent_run_id" in facts:
        body["parent_run_id"] = facts["parent_run_id"]
        for name in _OF_CHILD:
            if name in facts:
                body[name] = facts[name]
    if draft.step_id is not None:
        body["step_id"] = draft.step_id
    if draft.subrun is not None:
        body["subrun"] = draft.subrun
    if draft.redactions:
        body["redactions"] = draft.redactions
    if draft.clear is not None:
        clear = redacted(draft.type, draft.clear, facts.get("hosts", ()))
        body = masking.with_both(body, clear)
    try:
        encoded = orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        raise NotEncodable(f"{draft.type} cannot be written: {error}") from error
    if thread_id := facts.get("thread_id"):
        # The agent server's id of the session is replaced by the session id that clients know.
        encoded = encoded.replace(thread_id.encode(), _within_quotes(facts["session_id"]))
    unredacted = None if data is draft.data else draft.data
    return CanonicalEvent(
        draft.type, sequence, timestamp, data, encoded, unredacted, draft.redactions
    )


@lru_cache(maxsize=256)
def _event_name(type_: str) -> JsonObject:
    category, _, action = type_.partition(".")
    return {"category": category, "action": action}


def _within_quotes(text: str) -> bytes:
    return orjson.dumps(text)[1:-1]
