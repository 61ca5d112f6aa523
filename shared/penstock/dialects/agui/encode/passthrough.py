"""Sends state, history and the events of AG-UI servers unchanged, if the client accepts them."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.dialects.agui.encode.context import NO_FACTS, Context, Emitted
from penstock.dialects.agui.encode.native import are_messages, native_event
from penstock.dialects.agui.ids import unscoped
from penstock.dialects.agui.vocabulary import INTERNAL_EVENTS, EventType
from penstock.dialects.base import JsonObject
from penstock.dialects.patch import is_patch


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
        """Return whether a snapshot contains all open messages and calls.

        A client drops messages that a snapshot lacks, and then rejects the end of such a message. A
        profile of complete messages never sends incomplete messages.
        """
        kept = {message["id"] for message in messages}
        kept.update(call["id"] for each in messages for call in each.get("toolCalls", ()))
        ids = (*self._open.messages, *self._open.calls)
        return self._context.profile.complete or all(
            self._context.names.of(part_id) in kept for part_id in ids
        )

    def _restate_owners(self, messages: list[JsonObject]) -> None:
        """Take the subruns of messages and calls from a snapshot, as a client does."""
        for message in messages:
            subrun_id = message.get("subagentRunId")
            kind = "thought" if message["role"] == "reasoning" else "message"
            entities = [(kind, message), *(("call", call) for call in message.get("toolCalls", ()))]
            for entity, each in entities:
                part_id = unscoped(each["id"])
                self._open.subruns[f"{entity} {part_id}"] = subrun_id

    def custom_event(self, data: JsonObject) -> Iterator[Emitted]:
        """Send an event of an AG-UI server unchanged if the client accepts the event.

        Events about the internal work of a framework are left out.
        """
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
