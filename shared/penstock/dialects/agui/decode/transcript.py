"""Collects the conversation as AG-UI messages.

A stateless server gets the whole conversation with each request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.dialects.base import Json, JsonObject, append_text
from penstock.dialects.json import obj, objects, string, text, without_none


class Transcript:
    """Collects the messages of a client, without chunk events, which the caller must expand first
    (see `chunks`). THINKING_* events make no message."""

    def __init__(self, messages: Iterable[JsonObject] = ()) -> None:
        # the ids of messages with events of their own, not only in a snapshot
        self.begun: set[str] = set()
        self._messages: list[JsonObject] = []
        self._by_id: dict[str, JsonObject] = {}
        self._calls: dict[str, JsonObject] = {}  # Maps a call's id to the call.
        self._answered: set[str] = set()  # The ids of calls that have a result.
        self._writing: set[str] = set()  # The ids of calls with incomplete arguments.
        # The pieces of texts that still grow. Each key has the id of the object to which the text
        # belongs, and the text's key in this object. Pieces arrive often and the messages are read
        # seldom, so the pieces are only joined in `messages`.
        self._pieces: dict[tuple[str, str], tuple[JsonObject, list[str]]] = {}
        self._replace_messages(messages)

    @property
    def messages(self) -> list[JsonObject]:
        for (_, key), (holder, pieces) in self._pieces.items():
            holder[key] = holder.get(key, "") + "".join(pieces)
        self._pieces.clear()
        return self._messages

    def feed(self, body: JsonObject) -> None:
        make = _MAKERS.get(str(body.get("type")))
        if make is not None:
            make(self, body)

    def _text(self, body: JsonObject) -> None:
        message_id = string(body.get("messageId"))
        if message_id is None:
            return
        message = self._by_id.get(message_id)
        if message is None:
            role = string(body.get("role")) or "assistant"
            about = {key: string(body.get(key)) for key in ("name", "subagentRunId")}
            message = {"id": message_id, "role": role, **without_none(about)}
            self._begin(message)
        if isinstance(message.get("content", ""), str):
            self._grow(message_id, message, "content", body)

    def _thought(self, body: JsonObject) -> None:
        self._text({**body, "role": "reasoning"})

    def _call(self, body: JsonObject) -> None:
        call_id = string(body.get("toolCallId"))
        if call_id is None or call_id in self._calls:
            return  # the call is repeated
        parent_id = string(body.get("parentMessageId"))
        message = self._by_id.get(parent_id) if parent_id else None
        if message is None or message.get("role") != "assistant":
            new_id = parent_id if parent_id and message is None else f"{call_id}-call"
            message = {"id": new_id, "role": "assistant"}
            self._begin(message)
        function = {"name": string(body.get("toolCallName")) or "unknown", "arguments": ""}
        call = {"id": call_id, "type": "function", "function": function}
        if not isinstance(message.get("toolCalls"), list):
            message["toolCalls"] = []
        message["toolCalls"].append(call)
        self._calls[call_id] = call
        self.begun.add(call_id)
        self._writing.add(call_id)

    def _arguments(self, body: JsonObject) -> None:
        call_id = body.get("toolCallId")
        if isinstance(call_id, str) and call_id in self._writing:
            function = obj(self._calls.get(call_id, {}).get("function"))
            if isinstance(function.get("arguments"), str):
                self._grow(call_id, function, "arguments", body)

    def _grow(self, message_id: str, holder: JsonObject, key: str, body: JsonObject) -> None:
        pieces = self._pieces.setdefault((message_id, key), (holder, []))[1]
        append_text(pieces, text(body.get("delta")))

    def _called(self, body: JsonObject) -> None:
        self._writing.discard(text(body.get("toolCallId")))

    def _result(self, body: JsonObject) -> None:
        call_id = string(body.get("toolCallId"))
        if call_id is not None and call_id not in self._answered:
            content = body.get("content")
            message = tool_message(call_id, content if objects(content) else text(content))
            message["id"] = string(body.get("messageId")) or message["id"]
            self._begin(message)

    def _encrypted(self, body: JsonObject) -> None:
        entity_id = string(body.get("entityId")) or ""
        entity = self._by_id.get(entity_id) or self._calls.get(entity_id)
        if entity is not None and (value := string(body.get("encryptedValue"))):
            entity["encryptedValue"] = value

    def _whole(self, body: JsonObject) -> None:
        self._replace_messages(merged(self.messages, objects(body.get("messages"))))

    def _replace_messages(self, messages: Iterable[JsonObject]) -> None:
        self._messages, self._by_id, self._calls, self._answered = [], {}, {}, set()
        for message in messages:
            self._append(message)

    def _begin(self, message: JsonObject) -> None:
        self.begun.add(message["id"])
        self._append(message)

    def _append(self, message: JsonObject) -> None:
        self._messages.append(message)
        if id_ := string(message.get("id")):
            self._by_id[id_] = message
        for call in objects(message.get("toolCalls")):
            if call_id := string(call.get("id")):
                self._calls.setdefault(call_id, call)
        if message.get("role") == "tool" and (answered := string(message.get("toolCallId"))):
            self._answered.add(answered)


def tool_message(tool_call_id: str, content: Json) -> JsonObject:
    """`content` is text or a list of content parts."""
    id_ = f"{tool_call_id}-result"
    return {"id": id_, "role": "tool", "toolCallId": tool_call_id, "content": content}


def merged(messages: Sequence[JsonObject], others: Iterable[JsonObject]) -> list[JsonObject]:
    # A later message replaces an earlier one with the same id.
    found: dict[object, JsonObject] = {}
    for message in (*messages, *others):
        found[string(message.get("id")) or len(found)] = message
    return list(found.values())


def without_unanswered_calls(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Models refuse calls that have no result. A message that would then be empty is left out."""
    results = {text(m.get("toolCallId")) for m in messages if m.get("role") == "tool"}
    kept = []
    for message in messages:
        calls = objects(message.get("toolCalls"))
        answered = [call for call in calls if string(call.get("id")) in results]
        without = {key: value for key, value in message.items() if key != "toolCalls"}
        if answered:
            kept.append({**without, "toolCalls": answered})
        elif message.get("content") or message.get("role") == "tool":
            kept.append(without)
    return kept


_MAKERS: Mapping[str, Callable[[Transcript, JsonObject], None]] = {
    "TEXT_MESSAGE_START": Transcript._text,
    "TEXT_MESSAGE_CONTENT": Transcript._text,
    "REASONING_MESSAGE_START": Transcript._thought,
    "REASONING_MESSAGE_CONTENT": Transcript._thought,
    "REASONING_ENCRYPTED_VALUE": Transcript._encrypted,
    "TOOL_CALL_START": Transcript._call,
    "TOOL_CALL_ARGS": Transcript._arguments,
    "TOOL_CALL_END": Transcript._called,
    "TOOL_CALL_RESULT": Transcript._result,
    "MESSAGES_SNAPSHOT": Transcript._whole,
}
