"""Encodes canonical events into the custom events of adk-streaming.md, "Legacy Pattern".

A frame has `event: <type>` and the data `{type, sessionId, runId, author, content, timestamp}`. A
`research_update` is a complete message, a `research_complete` is the final report, and an
`agent_status` is a change of the agent's activity or the end of a run without a report. Times are
seconds since 1970, as in ADK.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.dialects.base import JsonObject, epoch_s, frame, type_of
from penstock.sse import Frame

UPDATE: Final = "research_update"
STATUS: Final = "agent_status"
COMPLETE: Final = "research_complete"


@dataclass(slots=True)
class LegacyEncoder:
    """Encodes the events of one run (see `penstock.dialects.base.Encoder`)."""

    _agent: str = ""  # the run's agent, as the author of events without a source

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        legacy = _LEGACY.get(type_of(event))
        data, source = event["data"], event.get("source")
        self._agent = self._agent or data.get("agent", "")
        if legacy is None:
            return ()
        event_type, content_of = legacy
        content = content_of(data)
        if not content and event_type == UPDATE:
            return ()
        body = {
            "type": event_type,
            "sessionId": event.get("session_id", ""),
            "runId": event["run_id"],
            "author": source["agent_id"] if source else self._agent,
            "content": content,
            "timestamp": epoch_s(event),
        }
        return (frame(body, event_type),)


Content = Callable[[JsonObject], str]


def _of(key: str) -> Content:
    return lambda data: str(data.get(key) or "")


def _as(pattern: str) -> Content:
    """Fill the pattern with the event's data, which the contract requires to have every field that
    a pattern names."""
    return pattern.format_map


# Maps a canonical type to its legacy type and to the function that makes the content. Other
# canonical types have no legacy type.
_LEGACY: Final[Mapping[str, tuple[str, Content]]] = {
    "lifecycle.started": (STATUS, _as("started")),
    "lifecycle.paused": (STATUS, _as("waiting for a decision: {approval_id}")),
    "lifecycle.resumed": (STATUS, _as("resumed")),
    "lifecycle.retrying": (STATUS, _as("retrying: {reason}")),
    "lifecycle.completed": (COMPLETE, _of("summary")),
    "lifecycle.failed": (STATUS, _as("failed: {error}")),
    "lifecycle.cancelled": (STATUS, _as("cancelled")),
    "llm.message_completed": (UPDATE, _of("content")),
    "llm.tool_call": (STATUS, _as("calling {tool}")),
    "llm.tool_result": (STATUS, _as("{tool}: {outcome}")),
    "dispatch.team": (STATUS, _as("team {team_name}: {task}")),
    "dispatch.worker": (STATUS, _as("{worker_name}: {task}")),
    "dispatch.transfer": (STATUS, _as("transferred to {to}")),
    "dispatch.finished": (STATUS, _as("{subrun_id}: {status}")),
    "workflow.step_started": (STATUS, _as("step {description}")),
    "workflow.step_failed": (STATUS, _as("step {step_id} failed")),
}
