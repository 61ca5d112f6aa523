"""Decodes messages and thoughts.

The decoder announces a message with its first text. A message without text makes no events, because
servers use such messages only to attach tool calls to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from penstock.dialects.agui.decode.agents import Agents, SubagentId, subagent_of
from penstock.dialects.agui.decode.frames import AguiFrame, with_metadata
from penstock.dialects.base import Draft, Ids, JsonObject, append_text, cut_off
from penstock.dialects.json import string, without_none
from penstock.dialects.snapshots import AS_IS, DICT, PART, Snapshots, Table

# The fields of TEXT_MESSAGE_END in agent-runs-sse.md, with their types. AG-UI does not have them.
_ANSWER_FIELDS: Final = {
    "status": str,
    "result_type": str,
    "key_points": list,
    "suggested_actions": list,
    "ui_schema": dict,
    "error": str,
}

# The key for the thoughts of THINKING events, which AG-UI 1.0 no longer has. These events have no
# ids, so only one train of thought can be open at a time.
_THINKING = "THINKING"


@dataclass(slots=True)
class _Message:
    """An open message. `start` is the event that began the message."""

    id: str
    role: str
    start: AguiFrame
    parts: list[str] = field(default_factory=list)
    begun: bool = False  # Whether llm.message_started was emitted.
    # The id of the previous message, if the text so far is equal to the previous message's complete
    # text.
    echo_of: str | None = None


@dataclass(slots=True)
class _Thoughts:
    """An open train of thought."""

    id: str
    subagent_id: SubagentId
    title: str | None = None
    begun: bool = False


class Messages(Snapshots):
    """Decodes messages and thoughts; none may be open when the state is stored."""

    STORED: ClassVar[Table] = {
        "ids": ("_ids", PART),
        "thought_ids": ("_thought_ids", PART),
        "latest": ("_latest", DICT),
        "summary": ("summary", AS_IS),
    }

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._leg = 0
        self._messages: dict[str, _Message] = {}  # maps an upstream id to the open message
        self._thoughts: dict[str, _Thoughts] = {}
        self._ids = Ids()
        self._thought_ids = Ids()
        # maps upstream ids to canonical ids, also for ended messages
        self._latest: dict[str, str] = {}
        # an ended message that repeats the previous message, and the event that ended it; see
        # `release`
        self._echo: tuple[_Message, AguiFrame] | None = None
        self._last: tuple[str, str] | None = None  # The id and text of the previous message.
        self.summary = ""  # The text of the agent's last complete message.

    def open(self, leg: int) -> None:
        self._leg = leg
        self._last = None

    def message_id(self, upstream_id: str) -> str:
        return self._latest.get(upstream_id, upstream_id)

    # Messages.

    def started(self, body: AguiFrame) -> list[Draft] | None:
        """If the message is already open, nothing changes."""
        upstream_id = string(body.get("messageId"))
        if upstream_id is None:
            return None
        if upstream_id not in self._messages:
            self._open(upstream_id, body)
        return []

    def content(self, body: AguiFrame) -> list[Draft] | None:
        # The most frequent event.
        upstream_id, delta = string(body.get("messageId")), body.get("delta")
        if upstream_id is None or not isinstance(delta, str):
            return None
        if not delta:
            return []
        message = self._messages.get(upstream_id) or self._open(upstream_id, body)
        append_text(message.parts, delta)
        if self._repeats(message, body):
            return []
        return self._emit_text(message, delta, body)

    def ended(self, body: AguiFrame) -> list[Draft] | None:
        upstream_id = string(body.get("messageId"))
        message = self._messages.pop(upstream_id, None) if upstream_id else None
        if message is None:
            return None
        if message.echo_of is not None and not message.begun:
            self._echo = message, body
            return []
        return self._end(message, body)

    def release(self, body: AguiFrame) -> list[Draft]:
        """Emit or drop a message that was held back because it repeats the previous message's text.

        Before a call that pauses the run, Agno sends the last text again as a second message, and
        attaches the call to it. If `body`, the event after this message, starts such a call, the
        second message is dropped, and the call is attached to the first one. Otherwise the second
        message is emitted.
        """
        is_call = body.get("type") == "TOOL_CALL_START"
        if is_call:
            self._last = None
        if self._echo is None:
            return []
        (message, end), self._echo = self._echo, None
        upstream_id = string(message.start.get("messageId")) or ""
        if is_call and message.echo_of and body.get("parentMessageId") == upstream_id:
            self._latest[upstream_id] = message.echo_of
            return []
        return [
            *self._emit_text(message, "".join(message.parts), message.start),
            *self._end(message, end),
        ]

    def _open(self, upstream_id: str, body: AguiFrame) -> _Message:
        role = string(body.get("role")) or "assistant"
        start = body.copy()
        start.pop("delta", None)
        message = _Message(self._ids.unique(upstream_id), role, start)
        self._messages[upstream_id] = message
        self._latest[upstream_id] = message.id
        return message

    def _repeats(self, message: _Message, body: AguiFrame) -> bool:
        if message.begun or self._last is None or subagent_of(body) is not None:
            return False
        last_id, last_text = self._last
        so_far = "".join(message.parts)
        message.echo_of = last_id if so_far == last_text else None
        return message.echo_of is not None

    def _emit_text(self, message: _Message, delta: str, body: AguiFrame) -> list[Draft]:
        drafts = []
        if not message.begun:
            message.begun = True
            delta = "".join(message.parts)
            name = string(message.start.get("name"))
            data = without_none({"message_id": message.id, "role": message.role, "name": name})
            data = with_metadata(data, message.start)
            drafts.append(self._agents.draft(message.start, "llm.message_started", data))
        data = {"content": delta, "message_id": message.id}
        if body is not message.start:
            data = with_metadata(data, body)
        return [*drafts, self._agents.draft(body, "llm.stream", data)]

    def _end(self, message: _Message, body: AguiFrame, error: str | None = None) -> list[Draft]:
        if not message.begun:
            return []
        content = "".join(message.parts)
        if subagent_of(message.start) is None and message.role == "assistant":
            self.summary = content
            self._last = message.id, content
        data: JsonObject = {"message_id": message.id, "role": message.role, "content": content}
        fields: Mapping[str, Any] = body
        data |= {
            name: fields[name]
            for name, kind in _ANSWER_FIELDS.items()
            if isinstance(fields.get(name), kind)
        }
        if error is not None:
            data |= cut_off(error)
        draft = self._agents.draft(
            message.start, "llm.message_completed", with_metadata(data, body)
        )
        return [draft]

    # Thoughts.

    def thought_started(self, body: AguiFrame) -> list[Draft] | None:
        """Emit nothing before the first thought."""
        upstream_id = string(body.get("messageId"))
        if upstream_id is None:
            return None
        if upstream_id not in self._thoughts:
            self._think(upstream_id, upstream_id, body)
        return []

    def thought(self, body: AguiFrame) -> list[Draft] | None:
        upstream_id, delta = string(body.get("messageId")), body.get("delta")
        if upstream_id is None or not isinstance(delta, str):
            return None
        thoughts = self._thoughts.get(upstream_id) or self._think(upstream_id, upstream_id, body)
        return self._thought(thoughts, delta, body)

    def thought_ended(self, body: AguiFrame) -> list[Draft] | None:
        upstream_id = string(body.get("messageId"))
        thoughts = self._thoughts.pop(upstream_id, None) if upstream_id else None
        return None if thoughts is None else self._end_thoughts(thoughts)

    def span(self, body: AguiFrame) -> list[Draft] | None:
        # The events between REASONING_START and REASONING_END have the content.
        return []

    def thinking_started(self, body: AguiFrame) -> list[Draft] | None:
        """THINKING_START may have a title."""
        open_ = self._thoughts.get(_THINKING)
        drafts = self._end_thoughts(self._thoughts.pop(_THINKING)) if open_ else []
        title = string(body.get("title")) or (open_.title if open_ and not open_.begun else None)
        self._think(_THINKING, f"think-{self._leg}", body).title = title
        return drafts

    def thinking(self, body: AguiFrame) -> list[Draft] | None:
        delta = body.get("delta")
        if not isinstance(delta, str):
            return None
        thoughts = self._thoughts.get(_THINKING)
        thoughts = thoughts or self._think(_THINKING, f"think-{self._leg}", body)
        return self._thought(thoughts, delta, body)

    def thinking_ended(self, body: AguiFrame) -> list[Draft] | None:
        """THINKING_END comes after THINKING_TEXT_MESSAGE_END."""
        thoughts = self._thoughts.pop(_THINKING, None)
        return [] if thoughts is None else self._end_thoughts(thoughts)

    def _think(self, key: str, wanted_id: str, body: AguiFrame) -> _Thoughts:
        # This id may not be unique yet. `_thought` makes the unique id when the first text comes,
        # because servers also begin thoughts that never get a text.
        thoughts = self._thoughts[key] = _Thoughts(wanted_id, subagent_of(body))
        return thoughts

    def _thought(self, thoughts: _Thoughts, delta: str, body: AguiFrame) -> list[Draft]:
        if not delta:
            return []
        data: JsonObject = {"thought": delta}
        if not thoughts.begun:
            thoughts.begun = True
            thoughts.id = self._thought_ids.unique(thoughts.id)
            data |= without_none({"title": thoughts.title})
        data = with_metadata({**data, "reasoning_id": thoughts.id}, body)
        return [self._agents.draft(body, "llm.reasoning", data)]

    def _end_thoughts(self, thoughts: _Thoughts) -> list[Draft]:
        """Emit one more event, which has an empty thought and `final`."""
        if not thoughts.begun:
            return []
        data = {"thought": "", "reasoning_id": thoughts.id, "final": True}
        body: AguiFrame = {"subagentRunId": thoughts.subagent_id}
        return [self._agents.draft(body, "llm.reasoning", data)]

    def close(self, error: str | None = None) -> list[Draft]:
        drafts = self.release({})
        for thoughts in self._thoughts.values():
            drafts += self._end_thoughts(thoughts)
        for message in self._messages.values():
            if message.parts and not message.begun:
                drafts += self._emit_text(message, "", message.start)
            drafts += self._end(message, {}, error)
        self._thoughts, self._messages = {}, {}
        return drafts
