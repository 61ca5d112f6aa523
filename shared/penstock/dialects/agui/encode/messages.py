"""Encodes messages and thoughts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.dialects.agui.encode.context import NO_FACTS, Context, Emitted, Message
from penstock.dialects.agui.vocabulary import TEXT_ROLES, EventType
from penstock.dialects.base import JsonObject, append_text

_CONTENT: Final = EventType.TEXT_MESSAGE_CONTENT  # the access to an enum's attribute takes 0.14 µs

_ANSWER: Final = "answer"  # the id of the message with a workflow's output


class Messages:
    """Encodes the messages and thoughts of a run, in a profile of complete messages
    (`Profile.complete`) only when they are complete."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open = context.open
        self._last = ""  # the text of the last complete message

    def started(self, data: JsonObject) -> Iterator[Emitted]:
        yield from self.end_thoughts()
        if data["message_id"] not in self._open.messages:
            yield from self._open_message(data["message_id"], data)

    def streamed(self, data: JsonObject) -> Iterator[Emitted]:
        if self._open.thoughts:
            yield from self.end_thoughts()
        part_id, content = data["message_id"], data["content"]
        message = self._open.messages.get(part_id)
        if message is None:
            yield from self._open_message(part_id, data)
            message = self._open.messages[part_id]
        if self._context.profile.complete:
            append_text(message.text, content)
        elif content:
            message.sent = True
            fields = {"messageId": self._context.names.of(part_id), "delta": content}
            yield _CONTENT, fields, NO_FACTS

    def completed(self, data: JsonObject) -> Iterator[Emitted]:
        yield from self.end_thoughts()
        part_id = data["message_id"]
        if part_id not in self._open.messages:
            yield from self._open_message(part_id, data)
        yield from self._message_end(part_id, self._open.messages[part_id], data)

    def answer(self, completed: JsonObject) -> Iterator[Emitted]:
        """Send the output of a workflow, the value of an expression, as a message, because clients
        show only messages; not if the last one has the same text."""
        text = completed.get("summary")
        if text and text != self._last:
            said = {"message_id": _ANSWER, "role": "assistant", "content": text}
            value = completed.get("value")
            yield from self.completed({**said, "value": value} if value is not None else said)

    def reopened(self) -> Iterator[Emitted]:
        if not self._context.profile.complete:
            for part_id, message in self._open.messages.items():
                yield self._message_start(part_id, message)
        for part_id, subrun_id in self._open.thoughts.items():
            yield from self._thought_starts(part_id, subrun_id)

    def close(self, error: str | None) -> Iterator[Emitted]:
        for part_id in list(self._open.thoughts):
            yield from self._thought_ends(part_id)
        for part_id, message in list(self._open.messages.items()):
            content = "".join(message.text)
            yield from self._message_end(part_id, message, {"content": content, "error": error})

    def _open_message(self, part_id: str, data: JsonObject) -> Iterator[Emitted]:
        role = data.get("role")
        subrun_id = self._open.subrun_of(f"message {part_id}", self._context.current_subrun)
        started = {name: data[name] for name in ("name", "metadata") if data.get(name)}
        message = Message(role if role in TEXT_ROLES else "assistant", subrun_id, started=started)
        self._open.messages[part_id] = message
        self._context.names.begin(part_id)
        if not self._context.profile.complete:
            yield self._message_start(part_id, message)

    def _message_start(self, part_id: str, message: Message) -> Emitted:
        fields: JsonObject = {"messageId": self._context.names.of(part_id), "role": message.role}
        name = message.started.get("name")
        if isinstance(name, str):
            fields["name"] = name
        return (
            EventType.TEXT_MESSAGE_START,
            self._context.tagged(fields, message.subrun_id),
            message.started,
        )

    def _message_end(self, part_id: str, message: Message, data: JsonObject) -> Iterator[Emitted]:
        del self._open.messages[part_id]
        content = data.get("content") or "".join(message.text)
        if self._context.profile.complete:
            yield self._message_start(part_id, message)
        if content and not message.sent:
            fields = {"messageId": self._context.names.of(part_id), "delta": content}
            yield EventType.TEXT_MESSAGE_CONTENT, fields, NO_FACTS
        self._last = content
        facts = {**data, "content": content, "role": message.role}
        yield EventType.TEXT_MESSAGE_END, {"messageId": self._context.names.of(part_id)}, facts

    # Thoughts.

    def thought(self, data: JsonObject) -> Iterator[Emitted]:
        part_id = data["reasoning_id"]
        if data["thought"]:
            if part_id not in self._open.thoughts:
                self._open.thoughts[part_id] = self._context.current_subrun
                yield from self._thought_starts(part_id, self._context.current_subrun)
            fields = {"messageId": self._context.names.of(part_id), "delta": data["thought"]}
            yield EventType.REASONING_MESSAGE_CONTENT, fields, data
        if data.get("final") and part_id in self._open.thoughts:
            yield from self._thought_ends(part_id)

    def end_thoughts(self) -> Iterator[Emitted]:
        """When the agent sends text or calls a tool, clients would still show open thoughts."""
        if self._open.thoughts:
            mine = [
                part_id
                for part_id, subrun_id in self._open.thoughts.items()
                if subrun_id == self._context.current_subrun
            ]
            for part_id in mine:
                yield from self._thought_ends(part_id)

    def _thought_starts(self, part_id: str, subrun_id: str | None) -> Iterator[Emitted]:
        subrun_id = self._open.subrun_of(f"thought {part_id}", subrun_id)
        self._context.names.begin(part_id)
        span = self._context.tagged({"messageId": self._context.names.of(part_id)}, subrun_id)
        yield EventType.REASONING_START, span, NO_FACTS
        yield EventType.REASONING_MESSAGE_START, {**span, "role": "reasoning"}, NO_FACTS

    def _thought_ends(self, part_id: str) -> Iterator[Emitted]:
        del self._open.thoughts[part_id]
        span = {"messageId": self._context.names.of(part_id)}
        yield EventType.REASONING_MESSAGE_END, span, NO_FACTS
        yield EventType.REASONING_END, span, NO_FACTS
