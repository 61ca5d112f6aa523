"""Decodes the messages and thoughts of one agent in one place (decision 0036).

With streaming, ADK sends deltas (`partial: true`), and then repeats the complete text in one final
event. Without streaming, ADK sends only the final event. In ADK 1.16, the final event has no
`partial`, and each delta has its own id. From 2.6 on, the deltas and the final event have the same
id.
"""

from __future__ import annotations

from typing import Any

from penstock.dialects.adk.decode.frames import AdkEvent
from penstock.dialects.base import Draft, Ids, JsonObject, Source, append_text


class Speaker:
    """Keeps the open message, thoughts and streamed calls of one place (author, branch, path)."""

    __slots__ = (
        "_ids",
        "_message_id",
        "_parts",
        "_reasoning_id",
        "_role",
        "_text",
        "_thought",
        "at_end",
        "cut",
        "source",
        "step_id",
        "streamed_calls",
        "unfinished_answer",
        "warned",
    )

    def __init__(self, source: Source, step_id: str | None, ids: Ids, role: str) -> None:
        self.source = source
        self.step_id = step_id
        # True if a partial event had a finishReason. The next event of this answer is then the
        # final event.
        self.at_end = False
        self.warned: str | None = None  # The finishReason that a warning reported.
        # Why the open message is incomplete (see `cut_off`); None for a complete message.
        self.cut: JsonObject | None = None
        # the calls with incomplete arguments, each as {id, upstream_id, name}
        self.streamed_calls: list[JsonObject] = []
        # the last event with token counts of an answer that has no final event yet
        self.unfinished_answer: AdkEvent | None = None
        self._ids = ids
        self._role = role
        self._message_id: str | None = None
        self._text: list[str] = []
        self._parts: list[JsonObject] = []
        self._reasoning_id: str | None = None
        # whether thoughts were streamed, so that the final event only repeats them
        self._thought = False

    @property
    def is_open(self) -> bool:
        return bool(
            self._message_id
            or self._reasoning_id
            or self.streamed_calls
            or self._thought
            or self.unfinished_answer
        )

    def draft(self, event_type: str, data: dict[str, Any]) -> Draft:
        return Draft(event_type, data, self.source, None, self.step_id)

    def text(self, delta: str, event_id: str | None, out: list[Draft]) -> None:
        if self._reasoning_id:
            self._end_thought(out)
        message_id = self._message_id or self._start(event_id, out)
        append_text(self._text, delta)
        out.append(self.draft("llm.stream", {"content": delta, "message_id": message_id}))

    def thought(self, delta: str, event_id: str | None, out: list[Draft]) -> None:
        self._thought = True
        if self._reasoning_id is None:
            self._reasoning_id = self._ids.unique(f"{event_id or 'message'}/reasoning")
        out.append(
            self.draft("llm.reasoning", {"thought": delta, "reasoning_id": self._reasoning_id})
        )

    def attach(self, part: JsonObject, event_id: str | None, out: list[Draft]) -> None:
        """If no message is open, begin one."""
        if self._message_id is None:
            self._start(event_id, out)
        self._parts.append(part)

    def complete_thought(self, thought: str, event_id: str | None, out: list[Draft]) -> None:
        if self._thought or not thought:
            return
        reasoning_id = self._ids.unique(f"{event_id or 'message'}/reasoning")
        data = {"thought": thought, "reasoning_id": reasoning_id, "final": True}
        out.append(self.draft("llm.reasoning", data))

    def complete(
        self, text: str, extra: JsonObject, event_id: str | None, out: list[Draft]
    ) -> JsonObject | None:
        """Return the data of the message, if there is one. If no text was streamed before, emit the
        whole text as one piece. `extra` has `parts` and `citations`."""
        if self._reasoning_id:
            self._end_thought(out)
        media = extra.get("parts") or self._parts
        if self._message_id is None:
            if not text and not media:
                self._forget()
                return None
            self._start(event_id, out)
            if text:
                self.text(text, event_id, out)
        data: JsonObject = {
            "message_id": self._message_id,
            "role": self._role,
            "content": text or "".join(self._text),
        }
        if extra.get("citations"):
            data["citations"] = extra["citations"]
        if media:
            data["parts"] = media
        data |= self.cut or {}
        out.append(self.draft("llm.message_completed", data))
        self._forget()
        return data

    def close(self, out: list[Draft]) -> JsonObject | None:
        return self.complete("", {}, None, out)

    def _start(self, event_id: str | None, out: list[Draft]) -> str:
        ids = self._ids
        message_id = ids.unique(event_id) if event_id else ids.make("message")
        self._message_id = message_id
        out.append(
            self.draft("llm.message_started", {"message_id": message_id, "role": self._role})
        )
        return message_id

    def _end_thought(self, out: list[Draft]) -> None:
        data = {"thought": "", "reasoning_id": self._reasoning_id, "final": True}
        out.append(self.draft("llm.reasoning", data))
        self._reasoning_id = None

    def _forget(self) -> None:
        self._message_id = None
        self._text = []
        self._parts = []
        self._thought = False
        self.at_end = False
        self.warned = None
        self.cut = None
        self.streamed_calls = []
