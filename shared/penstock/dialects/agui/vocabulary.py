"""Defines the names of AG-UI 1.0, and a check for older clients, which do not know all these names.

The sources are the schema of AG-UI 1.0, and the behaviour of AG-UI's TypeScript clients 1.0.0 and
0.0.59.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

# The version of AG-UI that RUN_STARTED declares. An AG-UI server may have another version, but
# Penstock translates the stream to this version.
PROTOCOL_VERSION: Final = "1.0"

# Maps the canonical name of a token count to the member of AG-UI's `TokenUsage` with this count.
TOKENS: Final[Mapping[str, str]] = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "total_tokens": "totalTokens",
    "reasoning_tokens": "reasoningTokens",
    "cached_input_tokens": "cachedInputTokens",
}

TEXT_ROLES: Final = frozenset({"developer", "system", "assistant", "user"})
CLIENT_KINDS: Final = frozenset(
    {"external", "long_running"}
)  # the kinds of items that a frontend answers by running a tool

# The names of custom events that the author of an agent emits, not the framework.
OWN_EVENTS: Final = frozenset({"agno.CustomEvent"})

# The names of custom events about the internal work of a framework. AG-UI clients do not get these
# events, but the canonical stream has them. Source: recordings of Agno 2.3 and 3.1, and of ADK 1.16
# and 2.13.
_AGNO_WORK: Final = (
    "CompactionCompleted",
    "CompactionStarted",
    "CompressionCompleted",
    "CompressionStarted",
    "MemoryUpdateCompleted",
    "MemoryUpdateStarted",
    "ModelRequestCompleted",
    "ModelRequestStarted",
    "OutputModelResponseCompleted",
    "OutputModelResponseStarted",
    "ParserModelResponseCompleted",
    "ParserModelResponseStarted",
    "PostHookCompleted",
    "PostHookStarted",
    "PreHookCompleted",
    "PreHookStarted",
    "RunContinued",
    "RunStarted",
    "SessionSummaryCompleted",
    "SessionSummaryStarted",
)
_ADK_WORK: Final = (
    "agentState",
    "compaction",
    "endOfAgent",
    "invocation",
    "modelVersion",
    "skipSummarization",
)
INTERNAL_EVENTS: Final = frozenset(
    {
        *(f"agno.{team}{name}" for name in _AGNO_WORK for team in ("", "Team")),
        *(f"adk.{name}" for name in _ADK_WORK),
    }
)


class EventType(StrEnum):
    """The 31 event types of AG-UI 1.0."""

    RUN_STARTED = "RUN_STARTED"
    RUN_FINISHED = "RUN_FINISHED"
    RUN_ERROR = "RUN_ERROR"
    STEP_STARTED = "STEP_STARTED"
    STEP_FINISHED = "STEP_FINISHED"
    TEXT_MESSAGE_START = "TEXT_MESSAGE_START"
    TEXT_MESSAGE_CONTENT = "TEXT_MESSAGE_CONTENT"
    TEXT_MESSAGE_END = "TEXT_MESSAGE_END"
    TEXT_MESSAGE_CHUNK = "TEXT_MESSAGE_CHUNK"
    TOOL_CALL_START = "TOOL_CALL_START"
    TOOL_CALL_ARGS = "TOOL_CALL_ARGS"
    TOOL_CALL_END = "TOOL_CALL_END"
    TOOL_CALL_CHUNK = "TOOL_CALL_CHUNK"
    TOOL_CALL_RESULT = "TOOL_CALL_RESULT"
    STATE_SNAPSHOT = "STATE_SNAPSHOT"
    STATE_DELTA = "STATE_DELTA"
    MESSAGES_SNAPSHOT = "MESSAGES_SNAPSHOT"
    ACTIVITY_SNAPSHOT = "ACTIVITY_SNAPSHOT"
    ACTIVITY_DELTA = "ACTIVITY_DELTA"
    REASONING_START = "REASONING_START"
    REASONING_MESSAGE_START = "REASONING_MESSAGE_START"
    REASONING_MESSAGE_CONTENT = "REASONING_MESSAGE_CONTENT"
    REASONING_MESSAGE_END = "REASONING_MESSAGE_END"
    REASONING_MESSAGE_CHUNK = "REASONING_MESSAGE_CHUNK"
    REASONING_END = "REASONING_END"
    REASONING_ENCRYPTED_VALUE = "REASONING_ENCRYPTED_VALUE"
    SUBAGENT_STARTED = "SUBAGENT_STARTED"
    SUBAGENT_FINISHED = "SUBAGENT_FINISHED"
    SUBAGENT_ERROR = "SUBAGENT_ERROR"
    RAW = "RAW"
    CUSTOM = "CUSTOM"


_VERSION = re.compile(r"\s*(\d{1,9})(?:\.|\s*$)")


def is_modern(protocol_version: str | None) -> bool:
    # A client before 1.0 declares no version, and rejects the outcome `cancelled`,
    # `pendingToolCallIds` and tool results in parts. A client before 0.0.59 also rejects
    # SUBAGENT_*.
    match = _VERSION.match(protocol_version or "")
    return match is not None and int(match[1]) >= 1
