"""Encodes tool calls: their starts, arguments, ends and results."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.dialects.agui.encode.context import NO_FACTS, Call, Context, Emitted
from penstock.dialects.agui.encode.messages import Messages
from penstock.dialects.agui.encode.native import are_parts
from penstock.dialects.agui.vocabulary import EventType
from penstock.dialects.base import JsonObject, append_text
from penstock.dialects.json import dumped, verbatim


class Tools:
    """Encodes the calls of a run; in a profile of complete messages together with the arguments."""

    def __init__(self, context: Context, messages: Messages) -> None:
        self._context = context
        self._open = context.open
        self._messages = messages
        self._calls: dict[str, Call] = {}

    def arguments(self, data: JsonObject) -> Iterator[Emitted]:
        """AG-UI has no event for a value at a path (`delta`). The arguments are then sent together
        with the call."""
        delta = data.get("delta")
        call_id = data["tool_call_id"]
        if not delta or (call_id in self._calls and call_id not in self._open.calls):
            return
        yield from self._messages.end_thoughts()
        call = self._open.calls.get(call_id)
        if call is None:
            call = self._new(call_id, data)
            if not self._context.profile.complete:
                yield self._start(call_id, call)
        if self._context.profile.complete:
            append_text(call.text, delta)
        else:
            call.sent = True
            fields = {"toolCallId": self._context.names.of(call_id), "delta": delta}
            yield EventType.TOOL_CALL_ARGS, fields, _facts(call)

    def called(self, data: JsonObject) -> Iterator[Emitted]:
        """Only the first call with an id makes events."""
        call_id = data["tool_call_id"]
        call = self._open.calls.get(call_id)
        if call is None:
            if call_id in self._calls:
                return
            call = self._new(call_id, data)
            if not self._context.profile.complete:
                yield from self._messages.end_thoughts()
                yield self._start(call_id, call)
        yield from self._messages.end_thoughts()
        call.args = data["args"]
        text = data.get("args_text")
        yield from self._end(call_id, call, text if text is not None else dumped(call.args), data)

    def reopened(self) -> Iterator[Emitted]:
        if not self._context.profile.complete:
            for call_id, call in self._open.calls.items():
                yield self._start(call_id, call)

    def close(self) -> Iterator[Emitted]:
        for call_id, call in list(self._open.calls.items()):
            yield from self._end(call_id, call, "".join(call.text), NO_FACTS)

    def _new(self, call_id: str, data: JsonObject) -> Call:
        message_id = data.get("parent_message_id") or data.get("message_id")
        if not isinstance(message_id, str):
            message_id = call_id
        self._context.names.begin(call_id)
        call = Call(
            tool=data["tool"],
            message_id=self._context.names.of(message_id),
            subrun_id=self._open.subrun_of(f"call {call_id}", self._context.current_subrun),
        )
        self._open.calls[call_id] = self._calls[call_id] = call
        return call

    def _start(self, call_id: str, call: Call) -> Emitted:
        fields: JsonObject = {
            "toolCallId": self._context.names.of(call_id),
            "toolCallName": call.tool,
        }
        if call.message_id != self._context.names.of(call_id):
            fields["parentMessageId"] = call.message_id
        tagged = self._context.tagged(fields, call.subrun_id)
        return EventType.TOOL_CALL_START, tagged, _facts(call)

    def _end(self, call_id: str, call: Call, text: str, data: JsonObject) -> Iterator[Emitted]:
        del self._open.calls[call_id]
        facts = {**data, **_facts(call)}
        fields = {"toolCallId": self._context.names.of(call_id)}
        if self._context.profile.complete:
            yield self._start(call_id, call)
        if text and not call.sent:
            yield EventType.TOOL_CALL_ARGS, {**fields, "delta": text}, _facts(call)
        yield EventType.TOOL_CALL_END, fields, facts

    def answered(self, data: JsonObject) -> Iterator[Emitted]:
        yield from self._messages.end_thoughts()
        call_id = data["tool_call_id"]
        call = self._open.calls.get(call_id)
        if call is not None:
            yield from self._end(call_id, call, "".join(call.text), NO_FACTS)
        call = call or self._calls.get(call_id)
        text = _result_text(data)
        parts = data.get("content")
        message_id = data.get("message_id")
        if message_id in (None, "", call_id):
            # If a call belongs to no message, the client makes a message with the call's id. So the
            # result's message needs another id.
            message_id = f"{call_id}.result"
        # must come before `begin`, which names the result's id
        call_name = self._context.names.of(call_id)
        fields = {
            "messageId": self._context.names.begin(message_id),
            "toolCallId": call_name,
            "content": parts if self._context.modern and are_parts(parts) else text,
            "role": "tool",
        }
        facts = {
            **data,
            "outcome": data.get("outcome") or "ok",
            "args": call.args if call else {},
            "text": text,
        }
        subrun_id = self._open.subrun_of(f"call {call_id}", self._context.current_subrun)
        yield EventType.TOOL_CALL_RESULT, self._context.tagged(fields, subrun_id), facts


def _facts(call: Call) -> JsonObject:
    return {"tool": call.tool, "args": call.args, "message_id": call.message_id}


def _result_text(result: JsonObject) -> str:
    """Return the text of a failed call's error."""
    value = result.get("result")
    if value is None:
        return result.get("error") or ""
    return verbatim(value)
