"""Encodes canonical events into ADK's events, as ADK 2.13 sends them for `POST /run_sse` and `POST
/run`.

The encoder is used for agents of other frameworks, because a client of an ADK agent gets the agent
server's own bytes. `invocationId` is the id of the run, so the `invocationId` in a client's answer
identifies the run. With `streaming`, the pieces of a message are partial events with the same id,
and a final event has the complete text.

`OMITTED` lists the types without an ADK event. ADK has no event for the end of a run. The stream
ends after the last text, the token counts or the error. At a pause, the stream ends after
`adk_request_*` calls, or after a call whose id is in `longRunningToolIds`. A client answers such a
call with a functionResponse that has the call's id, which is the `question_id` of the item. A model
may repeat its own ids, and an answer that is sent again must not answer a later pause.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.dialects.adk.encode import shapes
from penstock.dialects.adk.vocabulary import ABORTED
from penstock.dialects.approvals import OpenApprovals, question_id
from penstock.dialects.base import (
    ClientDialect,
    Json,
    JsonObject,
    append_text,
    epoch_s,
    frame,
    omitted_types,
    type_of,
    unconfirmed,
)
from penstock.dialects.json import array, obj
from penstock.dialects.patch import Document
from penstock.sse import Frame

# The UUID namespace from which event ids are made. With a fixed namespace, the ids are
# reproducible: an encoder that is fed again from the run's start gives each event the same id as
# before.
_NAMESPACE: Final = uuid.UUID("5f0a3f63-33a4-5a0c-9f0e-6a0f6c0d2b11")

# Where a client sees the content of canonical types that have no ADK event.
_INSTEAD: Final[Mapping[str, str]] = {
    "lifecycle.started": "ADK streams no user event; the first event has the invocation",
    "lifecycle.resumed": "the next response goes on",
    "lifecycle.retrying": "the events of the next attempt",
    "llm.message_started": "the first piece of the message",
    "llm.tool_progress": "none: a client would take a functionResponse for the result",
    "dispatch.team": "events of the team have its author",
    "dispatch.worker": "events of the worker have its author and a branch of its own",
    "dispatch.finished": "the next event has another author",
    "workflow.started": "the steps' agents speak",
    "workflow.step_started": "ADK infers steps from the author",
    "workflow.step_completed": "the step's agent has spoken; the last output is the last text",
    "workflow.step_failed": "none: a client would take an errorCode for the run's failure",
    "workflow.transition": "the next event has another author",
    "workflow.completed": "its result is the last text",
    "workflow.failed": "the run fails with it",
    "retrieval.started": "groundingMetadata has what was found",
    "approval.decided": "the call's functionResponse shows it",
    "approval.expired": "the call's functionResponse shows it",
    "approval.withdrawn": "the run has ended",
    "state.messages": "a session's history is read, not streamed",
    "llm.usage": "the last event has the sum as usageMetadata",
    "custom.event": "none: ADK's events accept no unknown keys",
    "system.error": "none: a client would take an errorCode for the run's failure",
}


@dataclass(slots=True)
class _OpenText:
    """A message or a train of thought that has not ended."""

    begun: JsonObject  # the envelope of the first piece
    pieces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class AdkEncoder:
    """Encodes the events of one run (see `penstock.dialects.base.Encoder`). Without `streaming`,
    the client's choice, there are no partial events. `timeout_s` appears in the error frame of a
    run that timed out."""

    streaming: bool = False
    timeout_s: float = 300
    _agent: str = ""  # the run's agent, as the author of events without a source
    _messages: dict[str, _OpenText] = field(default_factory=dict)
    _thoughts: dict[str, _OpenText] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)  # The texts of all complete messages.
    # The calls that wait for a decision.
    _waiting: dict[str, JsonObject] = field(default_factory=dict)
    _approvals: OpenApprovals = field(default_factory=OpenApprovals)
    # maps a call's id to the item's id that the client gets instead
    _names: dict[str, str] = field(default_factory=dict)
    _state: Document = field(default_factory=lambda: Document({}))

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        """Frames have no event name."""
        event_type = type_of(event)
        if event["event"]["category"] == "approval":
            self._approvals.feed(event_type, event["data"])
        handle = _HANDLERS.get(event_type)
        return [frame(body) for body in handle(self, event)] if handle else []

    def _started(self, event: JsonObject) -> Iterator[JsonObject]:
        self._agent = event["data"].get("agent", "")
        yield from ()

    # Text and thoughts.

    def _streamed(self, event: JsonObject) -> Iterator[JsonObject]:
        yield from self._end_thoughts(event)
        data = event["data"]
        message_id, piece = data["message_id"], data["content"]
        append_text(self._messages.setdefault(message_id, _OpenText(event)).pieces, piece)
        if self.streaming:
            content = _content([{"text": piece}])
            yield self._event(event, message_id, content=content, partial=True)

    def _message_completed(self, event: JsonObject) -> Iterator[JsonObject]:
        yield from self._end_thoughts(event)
        data = event["data"]
        self._messages.pop(data["message_id"], None)
        yield from self._message(event, data["message_id"], data["content"], data)

    def _message(
        self, event: JsonObject, message_id: str, whole: str, data: JsonObject
    ) -> Iterator[JsonObject]:
        parts: list[JsonObject] = [{"text": whole}] if whole else []
        parts += shapes.media_parts(data.get("parts"))
        if not parts:
            return
        self._texts.append(whole)
        role = "model" if data.get("role", "assistant") == "assistant" else data["role"]
        cited = shapes.citation_metadata(data.get("citations"))
        extra = {"citationMetadata": cited} if cited else {}
        yield self._final(event, message_id, content=_content(parts, role), **extra)

    def _thought(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        reasoning_id, thought = data["reasoning_id"], data["thought"]
        if thought:
            append_text(self._thoughts.setdefault(reasoning_id, _OpenText(event)).pieces, thought)
            if self.streaming:
                content = _content([{"text": thought, "thought": True}])
                yield self._event(event, reasoning_id, content=content, partial=True)
        if data.get("final"):
            yield from self._end_thoughts(event, reasoning_id)

    def _end_thoughts(self, event: JsonObject, only: str | None = None) -> Iterator[JsonObject]:
        """By default, end all of the agent."""
        for reasoning_id, open_text in list(self._thoughts.items()):
            if only is None and self._place(open_text.begun) != self._place(event):
                continue
            if only in (None, reasoning_id):
                del self._thoughts[reasoning_id]
                yield self._final_thought(event, reasoning_id, open_text)

    def _final_thought(
        self, event: JsonObject, reasoning_id: str, open_text: _OpenText
    ) -> JsonObject:
        content = _content([{"text": "".join(open_text.pieces), "thought": True}])
        return self._final(_now(open_text.begun, event), reasoning_id, content=content)

    def _close(self, event: JsonObject) -> Iterator[JsonObject]:
        thoughts, self._thoughts = self._thoughts, {}
        for reasoning_id, open_text in thoughts.items():
            yield self._final_thought(event, reasoning_id, open_text)
        messages, self._messages = self._messages, {}
        for message_id, open_text in messages.items():
            begun = _now(open_text.begun, event)
            yield from self._message(begun, message_id, "".join(open_text.pieces), {})
        for call_id in list(self._waiting):
            yield from self._release(event, call_id)

    # Tools.

    def _tool_args(self, event: JsonObject) -> Iterator[JsonObject]:
        part = shapes.partial_call_part(event["data"]) if self.streaming else None
        if part:
            call_id = event["data"]["tool_call_id"]
            yield self._event(event, call_id, content=_content([part]), partial=True)

    def _tool_call(self, event: JsonObject) -> Iterator[JsonObject]:
        """Keep a call until its approval is requested, whose items determine the client's id for
        it."""
        yield from self._end_thoughts(event)
        self._waiting[event["data"]["tool_call_id"]] = event
        if not event["data"].get("pending"):
            yield from self._release(event, event["data"]["tool_call_id"])

    def _release(self, event: JsonObject, call_id: str) -> Iterator[JsonObject]:
        called = self._waiting.pop(call_id, None)
        if called is None:
            return
        known_as = self._names.get(call_id, call_id)
        content = _content([shapes.call_part({**called["data"], "tool_call_id": known_as})])
        long_running = [known_as] if call_id in self._names else []
        yield self._final(
            _now(called, event), call_id, content=content, longRunningToolIds=long_running
        )

    def _tool_result(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        call_id = data["tool_call_id"]
        yield from self._release(event, call_id)
        known_as = self._names.get(call_id, call_id)
        part = shapes.response_part({**data, "tool_call_id": known_as})
        yield self._event(event, f"{call_id}/result", content=_content([part], "user"))

    # Pauses.

    def _requested(self, event: JsonObject) -> Iterator[JsonObject]:
        for approval, item in self._approvals.items():
            if shapes.is_long_running(item) and item["tool_call_id"] in self._waiting:
                name = question_id(approval["approval_id"], item["item_id"])
                self._names[item["tool_call_id"]] = name
        for call_id in list(self._waiting):
            yield from self._release(event, call_id)

    def _paused(self, event: JsonObject) -> Iterator[JsonObject]:
        """End the leg with the open requests of all approvals. If a policy decides all items, the
        run does not pause, so the client sees none."""
        yield from self._close(event)
        # A call in `_names` is already in `longRunningToolIds` and needs no further request.
        items = {
            question_id(approval["approval_id"], item["item_id"]): item
            for approval, item in self._approvals.items()
            if item.get("tool_call_id") not in self._names
        }
        if items:
            content = _content([shapes.request_part(id, item) for id, item in items.items()])
            key = f"{event['data'].get('approval_id')}/request"
            yield self._event(event, key, content=content, longRunningToolIds=[*items])

    # Other fields of an event.

    def _transferred(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        actions = {"transferToAgent": data["to"]}
        if data.get("reason"):
            actions["transferReason"] = data["reason"]
        yield self._acted(event, actions)

    def _state_set(self, event: JsonObject) -> Iterator[JsonObject]:
        yield from self._state_became(event, self._state.replace(event["data"].get("snapshot")))

    def _state_changed(self, event: JsonObject) -> Iterator[JsonObject]:
        changes = array(event["data"].get("delta"))
        yield from self._state_became(event, self._state.apply_each(changes))

    def _state_became(self, event: JsonObject, changed: list[str]) -> Iterator[JsonObject]:
        """Emit the complete value of each changed outermost key; null for a removed key."""
        if changed:
            state = obj(self._state.value)
            yield self._acted(event, {"stateDelta": {key: state.get(key) for key in changed}})

    def _artifact(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield self._acted(event, {"artifactDelta": {data["name"]: data.get("version", 0)}})

    def _retrieved(self, event: JsonObject) -> Iterator[JsonObject]:
        grounding = shapes.grounding_metadata(event["data"].get("documents", ()))
        yield self._event(event, None, groundingMetadata=grounding)

    def _acted(self, event: JsonObject, actions: JsonObject) -> JsonObject:
        body = self._event(event, None)
        body["actions"] |= actions
        return body

    # Ends.

    def _completed(self, event: JsonObject) -> Iterator[JsonObject]:
        """Emit the token counts, and the answer if no message had the same text."""
        yield from self._close(event)
        data = event["data"]
        answer = data.get("summary", "")
        if answer and answer not in (*self._texts, "".join(self._texts)):
            yield self._final(event, "answer", content=_content([{"text": answer}]))
        if usage := shapes.usage_metadata(data.get("usage")):
            yield self._event(event, None, usageMetadata=usage)

    def _failed(self, event: JsonObject) -> Iterator[JsonObject]:
        """Emit the failure frame last, after an error of the agent server as an event, as ADK 2.13
        does."""
        yield from self._close(event)
        data = event["data"]
        failure = shapes.failure_frame(data, self.timeout_s, epoch_s(event))
        if details := obj(failure.get("error_details")):
            code, message = details["error_type"], details["error_message"]
            yield self._event(event, None, errorCode=code, errorMessage=message)
        yield failure

    def _cancelled(self, event: JsonObject) -> Iterator[JsonObject]:
        yield from self._close(event)
        message = f"Invocation was aborted by client{unconfirmed(event['data'])}."
        yield self._event(event, None, errorCode=ABORTED, errorMessage=message)

    # Events.

    def _final(self, event: JsonObject, key: str, **fields: Json) -> JsonObject:
        final = {"partial": False} if self.streaming else {}
        return self._event(event, key, **fields, **final)

    def _event(self, event: JsonObject, key: str | None, **fields: Json) -> JsonObject:
        """Events of a run with the same `key` have the same id."""
        author, branch = self._place(event)
        run_id = event["run_id"]
        body = {
            **fields,
            "invocationId": run_id,
            "author": author,
            "actions": {
                "stateDelta": {},
                "artifactDelta": {},
                "requestedAuthConfigs": {},
                "requestedToolConfirmations": {},
            },
            "id": str(uuid.uuid5(_NAMESPACE, f"{run_id}/{key or event['sequence']}")),
            "timestamp": epoch_s(event),
        }
        return {**body, "branch": branch} if branch else body

    def _place(self, event: JsonObject) -> tuple[str, str | None]:
        """Return author and branch: None in the outer run, and an own one for each inner run or
        step, because several of them may send text at once."""
        source = event.get("source")
        inner = obj(event.get("subrun")).get("id") or event.get("step_id")
        author = source["agent_id"] if source else self._agent
        return author, f"{self._agent}.{inner}" if inner else None


Handler = Callable[[AdkEncoder, JsonObject], Iterator[JsonObject]]

_HANDLERS: Final[Mapping[str, Handler]] = {
    "lifecycle.started": AdkEncoder._started,
    "lifecycle.paused": AdkEncoder._paused,
    "lifecycle.completed": AdkEncoder._completed,
    "lifecycle.failed": AdkEncoder._failed,
    "lifecycle.cancelled": AdkEncoder._cancelled,
    "llm.stream": AdkEncoder._streamed,
    "llm.message_completed": AdkEncoder._message_completed,
    "llm.reasoning": AdkEncoder._thought,
    "llm.tool_args": AdkEncoder._tool_args,
    "llm.tool_call": AdkEncoder._tool_call,
    "llm.tool_result": AdkEncoder._tool_result,
    "dispatch.transfer": AdkEncoder._transferred,
    "retrieval.result": AdkEncoder._retrieved,
    "approval.requested": AdkEncoder._requested,
    "state.snapshot": AdkEncoder._state_set,
    "state.delta": AdkEncoder._state_changed,
    "artifact.updated": AdkEncoder._artifact,
}

OMITTED: Final = omitted_types(
    _HANDLERS.keys() - {"lifecycle.started"}, _INSTEAD, "no event of ADK's"
)
DIALECT: Final = ClientDialect(partial(AdkEncoder, streaming=True), omitted=OMITTED, stateful=True)


def _content(parts: list[JsonObject], role: str = "model") -> JsonObject:
    return {"parts": parts, "role": role}


def _now(begun: JsonObject, event: JsonObject) -> JsonObject:
    return {**begun, "timestamp": event["timestamp"]}
