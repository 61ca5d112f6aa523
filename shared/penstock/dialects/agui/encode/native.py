"""Sends state, history and the events of AG-UI servers unchanged, if the client accepts them.

A value is sent unchanged only if the client's schema accepts the value without a warning. Any other
value becomes part of a CUSTOM event, which may contain any JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from penstock.dialects.agui.encode.context import NO_FACTS, Context, Emitted
from penstock.dialects.agui.ids import unscoped
from penstock.dialects.agui.vocabulary import INTERNAL_EVENTS, EventType
from penstock.dialects.base import Json, JsonObject
from penstock.dialects.patch import is_patch

Check = Callable[[Json], bool]
Shape = Mapping[str, Check]


def _string(value: Json) -> bool:
    return isinstance(value, str)


def _object(value: Json) -> bool:
    return isinstance(value, dict)


def _anything(value: Json) -> bool:
    return True


def _flag(value: Json) -> bool:
    return isinstance(value, bool)


def _fits(value: Json, required: Shape, optional: Shape) -> bool:
    """Refuse unknown members."""
    if not isinstance(value, dict) or not required.keys() <= value.keys():
        return False
    known = {**required, **optional}
    return all(name in known and known[name](item) for name, item in value.items())


# Maps an event type to the shapes of its required members and of its optional members.
_NATIVE: Final[Mapping[EventType, tuple[Shape, Shape]]] = {
    EventType.RAW: ({"event": _anything}, {"source": _string}),
    EventType.CUSTOM: ({"name": _string, "value": _anything}, {}),
    EventType.ACTIVITY_SNAPSHOT: (
        {"messageId": _string, "activityType": _string, "content": _object},
        {"replace": _flag},
    ),
    EventType.ACTIVITY_DELTA: (
        {"messageId": _string, "activityType": _string, "patch": is_patch},
        {},
    ),
    EventType.REASONING_ENCRYPTED_VALUE: (
        {
            "subtype": lambda value: value in ("tool-call", "message"),
            "entityId": _string,
            "encryptedValue": _string,
        },
        {},
    ),
}
# The members that every event may have. The encoder writes these members itself, or leaves them
# out.
_ENVELOPE: Final = frozenset({"type", "timestamp", "rawEvent", "subagentRunId", "metadata"})


def native_event(name: str, value: Json) -> tuple[EventType, JsonObject] | None:
    """Return the AG-UI event in a `custom.event` of the protocol `agui`, whose `name` and `value`
    are an event's type and the event, or those of a CUSTOM event. Return None if a client would not
    accept the event's fields."""
    shapes = _NATIVE.get(EventType(name)) if name in _NATIVE else None
    if shapes is None and name in EventType.__members__:
        return None
    if shapes is None:
        return EventType.CUSTOM, {"name": name, "value": value}
    if not isinstance(value, dict):
        return None
    fields = {key: item for key, item in value.items() if key not in _ENVELOPE}
    return (EventType(name), fields) if _fits(fields, *shapes) else None


# Content parts.

_MIME: Final[Shape] = {"mimeType": _string}
_SOURCES: Final[Mapping[str, tuple[Shape, Shape]]] = {
    "data": ({"type": _string, "value": _string, "mimeType": _string}, {}),
    "url": ({"type": _string, "value": _string}, _MIME),
    "file": ({"type": _string, "value": _string}, {"provider": _string, **_MIME}),
}


def _source(value: Json) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and kind in _SOURCES and _fits(value, *_SOURCES[kind])


_PART: Final[Shape] = {"id": _string, "metadata": lambda value: value is not None}
_MEDIA: Final[tuple[Shape, Shape]] = ({"type": _string, "source": _source}, _PART)
_PARTS: Final[Mapping[str, tuple[Shape, Shape]]] = {
    "text": ({"type": _string, "text": _string}, _PART),
    "image": _MEDIA,
    "audio": _MEDIA,
    "video": _MEDIA,
    "document": _MEDIA,
}


def _part(value: Json) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and kind in _PARTS and _fits(value, *_PARTS[kind])


def are_parts(value: Json) -> bool:
    """Return whether the value is a nonempty list of parts, as AG-UI 1.0 allows in results."""
    return isinstance(value, list) and bool(value) and all(map(_part, value))


# Messages.

_COMMON: Final[Shape] = {
    "subagentRunId": _string,
    "encryptedValue": _string,
    "metadata": _object,
}
_FUNCTION: Final[tuple[Shape, Shape]] = ({"name": _string, "arguments": _string}, {})
_TOOL_CALL: Final[tuple[Shape, Shape]] = (
    {
        "id": _string,
        "type": lambda value: value == "function",
        "function": lambda value: _fits(value, *_FUNCTION),
    },
    {"encryptedValue": _string, "metadata": _object},
)


def _calls(value: Json) -> bool:
    return isinstance(value, list) and all(_fits(each, *_TOOL_CALL) for each in value)


def _content(value: Json) -> bool:
    return isinstance(value, str) or are_parts(value)


def _spoken(**fields: Check) -> tuple[Shape, Shape]:
    return {"id": _string, "role": _string, **fields}, _COMMON


_NAMED: Final[Shape] = {**_COMMON, "name": _string}
_MESSAGES: Final[Mapping[str, tuple[Shape, Shape]]] = {
    "developer": (_spoken(content=_string)[0], _NAMED),
    "system": (_spoken(content=_string)[0], _NAMED),
    "user": (_spoken(content=_content)[0], _NAMED),
    "assistant": (_spoken()[0], {**_NAMED, "content": _string, "toolCalls": _calls}),
    "tool": (
        _spoken(toolCallId=_string, content=_content)[0],
        {**_COMMON, "error": _string},
    ),
    "activity": (
        _spoken(activityType=_string, content=_object)[0],
        {"subagentRunId": _string, "metadata": _object},
    ),
    "reasoning": _spoken(content=_string),
}


def are_messages(value: Json, *, modern: bool) -> bool:
    """Clients before 1.0 accept the content of a tool message only as text."""
    return isinstance(value, list) and all(_message(each, modern) for each in value)


def _message(value: Json, modern: bool) -> bool:
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(role, str) or role not in _MESSAGES:
        return False
    if role == "tool" and not modern and not isinstance(value.get("content"), str):
        return False
    return _fits(value, *_MESSAGES[role])


class Passthrough:
    """Encodes events whose values are sent unchanged or inside of a CUSTOM event."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open = context.open

    def snapshot(self, data: JsonObject) -> Iterator[Emitted]:
        yield (
            EventType.STATE_SNAPSHOT,
            self._context.with_subrun({"snapshot": data["snapshot"]}),
            NO_FACTS,
        )

    def delta(self, data: JsonObject) -> Iterator[Emitted]:
        if is_patch(data["delta"]):
            yield (
                EventType.STATE_DELTA,
                self._context.with_subrun({"delta": data["delta"]}),
                NO_FACTS,
            )
        else:
            yield self._context.custom(data)

    def messages(self, data: JsonObject) -> Iterator[Emitted]:
        messages = data["messages"]
        if not are_messages(messages, modern=self._context.modern):
            yield self._context.custom(data)
            return
        restated = self._context.names.restate(messages)
        if self._keeps_what_is_open(restated.messages):
            self._context.names.keep(restated)
            self._restate_owners(restated.messages)
            if (sure := restated.sure) is not None:
                yield EventType.MESSAGES_SNAPSHOT, {"messages": sure}, NO_FACTS
            yield EventType.MESSAGES_SNAPSHOT, {"messages": restated.messages}, NO_FACTS
        else:
            yield self._context.custom({**data, "messages": restated.messages})

    def _keeps_what_is_open(self, messages: list[JsonObject]) -> bool:
        # A client drops messages that a snapshot lacks, and then rejects the end of such a message.
        # A profile of complete messages never sends incomplete ones.
        kept = {message["id"] for message in messages}
        kept.update(call["id"] for each in messages for call in each.get("toolCalls", ()))
        ids = (*self._open.messages, *self._open.calls)
        return self._context.profile.complete or all(
            self._context.names.of(part_id) in kept for part_id in ids
        )

    def _restate_owners(self, messages: list[JsonObject]) -> None:
        """Take subruns from a snapshot, as a client does."""
        for message in messages:
            subrun_id = message.get("subagentRunId")
            kind = "thought" if message["role"] == "reasoning" else "message"
            entities = [(kind, message), *(("call", call) for call in message.get("toolCalls", ()))]
            for entity, each in entities:
                part_id = unscoped(each["id"])
                self._open.subruns[f"{entity} {part_id}"] = subrun_id

    def custom_event(self, data: JsonObject) -> Iterator[Emitted]:
        """Send an event unchanged if the client accepts it; leave out a framework's internal
        ones."""
        if data["name"] in INTERNAL_EVENTS:
            return
        native = None
        if data.get("protocol") == "agui":
            native = native_event(data["name"], data["value"])
        if native is None:
            yield self._context.custom(data)
            return
        event_type, fields = native
        name_of = self._context.names.of
        if event_type is EventType.ACTIVITY_SNAPSHOT:
            name_of = self._context.names.begin
        scoped: JsonObject = {
            name: name_of(fields[name]) for name in ("messageId", "entityId") if name in fields
        }
        # if the name is an event type, the value is the complete event
        complete = data["name"] in EventType.__members__
        facts = {"metadata": data["value"].get("metadata")} if complete else NO_FACTS
        yield event_type, {**fields, **scoped}, facts
