"""Declares the members of AG-UI's events that the decoder reads (AG-UI 1.0 and before) (decision
0033).

A member may be missing or have any type. The classes only declare the keys, so that mypy and
tests/shared/dialects/test_declared_keys.py find a misspelt key.
"""

from __future__ import annotations

from typing import TypedDict

from penstock.dialects.base import JsonObject, JsonValue
from penstock.dialects.json import obj


class AguiFrame(TypedDict, total=False):
    """An event. Each type has some of these members."""

    type: JsonValue
    timestamp: JsonValue
    rawEvent: JsonValue
    metadata: JsonValue
    subagentRunId: JsonValue  # the subagent that the event belongs to
    # RUN_STARTED, RUN_FINISHED, RUN_ERROR
    runId: JsonValue
    parentRunId: JsonValue
    threadId: JsonValue
    protocolVersion: JsonValue
    outcome: JsonValue  # Outcome
    result: JsonValue
    usage: JsonValue
    message: JsonValue
    code: JsonValue
    error: JsonValue  # some servers add this member to TOOL_CALL_RESULT
    # STEP_*
    stepName: JsonValue
    # TEXT_MESSAGE_*, REASONING_*
    messageId: JsonValue
    role: JsonValue
    delta: JsonValue
    title: JsonValue
    entityId: JsonValue
    encryptedValue: JsonValue
    # TOOL_CALL_*
    toolCallId: JsonValue
    toolCallName: JsonValue
    parentMessageId: JsonValue
    content: JsonValue
    # STATE_*, MESSAGES_SNAPSHOT
    snapshot: JsonValue
    messages: JsonValue
    # SUBAGENT_*
    parentSubagentRunId: JsonValue
    parentToolCallId: JsonValue
    description: JsonValue
    # CUSTOM
    name: JsonValue
    value: JsonValue


class Outcome(TypedDict, total=False):
    """The outcome of RUN_FINISHED and SUBAGENT_FINISHED."""

    type: JsonValue
    interrupts: JsonValue  # list of Interrupt
    pendingToolCallIds: JsonValue


class Interrupt(TypedDict, total=False):
    """A question of a paused run."""

    id: JsonValue
    reason: JsonValue
    message: JsonValue
    toolCallId: JsonValue
    responseSchema: JsonValue
    subagentRunId: JsonValue


class GraphInterrupt(TypedDict, total=False):
    """The value of a LangGraph interrupt, if the graph's author chose an object."""

    message: JsonValue
    question: JsonValue


class TextPart(TypedDict, total=False):
    """A content part of a tool result."""

    text: JsonValue


def with_metadata(data: JsonObject, body: AguiFrame) -> JsonObject:
    metadata = obj(body.get("metadata"))
    return {**data, "metadata": metadata} if metadata else data
