"""Canonical events to AG-UI events, in either field profile.

A run is as many AG-UI runs as it has waits: `lifecycle.paused` ends one with the outcome
`interrupt` (or with success and pending calls, where all that it waits for are a frontend's
tools), `lifecycle.resumed` begins the next. What falls between is left out, since no client takes
it there; a run that ends while it waits becomes RUN_STARTED and its terminal event.

What the protocol has no type for is CUSTOM, named `penstock.<category>.<action>`, its value the
event's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import orjson

from penstock.dialects.agui.ids import scope_of
from penstock.dialects.agui.interrupts import interrupt, interrupt_of_all
from penstock.dialects.agui.ledger import Call, Ledger, Message, Step, Subagent
from penstock.dialects.agui.native import are_messages, are_parts, native_event
from penstock.dialects.agui.patch import is_patch
from penstock.dialects.agui.profiles import Place, Profile
from penstock.dialects.agui.values import epoch_ms, json_text, result_text, token_usage
from penstock.dialects.agui.vocabulary import (
    CLIENT_KINDS,
    PROTOCOL_VERSION,
    TEXT_ROLES,
    EventType,
    is_modern,
)
from penstock.dialects.base import Json, JsonObject
from penstock.events import TERMINAL
from penstock.sse import Frame

# Instead of our own error texts, which name our insides (agent-runs-sse.md has these words).
INTERNAL_ERROR: Final = "runtime execution failed"
PROFILE_STEP: Final = "\0step"  # a step id that no canonical event has

# Where an inner run comes from, if its upstream speaks AG-UI.
_PARENTS: Final = {
    "parent_tool_call_id": "parentToolCallId",
    "parent_message_id": "parentMessageId",
}

# What one canonical event makes: a type, its fields, and the facts that a profile may add.
Said = tuple[EventType, JsonObject, JsonObject]
_NO_FACTS: Final[JsonObject] = {}


class Phase(Enum):
    """Where the run stands, as the client sees it."""

    BEFORE = auto()
    RUNNING = auto()
    WAITING = auto()  # an AG-UI run has ended, the next has not begun
    OVER = auto()


@dataclass(slots=True)
class AguiEncoder:
    """One run. `run_ids` gives the AG-UI runId of each leg, counted from 1.

    `protocol_version` is what the client declared, None for one before 1.0: that gets no
    SUBAGENT_*, no outcome `cancelled`, no `pendingToolCallIds` and no results in parts.
    `upstream_ids`: the upstream speaks AG-UI itself and must get its own ids back, so they are
    left as they are; otherwise each id is made unique in its thread (see `ids`).
    """

    profile: Profile
    thread_id: str
    run_ids: Callable[[int], str]
    protocol_version: str | None = None
    upstream_ids: bool = False
    phase: Phase = field(default=Phase.BEFORE, init=False)
    open: Ledger = field(default_factory=Ledger, init=False)
    modern: bool = field(init=False)
    _scope: str = field(default="", init=False)
    _leg: int = field(default=0, init=False)
    _run_id: str = field(default="", init=False)
    _calls: dict[str, Call] = field(default_factory=dict, init=False)
    _requests: dict[str, JsonObject] = field(default_factory=dict, init=False)
    _event: JsonObject = field(default_factory=dict, init=False)
    _owner: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.modern = is_modern(self.protocol_version)

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        """The frames of one canonical event, given as its envelope; none for one that has none."""
        name = event["event"]
        type = f"{name['category']}.{name['action']}"
        if self.phase is Phase.OVER:
            return ()
        if self.phase is Phase.WAITING and type not in _ENDS_A_WAIT:
            return ()
        self._event = event
        self._owner = (event.get("subrun") or {}).get("id")
        said = [] if self.phase is Phase.RUNNING else list(self._begin(event))
        handler = _HANDLERS.get(type, AguiEncoder._custom)
        said += handler(self, event["data"])
        place = Place(self.thread_id, self._run_id, epoch_ms(event.get("timestamp")))
        return [self._frame(each, place) for each in said]

    def cut(self, message: str, code: str) -> Sequence[Frame]:
        """Ends a stream that cannot go on to the run's end: a client takes silence for success."""
        if self.phase is not Phase.RUNNING:
            return ()
        self.phase = Phase.OVER
        said = [*self._close(error=message), _error(message, code)]
        return [self._frame(each, self.place) for each in said]

    @property
    def scope(self) -> str:
        """What the ids of this run begin with, once its first event is known."""
        return self._scope

    @property
    def place(self) -> Place:
        """Where an event without a time of its own would stand."""
        return Place(self.thread_id, self._run_id, None)

    def reopened(self) -> Iterator[Said]:
        """The starts of all that is open, for a client that joins now."""
        again: set[str] = set()
        for id, subagent in self.open.subagents.items():
            fields = {"subagentRunId": id, **subagent.started}
            if fields.get("parentSubagentRunId") not in again:  # it has ended, and is not told
                fields.pop("parentSubagentRunId", None)
            again.add(id)
            yield EventType.SUBAGENT_STARTED, fields, _NO_FACTS
        for step in self.open.steps.values():
            yield self._step(EventType.STEP_STARTED, step)
        if not self.profile.whole:
            for id, message in self.open.messages.items():
                yield self._message_start(id, message)
            for id, call in self.open.calls.items():
                yield self._call_start(id, call)
        for id, owner in self.open.thoughts.items():
            yield from self._thought_starts(id, owner)

    def _frame(self, said: Said, place: Place) -> Frame:
        type, fields, facts = said
        return Frame(orjson.dumps(self.profile.body(type, fields, facts, place)), type.value)

    # the run

    def _begin(self, event: JsonObject) -> Iterator[Said]:
        """RUN_STARTED, and what was open when the run began to wait."""
        run_id = event.get("run_id") or ""
        if self.phase is Phase.BEFORE and not self.upstream_ids:
            self._scope = scope_of(run_id)
        self._leg = max(event.get("leg") or 1, self._leg + 1)
        self._run_id = self.run_ids(self._leg)
        self.phase = Phase.RUNNING
        fields = {"threadId": self.thread_id, "runId": self._run_id}
        if self.modern:
            fields["protocolVersion"] = PROTOCOL_VERSION
        facts = {"run_id": run_id, "leg": self._leg, "agent": event["data"].get("agent")}
        yield EventType.RUN_STARTED, fields, facts
        if self.profile.step:
            self.open.steps[PROFILE_STEP] = Step(self.profile.step, None)
        self.open.known_subagents.update(self.open.subagents)
        yield from self.reopened()

    def _nothing(self, data: JsonObject) -> Iterator[Said]:
        yield from ()

    def _paused(self, data: JsonObject) -> Iterator[Said]:
        approval_id = data["approval_id"]
        request = self._requests.get(approval_id, {})
        items = request.get("items") or []
        facts = {"approval_id": approval_id}
        if items and all(_is_frontends(item) for item in items):
            outcome: JsonObject = {"type": "success"}
            pending = [f"{self._scope}{item['tool_call_id']}" for item in items]
            said = self._close()
            if self.modern:
                outcome["pendingToolCallIds"] = list(dict.fromkeys(pending))
        else:
            interrupts = [
                interrupt(request, item, scope=self._scope, modern=self.modern) for item in items
            ] or [interrupt_of_all(approval_id)]
            said = self._close(suspended=[each["id"] for each in interrupts])
            outcome = {"type": "interrupt", "interrupts": interrupts}
        yield from said
        self.phase = Phase.WAITING
        yield self._finished(facts, outcome=outcome)

    def _requested(self, data: JsonObject) -> Iterator[Said]:
        self._requests[data["approval_id"]] = data
        yield from ()

    def _completed(self, data: JsonObject) -> Iterator[Said]:
        yield from self._close()
        self.phase = Phase.OVER
        fields: JsonObject = {}
        if data.get("value") is not None:
            fields["result"] = data["value"]
        if usage := token_usage(data.get("usage")):
            fields["usage"] = [usage]
        yield self._finished(data, **fields)

    def _cancelled(self, data: JsonObject) -> Iterator[Said]:
        reason = data.get("reason") or "user_stop"
        yield from self._close(error=f"cancelled: {reason}")
        self.phase = Phase.OVER
        if self.modern:
            yield self._finished(data, outcome={"type": "cancelled"})
        else:  # an older client knows no such outcome, and success it was not
            facts = {"by": data.get("by")}
            yield _error(f"The run was cancelled: {reason}.", "cancelled", facts)

    def _failed(self, data: JsonObject) -> Iterator[Said]:
        code = data.get("code") or "internal"
        message = data.get("error") or INTERNAL_ERROR
        facts = data
        if code == "internal":
            message, facts = INTERNAL_ERROR, _NO_FACTS
        yield from self._close(error=message)
        self.phase = Phase.OVER
        yield _error(message, code, facts)

    def _finished(self, facts: JsonObject, **fields: Json) -> Said:
        body = {"threadId": self.thread_id, "runId": self._run_id, **fields}
        return EventType.RUN_FINISHED, body, facts

    def _close(
        self, *, error: str | None = None, suspended: Sequence[str] | None = None
    ) -> Iterator[Said]:
        """Ends all that is open. Steps and inner runs of a run that waits go on after it."""
        for id in list(self.open.thoughts):
            yield from self._thought_ends(id)
        for id, message in list(self.open.messages.items()):
            content = "".join(message.text)
            yield from self._message_end(id, message, {"content": content, "error": error})
        for id, call in list(self.open.calls.items()):
            yield from self._call_end(id, call, "".join(call.text), _NO_FACTS)
        for step in reversed(self.open.steps.values()):
            yield self._step(EventType.STEP_FINISHED, step)
        for id in reversed(self.open.subagents):
            fields: JsonObject = {"subagentRunId": id}
            if error is not None:
                yield EventType.SUBAGENT_ERROR, {**fields, "message": error}, _NO_FACTS
                continue
            if suspended is not None:
                fields["outcome"] = {"type": "suspended", "interruptIds": list(suspended)}
            yield EventType.SUBAGENT_FINISHED, fields, _NO_FACTS
        self.open.owners.clear()
        self.open.known_subagents.clear()

    # messages

    def _message_started(self, data: JsonObject) -> Iterator[Said]:
        yield from self._end_thoughts()
        if data["message_id"] not in self.open.messages:
            yield from self._open_message(data["message_id"], data)

    def _stream(self, data: JsonObject) -> Iterator[Said]:
        yield from self._end_thoughts()
        id, content = data["message_id"], data["content"]
        message = self.open.messages.get(id)
        if message is None:
            yield from self._open_message(id, data)
            message = self.open.messages[id]
        if self.profile.whole:
            message.text.append(content)
        elif content:
            message.said = True
            fields = {"messageId": self._scope + id, "delta": content}
            yield EventType.TEXT_MESSAGE_CONTENT, fields, _NO_FACTS

    def _message_completed(self, data: JsonObject) -> Iterator[Said]:
        yield from self._end_thoughts()
        id = data["message_id"]
        if id not in self.open.messages:
            yield from self._open_message(id, data)
        yield from self._message_end(id, self.open.messages[id], data)

    def _open_message(self, id: str, data: JsonObject) -> Iterator[Said]:
        role = data.get("role")
        owner = self.open.owner_of(f"message {id}", self._owner)
        started = {name: data[name] for name in ("name", "metadata") if data.get(name)}
        message = Message(role if role in TEXT_ROLES else "assistant", owner, started=started)
        self.open.messages[id] = message
        if not self.profile.whole:
            yield self._message_start(id, message)

    def _message_start(self, id: str, message: Message) -> Said:
        fields: JsonObject = {"messageId": self._scope + id, "role": message.role}
        name = message.started.get("name")
        if isinstance(name, str):
            fields["name"] = name
        return EventType.TEXT_MESSAGE_START, self._tagged(fields, message.owner), message.started

    def _message_end(self, id: str, message: Message, data: JsonObject) -> Iterator[Said]:
        del self.open.messages[id]
        content = data.get("content") or "".join(message.text)
        if self.profile.whole:
            yield self._message_start(id, message)
        if content and not message.said:
            fields = {"messageId": self._scope + id, "delta": content}
            yield EventType.TEXT_MESSAGE_CONTENT, fields, _NO_FACTS
        facts = {**data, "content": content, "role": message.role}
        yield EventType.TEXT_MESSAGE_END, {"messageId": self._scope + id}, facts

    # thoughts

    def _reasoning(self, data: JsonObject) -> Iterator[Said]:
        id = data["reasoning_id"]
        if data["thought"]:
            if id not in self.open.thoughts:
                self.open.thoughts[id] = self._owner
                yield from self._thought_starts(id, self._owner)
            fields = {"messageId": self._scope + id, "delta": data["thought"]}
            yield EventType.REASONING_MESSAGE_CONTENT, fields, data
        if data.get("final") and id in self.open.thoughts:
            yield from self._thought_ends(id)

    def _end_thoughts(self) -> Iterator[Said]:
        """Who speaks or acts has thought: a client shows it as thinking until then."""
        if self.open.thoughts:
            mine = [id for id, owner in self.open.thoughts.items() if owner == self._owner]
            for id in mine:
                yield from self._thought_ends(id)

    def _thought_starts(self, id: str, owner: str | None) -> Iterator[Said]:
        owner = self.open.owner_of(f"thought {id}", owner)
        span = self._tagged({"messageId": self._scope + id}, owner)
        yield EventType.REASONING_START, span, _NO_FACTS
        yield EventType.REASONING_MESSAGE_START, {**span, "role": "reasoning"}, _NO_FACTS

    def _thought_ends(self, id: str) -> Iterator[Said]:
        del self.open.thoughts[id]
        span = {"messageId": self._scope + id}
        yield EventType.REASONING_MESSAGE_END, span, _NO_FACTS
        yield EventType.REASONING_END, span, _NO_FACTS

    # tools

    def _tool_args(self, data: JsonObject) -> Iterator[Said]:
        """Text of arguments. A value at a path is no text: those arguments come with the call."""
        delta = data.get("delta")
        id = data["tool_call_id"]
        if not delta or (id in self._calls and id not in self.open.calls):
            return
        yield from self._end_thoughts()
        call = self.open.calls.get(id)
        if call is None:
            call = self._new_call(id, data)
            if not self.profile.whole:
                yield self._call_start(id, call)
        if self.profile.whole:
            call.text.append(delta)
        else:
            call.said = True
            fields = {"toolCallId": self._scope + id, "delta": delta}
            yield EventType.TOOL_CALL_ARGS, fields, self._call_facts(call)

    def _tool_call(self, data: JsonObject) -> Iterator[Said]:
        id = data["tool_call_id"]
        call = self.open.calls.get(id)
        if call is None:
            if id in self._calls:
                return
            call = self._new_call(id, data)
            if not self.profile.whole:
                yield from self._end_thoughts()
                yield self._call_start(id, call)
        yield from self._end_thoughts()
        call.args = data["args"]
        text = data.get("args_text")
        yield from self._call_end(
            id, call, text if text is not None else json_text(call.args), data
        )

    def _new_call(self, id: str, data: JsonObject) -> Call:
        message_id = data.get("parent_message_id") or data.get("message_id")
        if not isinstance(message_id, str):
            message_id = id
        call = Call(
            tool=data["tool"],
            message_id=self._scope + message_id,
            owner=self.open.owner_of(f"call {id}", self._owner),
        )
        self.open.calls[id] = self._calls[id] = call
        return call

    def _call_start(self, id: str, call: Call) -> Said:
        fields: JsonObject = {"toolCallId": self._scope + id, "toolCallName": call.tool}
        if call.message_id != self._scope + id:
            fields["parentMessageId"] = call.message_id
        tagged = self._tagged(fields, call.owner)
        return EventType.TOOL_CALL_START, tagged, self._call_facts(call)

    def _call_end(self, id: str, call: Call, text: str, data: JsonObject) -> Iterator[Said]:
        del self.open.calls[id]
        facts = {**data, **self._call_facts(call)}
        fields = {"toolCallId": self._scope + id}
        if self.profile.whole:
            yield self._call_start(id, call)
        if text and not call.said:
            yield EventType.TOOL_CALL_ARGS, {**fields, "delta": text}, self._call_facts(call)
        yield EventType.TOOL_CALL_END, fields, facts

    def _call_facts(self, call: Call) -> JsonObject:
        return {"tool": call.tool, "args": call.args, "message_id": call.message_id}

    def _tool_result(self, data: JsonObject) -> Iterator[Said]:
        yield from self._end_thoughts()
        id = data["tool_call_id"]
        call = self.open.calls.get(id)
        if call is not None:
            yield from self._call_end(id, call, "".join(call.text), _NO_FACTS)
        call = call or self._calls.get(id)
        text = result_text(data)
        parts = data.get("content")
        fields = {
            "messageId": self._scope + (data.get("message_id") or f"{id}.result"),
            "toolCallId": self._scope + id,
            "content": parts if self.modern and are_parts(parts) else text,
            "role": "tool",
        }
        facts = {
            **data,
            "outcome": data.get("outcome") or "ok",
            "args": call.args if call else {},
            "text": text,
        }
        owner = self.open.owner_of(f"call {id}", self._owner)
        yield EventType.TOOL_CALL_RESULT, self._tagged(fields, owner), facts

    # steps and inner runs

    def _step_started(self, data: JsonObject) -> Iterator[Said]:
        if self.profile.step:
            yield from self._custom(data)
        elif data["step_id"] not in self.open.steps:
            owner = self._owner if self.modern else None
            name = self.open.step_name(data["step_id"], data.get("description") or "", owner)
            step = self.open.steps[data["step_id"]] = Step(name, owner)
            yield self._step(EventType.STEP_STARTED, step, data)

    def _step_ended(self, data: JsonObject) -> Iterator[Said]:
        step = self.open.steps.pop(data["step_id"], None)
        if step is None:
            yield from self._custom(data)
        else:
            yield self._step(EventType.STEP_FINISHED, step, data)

    def _step(self, type: EventType, step: Step, facts: JsonObject = _NO_FACTS) -> Said:
        return type, self._tagged({"stepName": step.name}, step.owner), facts

    def _worker(self, data: JsonObject) -> Iterator[Said]:
        id = data["subrun_id"]
        if not self.modern or id in self.open.known_subagents:
            yield from self._custom(data)
            return
        started: JsonObject = {"name": data["worker_name"]}
        if data.get("task"):
            started["description"] = data["task"]
        if data.get("parent_subrun_id") in self.open.known_subagents:
            started["parentSubagentRunId"] = data["parent_subrun_id"]
        for name, theirs in _PARENTS.items():
            if isinstance(data.get(name), str):
                started[theirs] = self._scope + data[name]
        self.open.subagents[id] = Subagent(started)
        self.open.known_subagents.add(id)
        yield EventType.SUBAGENT_STARTED, {"subagentRunId": id, **started}, data

    def _worker_finished(self, data: JsonObject) -> Iterator[Said]:
        id = data["subrun_id"]
        if self.open.subagents.pop(id, None) is None:
            yield from self._custom(data)
            return
        fields: JsonObject = {"subagentRunId": id}
        status = data.get("status")
        if status in ("failed", "cancelled"):
            message = data.get("error") or f"The inner run was {status}."
            yield EventType.SUBAGENT_ERROR, {**fields, "message": message, "code": status}, data
            return
        if data.get("result") is not None:
            fields["result"] = data["result"]
        yield EventType.SUBAGENT_FINISHED, fields, data

    # state, and all the rest

    def _snapshot(self, data: JsonObject) -> Iterator[Said]:
        yield EventType.STATE_SNAPSHOT, self._mine({"snapshot": data["snapshot"]}), _NO_FACTS

    def _delta(self, data: JsonObject) -> Iterator[Said]:
        if is_patch(data["delta"]):
            yield EventType.STATE_DELTA, self._mine({"delta": data["delta"]}), _NO_FACTS
        else:
            yield from self._custom(data)

    def _messages(self, data: JsonObject) -> Iterator[Said]:
        messages = data["messages"]
        if are_messages(messages, modern=self.modern) and self._keeps_what_is_open(messages):
            yield EventType.MESSAGES_SNAPSHOT, {"messages": messages}, _NO_FACTS
        else:
            yield from self._custom(data)

    def _keeps_what_is_open(self, messages: list[JsonObject]) -> bool:
        """A client drops what a snapshot leaves out, and then cannot go on with it."""
        kept = {message["id"] for message in messages}
        kept.update(call["id"] for each in messages for call in each.get("toolCalls", ()))
        ids = (*self.open.messages, *self.open.calls)
        return self.profile.whole or all(self._scope + id in kept for id in ids)

    def _custom_event(self, data: JsonObject) -> Iterator[Said]:
        native = None
        if data.get("protocol") == "agui":
            native = native_event(data["name"], data["value"])
        if native is None:
            yield from self._custom(data)
            return
        type, fields = native
        scoped: JsonObject = {
            name: self._scope + fields[name] for name in ("messageId", "entityId") if name in fields
        }
        metadata = data["value"].get("metadata") if isinstance(data["value"], dict) else None
        facts = {"metadata": metadata} if type != EventType.CUSTOM else _NO_FACTS
        yield type, {**fields, **scoped}, facts

    def _custom(self, data: JsonObject) -> Iterator[Said]:
        name = self._event["event"]
        ids: JsonObject = {  # as the client knows them
            key: self._scope + data[key]
            for key in ("tool_call_id", "message_id")
            if isinstance(data.get(key), str)
        }
        fields = {
            "name": f"penstock.{name['category']}.{name['action']}",
            "value": {**data, **ids} if ids else data,
        }
        yield EventType.CUSTOM, self._mine(fields), _NO_FACTS

    def _mine(self, fields: JsonObject) -> JsonObject:
        return self._tagged(fields, self._owner)

    def _tagged(self, fields: JsonObject, owner: str | None) -> JsonObject:
        """The fields, with the inner run that they come from, for a client that knows of such."""
        if owner is not None and self.modern:
            fields["subagentRunId"] = owner
        return fields


Handler = Callable[[AguiEncoder, JsonObject], Iterator[Said]]

_HANDLERS: Final[Mapping[str, Handler]] = {
    "lifecycle.started": AguiEncoder._nothing,
    "lifecycle.paused": AguiEncoder._paused,
    "lifecycle.resumed": AguiEncoder._nothing,
    "lifecycle.completed": AguiEncoder._completed,
    "lifecycle.failed": AguiEncoder._failed,
    "lifecycle.cancelled": AguiEncoder._cancelled,
    "approval.requested": AguiEncoder._requested,
    "llm.message_started": AguiEncoder._message_started,
    "llm.stream": AguiEncoder._stream,
    "llm.message_completed": AguiEncoder._message_completed,
    "llm.reasoning": AguiEncoder._reasoning,
    "llm.tool_args": AguiEncoder._tool_args,
    "llm.tool_call": AguiEncoder._tool_call,
    "llm.tool_result": AguiEncoder._tool_result,
    "workflow.step_started": AguiEncoder._step_started,
    "workflow.step_completed": AguiEncoder._step_ended,
    "workflow.step_failed": AguiEncoder._step_ended,
    "dispatch.worker": AguiEncoder._worker,
    "dispatch.finished": AguiEncoder._worker_finished,
    "state.snapshot": AguiEncoder._snapshot,
    "state.delta": AguiEncoder._delta,
    "state.messages": AguiEncoder._messages,
    "custom.event": AguiEncoder._custom_event,
}
_ENDS_A_WAIT: Final = TERMINAL | {"lifecycle.resumed"}


def _is_frontends(item: JsonObject) -> bool:
    return item["kind"] in CLIENT_KINDS and bool(item.get("tool_call_id"))


def _error(message: str, code: str, facts: JsonObject = _NO_FACTS) -> Said:
    return EventType.RUN_ERROR, {"message": message, "code": code}, facts
