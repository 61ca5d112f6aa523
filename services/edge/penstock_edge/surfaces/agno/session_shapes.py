"""Writes sessions and their runs in the shapes that Agno's clients read. Pure.

An Agno server also keeps names, states and summaries of sessions. Penstock has none of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from penstock.bus.records.runs import RunRecord
from penstock.dialects.json import without_none
from penstock.settings import AgentConfig

JsonObject = dict[str, Any]

STATUSES: Final = {
    "queued": "PENDING",
    "running": "RUNNING",
    "paused": "PAUSED",
    "completed": "COMPLETED",
    "failed": "ERROR",
    "cancelled": "CANCELLED",
}
PREVIEW_CHARACTERS: Final = 280
_IN_THE_HISTORY: Final = frozenset({"user", "assistant"})
_OF_THE_OUTPUT: Final = ("reasoning_content", "metrics", "tools", "messages")


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session with the fields that lists of sessions show. `created_at` and `updated_at` are
    times of RFC 3339, or "" if the time is unknown."""

    agent: AgentConfig
    user_id: str
    session_id: str
    name: str
    created_at: str
    updated_at: str

    def listed(self) -> JsonObject:
        return without_none(
            {
                "session_id": self.session_id,
                "session_name": self.name,
                "created_at": self.created_at or None,
                "updated_at": self.updated_at or None,
                "session_type": self.agent.kind,
                "user_id": self.user_id,
                f"{self.agent.kind}_id": self.agent.id,
            }
        )

    def shown(self, runs: Sequence[JsonObject]) -> JsonObject:
        """Return Agno's schema for sessions of this kind, with the outputs of its runs."""
        kind = self.agent.kind
        shape = {name: value for name, value in self.listed().items() if name != "session_type"}
        if kind == "agent":
            shape["agent_session_id"] = self.session_id
        if kind == "workflow":
            shape["workflow_name"] = self.agent.name or self.agent.id
        else:
            messages = [message for run in runs for message in run.get("messages", ())]
            shape["chat_history"] = [each for each in messages if each["role"] in _IN_THE_HISTORY]
        return shape


def page_of(sessions: Sequence[SessionSummary], count: int, *, page: int, limit: int) -> JsonObject:
    """Return Agno's PaginatedResponse; `count` is the number on all pages."""
    return {
        "data": [each.listed() for each in sessions],
        "meta": {
            "page": page,
            "limit": limit,
            "total_pages": -(-count // limit),
            "total_count": count,
            "search_time_ms": 0,
        },
    }


def run_shown(record: RunRecord, agent: AgentConfig, output: JsonObject | None) -> JsonObject:
    """Return Agno's RunSchema, TeamRunSchema or WorkflowRunSchema. `output` is the run as one
    object, or None if its events have expired, or are too many to read for this request. The record
    then provides the answer and the first 200 characters of the message."""
    run = output or {}
    content = run.get("content", _summary(record))
    asked = run.get("input")
    message = asked.get("input_content") if isinstance(asked, dict) else asked
    is_text = run.get("content_type", "str") == "str"
    shown: JsonObject = {
        "run_id": record.run_id,
        f"{agent.kind}_id": agent.id,
        "user_id": record.user_id,
        "status": run.get("status") or STATUSES[record.status],
        "run_input": message if message is not None else record.message,
        # Agno's clients accept only a text or an object as `content`.
        "content": content if isinstance(content, str | dict) else orjson.dumps(content).decode(),
        "created_at": record.created_at,
        **{name: run[name] for name in _OF_THE_OUTPUT if name in run},
    }
    if agent.kind == "workflow":
        return without_none({**shown, "content_type": run.get("content_type", "str")})
    return without_none({**shown, "run_response_format": "text" if is_text else "json"})


def preview_of(record: RunRecord, agent: AgentConfig) -> JsonObject:
    return {
        "run_id": record.run_id,
        f"{agent.kind}_id": agent.id,
        "user_id": record.user_id,
        "status": STATUSES[record.status],
        "run_input": record.message[:PREVIEW_CHARACTERS],
        "content_preview": _summary(record)[:PREVIEW_CHARACTERS],
        "created_at": record.created_at,
    }


def created_s(record: RunRecord) -> float:
    at = datetime.fromisoformat(record.created_at)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _summary(record: RunRecord) -> str:
    return record.summary or record.error or ""
