"""Computes the messages and the state that an AG-UI client has after the events of its stream.

The module follows the rules of AG-UI's TypeScript client 1.0.0, but only for the events that
Penstock's encoder makes. `prelude` makes the frames that give a new client these messages and this
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from penstock.dialects.agui.encode.context import NO_FACTS, Emitted
from penstock.dialects.agui.encode.encoder import AguiEncoder, Phase
from penstock.dialects.agui.shared_state import SharedState
from penstock.dialects.agui.vocabulary import EventType
from penstock.dialects.base import Json, JsonObject, append_text, frame
from penstock.dialects.patch import Document, DoesNotApply
from penstock.sse import Frame

NOTHING: Final = object()  # means that no state is known, while None means that the state is null


@dataclass(slots=True)
class Memory:
    """Computes a client's conversation from the events of its stream, in order. The time for an
    event does not depend on the conversation's size."""

    _messages: list[JsonObject] = field(default_factory=list)
    # maps an id to the newest message with this id
    _by_id: dict[str, JsonObject] = field(default_factory=dict)
    _calls: dict[str, tuple[JsonObject, JsonObject]] = field(default_factory=dict)
    # The pieces of texts that still grow. Each key has the object to which the text belongs, and
    # the text's key in this object. Pieces arrive often and the messages are read seldom, so the
    # pieces are only joined in `messages`.
    _pieces: dict[tuple[int, str], tuple[JsonObject, list[str]]] = field(default_factory=dict)
    run: JsonObject | None = None  # The last RUN_STARTED.
    end: JsonObject | None = None  # RUN_FINISHED or RUN_ERROR of this run.
    _state: SharedState = field(default_factory=SharedState)
    # maps a message id to the content of the activity
    _contents: dict[str, Document] = field(default_factory=dict)

    @property
    def messages(self) -> list[JsonObject]:
        for (_, key), (holder, pieces) in self._pieces.items():
            holder[key] = (holder.get(key) or "") + "".join(pieces)
        self._pieces.clear()
        return self._messages

    @property
    def state(self) -> Json:
        """NOTHING before the first state event."""
        return self._state.value if self._state.is_known else NOTHING

    def apply(self, event: JsonObject) -> None:
        handler = _HANDLERS.get(event["type"])
        if handler is not None:
            handler(self, event)

    def add_user_message(self, part_id: str, text: str) -> None:
        """Do nothing if the last message is the same."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "user" or last.get("content") != text:
            self._append({"id": part_id, "role": "user", "content": text})

    def _append(self, message: JsonObject) -> None:
        self._messages.append(message)
        self._know(message)

    def _know(self, message: JsonObject) -> None:
        self._by_id[message["id"]] = message
        for call in message.get("toolCalls") or ():
            self._calls.setdefault(call["id"], (message, call))

    def _message(self, part_id: str) -> JsonObject | None:
        return self._by_id.get(part_id)

    def _call(self, part_id: str) -> JsonObject | None:
        message_and_call = self._calls.get(part_id)
        return message_and_call[1] if message_and_call is not None else None

    def _grow(self, holder: JsonObject, key: str, delta: str) -> None:
        append_text(self._pieces.setdefault((id(holder), key), (holder, []))[1], delta)

    def _run_started(self, event: JsonObject) -> None:
        self.run, self.end = event, None

    def _run_ended(self, event: JsonObject) -> None:
        self.end = event

    def _started(self, event: JsonObject) -> None:
        message = self._message(event["messageId"])
        if message is None:
            message = {"id": event["messageId"], "role": event.get("role", "assistant")}
            message["content"] = ""
            message.update({key: event[key] for key in ("name", "subagentRunId") if key in event})
            self._append(message)
        _merge(message, event)

    def _content(self, event: JsonObject) -> None:
        message = self._message(event["messageId"])
        if message is not None and isinstance(message.get("content") or "", str):
            self._grow(message, "content", event["delta"])
            _merge(message, event)

    def _ended(self, event: JsonObject) -> None:
        message = self._message(event["messageId"])
        if message is not None:
            _merge(message, event)

    def _call_started(self, event: JsonObject) -> None:
        known = self._call(event["toolCallId"])
        if known is not None:
            _merge(known, event)
            return
        parent = self._parent(event)
        function = {"name": event["toolCallName"], "arguments": ""}
        call: JsonObject = {"id": event["toolCallId"], "type": "function", "function": function}
        parent.setdefault("toolCalls", []).append(call)
        self._calls[call["id"]] = parent, call
        _merge(call, event)

    def _parent(self, event: JsonObject) -> JsonObject:
        """Return the message that the event names, or a new one."""
        part_id = event.get("parentMessageId")
        existing = self._message(part_id) if part_id else None
        if existing is not None and existing["role"] == "assistant":
            return existing
        created: JsonObject = {
            "id": part_id if part_id and existing is None else event["toolCallId"],
            "role": "assistant",
        }
        if "subagentRunId" in event:
            created["subagentRunId"] = event["subagentRunId"]
        self._append(created)
        return created

    def _call_args(self, event: JsonObject) -> None:
        call = self._call(event["toolCallId"])
        if call is not None:
            self._grow(call["function"], "arguments", event["delta"])
            _merge(call, event)

    def _call_ended(self, event: JsonObject) -> None:
        call = self._call(event["toolCallId"])
        if call is not None:
            _merge(call, event)

    def _call_result(self, event: JsonObject) -> None:
        message = {
            "id": event["messageId"],
            "toolCallId": event["toolCallId"],
            "role": "tool",
            "content": event["content"],
        }
        if "subagentRunId" in event:
            message["subagentRunId"] = event["subagentRunId"]
        _merge(message, event)
        self._know(message)
        asked = self._calls.get(event["toolCallId"])
        at = len(self._messages)
        if asked is not None:
            at = _place(self._messages, asked[0])
        self._messages.insert(at, message)

    def _state_snapshot(self, event: JsonObject) -> None:
        self._state.snapshot(event["snapshot"])

    def _state_changed(self, event: JsonObject) -> None:
        self._state.delta(event["delta"])

    def _restated(self, event: JsonObject) -> None:
        restated = {message["id"]: message for message in event["messages"]}
        roles = {message["role"] for message in event["messages"]}
        kept = [
            restated.get(message["id"], message)
            for message in self._messages
            if message["id"] in restated or message["role"] in {"activity", "reasoning"} - roles
        ]
        known = {message["id"] for message in kept}
        self._messages = kept + [each for part_id, each in restated.items() if part_id not in known]
        self._by_id, self._calls = {}, {}
        for message in self._messages:
            self._know(message)

    def _activity(self, event: JsonObject) -> None:
        message = self._message(event["messageId"])
        replace = event.get("replace", True)
        if message is None:
            message = {"id": event["messageId"], "role": "activity"}
            self._append(message)
        elif message["role"] != "activity" or not replace:
            return
        message["activityType"] = event["activityType"]
        message["content"] = event["content"]
        _merge(message, event)

    def _activity_changed(self, event: JsonObject) -> None:
        message = self._message(event["messageId"])
        if message is None or message["role"] != "activity":
            return
        content = self._contents.get(message["id"])
        if content is None or content.value is not message["content"]:
            content = self._contents[message["id"]] = Document(message["content"])
        try:
            content.apply(event["patch"])
        except DoesNotApply:
            return
        message["content"] = content.value
        message["activityType"] = event["activityType"]
        _merge(message, event)

    def _encrypted(self, event: JsonObject) -> None:
        if event["subtype"] == "tool-call":
            entity = self._call(event["entityId"])
        else:
            entity = self._message(event["entityId"])
        if entity is not None and entity.get("role") != "activity":
            entity["encryptedValue"] = event["encryptedValue"]


def _place(messages: list[JsonObject], asking: JsonObject) -> int:
    # The search goes backwards, because a result usually comes soon after its call.
    at = end = len(messages)
    while messages[at - 1] is not asking:
        at -= 1
        if messages[at]["role"] != "tool":
            end = at
    return end


def _merge(target: JsonObject, event: JsonObject) -> None:
    if "metadata" in event:
        target["metadata"] = {**target.get("metadata", {}), **event["metadata"]}


_HANDLERS: Final[Mapping[str, Callable[[Memory, JsonObject], None]]] = {
    EventType.RUN_STARTED: Memory._run_started,
    EventType.RUN_FINISHED: Memory._run_ended,
    EventType.RUN_ERROR: Memory._run_ended,
    EventType.TEXT_MESSAGE_START: Memory._started,
    EventType.TEXT_MESSAGE_CONTENT: Memory._content,
    EventType.TEXT_MESSAGE_END: Memory._ended,
    EventType.REASONING_MESSAGE_START: Memory._started,
    EventType.REASONING_MESSAGE_CONTENT: Memory._content,
    EventType.REASONING_MESSAGE_END: Memory._ended,
    EventType.TOOL_CALL_START: Memory._call_started,
    EventType.TOOL_CALL_ARGS: Memory._call_args,
    EventType.TOOL_CALL_END: Memory._call_ended,
    EventType.TOOL_CALL_RESULT: Memory._call_result,
    EventType.STATE_SNAPSHOT: Memory._state_snapshot,
    EventType.STATE_DELTA: Memory._state_changed,
    EventType.MESSAGES_SNAPSHOT: Memory._restated,
    EventType.ACTIVITY_SNAPSHOT: Memory._activity,
    EventType.ACTIVITY_DELTA: Memory._activity_changed,
    EventType.REASONING_ENCRYPTED_VALUE: Memory._encrypted,
}


def remember(memory: Memory, encoder: AguiEncoder, events: Iterable[JsonObject]) -> None:
    """Add a run of the thread, or further `events` of a run, encoded by `encoder`."""
    for event in events:
        frames = encoder.feed(event)
        name = event["event"]
        if (name["category"], name["action"]) == ("lifecycle", "started"):
            message = event["data"].get("message")
            if message:
                memory.add_user_message(f"{event['run_id']}-user", message)
        for each in frames:
            memory.apply(orjson.loads(each.data))


def prelude(
    encoder: AguiEncoder, events: Iterable[JsonObject], memory: Memory | None = None
) -> list[Frame]:
    """Return the frames that bring a client without events to the state of the run after `events`.

    `encoder` must be new, and encodes the later events. `memory` has the other runs of the thread
    (see `remember`), and the client's own messages and state. If the run waits or has ended, the
    last frame is RUN_FINISHED or RUN_ERROR. Without events there are no frames.
    """
    memory = memory or Memory()
    remember(memory, encoder, events)
    if memory.run is None or encoder.phase is Phase.BEFORE:
        return []
    emitted: list[Emitted] = []
    if memory.messages:
        emitted.append((EventType.MESSAGES_SNAPSHOT, {"messages": memory.messages}, NO_FACTS))
    if memory.state is not NOTHING:
        emitted.append((EventType.STATE_SNAPSHOT, {"snapshot": memory.state}, NO_FACTS))
    if memory.end is None:
        emitted += encoder.reopened()
    bodies = [encoder.profile.body(*each, encoder.event_ids) for each in emitted]
    end = [] if memory.end is None else [memory.end]
    return [frame(body, body["type"]) for body in (memory.run, *bodies, *end)]
