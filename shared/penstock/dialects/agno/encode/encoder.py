"""Encodes canonical events into Agno's frames, in the sequences of agno-events.md.

A frame has `event: Name` and its data. The encoder is used for agents of other frameworks, because
a client of an Agno agent gets the agent server's own bytes. `run_id` is the id of the Penstock run,
so that a client can continue and cancel the run.

As in Agno, a client sees a call only when the call runs, and never sees a rejected call. Not every
protocol says that a call waits for a decision. So the encoder keeps a call without progress until
the call's result or the end of the leg. RunContentCompleted comes once in a response, at the end.
`OMITTED` lists the types without an Agno event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.dialects.agno.encode import pauses
from penstock.dialects.agno.encode.steps import STEP_FRAMES, Address
from penstock.dialects.approvals import OpenApprovals
from penstock.dialects.base import (
    ClientDialect,
    Json,
    JsonObject,
    append_text,
    epoch_s,
    frame,
    has_failed,
    omitted_types,
    type_of,
    unconfirmed,
)
from penstock.dialects.json import obj, objects, text
from penstock.dialects.patch import Document
from penstock.sse import Frame

# Where a client sees the content of canonical types that have no Agno event.
_INSTEAD: Final[Mapping[str, str]] = {
    "lifecycle.retrying": "the events of the next attempt",
    "llm.message_started": "the first piece of the message",
    "llm.tool_args": "the tool object has the complete arguments",
    "llm.usage": "RunCompleted has the sum in its metrics",
    "dispatch.transfer": "the next frames name the new agent",
    "workflow.started": "WorkflowStarted was the first event",
    "workflow.transition": "the next step starts",
    "workflow.completed": "WorkflowCompleted of the run has its result",
    "workflow.failed": "WorkflowError of the run has its error",
    "approval.expired": "the run goes on or ends",
    "approval.withdrawn": "the run has ended",
    "state.messages": "a session's history is read, not streamed",
    "system.error": "none: a client would take RunError for the end of the run",
}


@dataclass(slots=True)
class _Speaker:
    """The text and citations that one run has sent in this response."""

    spoke: bool = False  # Whether text was sent in this response.
    in_turn: bool = False  # Whether RunContent was sent since the last result of a tool.
    # The source and subrun of an inner run's frames.
    sender: JsonObject = field(default_factory=dict)
    citations: JsonObject = field(default_factory=lambda: pauses.citations(None))


@dataclass(slots=True)
class _Call:
    """A call that has no result yet. `item` of the approval asks about it."""

    event: JsonObject
    tool: JsonObject
    started_s: float | None = None
    item: JsonObject | None = None

    @property
    def is_waiting(self) -> bool:
        return self.item is not None or bool(self.event["data"].get("pending"))

    def duration_s(self, event: JsonObject) -> float | None:
        """Return None if the call waited and no event shows its start."""
        begun_s = epoch_s(self.event) if not self.is_waiting else self.started_s
        return None if begun_s is None else round(epoch_s(event) - begun_s, 6)


@dataclass(slots=True)
class AgnoEncoder:
    """Encodes the events of one run (see `penstock.dialects.base.Encoder`). `kind` of the surface
    is agent, team or workflow. `name`, `model` and `model_provider` of the configuration may be
    ""."""

    kind: str = "agent"
    name: str = ""
    model: str = ""
    model_provider: str = ""
    _address: Address = field(init=False)
    _started_s: float = 0
    _first_text_s: float | None = None
    _spoke: bool = False  # Whether the outer run has sent text in any response.
    _thoughts: list[str] = field(default_factory=list)  # The thoughts of the outer run.
    # Maps an inner run's id to the run's state in this response. The id of the outer run is "".
    _speakers: dict[str, _Speaker] = field(default_factory=dict)
    _streamed: set[str] = field(default_factory=set)  # the open messages that were sent in pieces
    _calls: dict[str, _Call] = field(default_factory=dict)
    _approvals: OpenApprovals = field(default_factory=OpenApprovals)
    # Maps a step's id to its dispatch, if the step belongs to Penstock's own workflow and has not
    # started.
    _dispatches: dict[str, JsonObject] = field(default_factory=dict)
    _state: Document = field(default_factory=lambda: Document({}))

    def __post_init__(self) -> None:
        self._address = Address(self.kind, self.name)

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        event_type = type_of(event)
        if event["event"]["category"] == "approval":
            self._approvals.feed(event_type, event["data"])
        handle = _HANDLERS.get(event_type)
        if handle is None:
            return ()
        return [frame(body, body["event"]) for body in handle(self, event)]

    # Starts.

    def _started(self, event: JsonObject) -> Iterator[JsonObject]:
        self._address.agent_id = event["data"].get("agent", "")
        self._started_s = epoch_s(event)
        yield self._address.frame(
            event, "RunStarted", model=self.model, model_provider=self.model_provider
        )

    def _resumed(self, event: JsonObject) -> Iterator[JsonObject]:
        yield self._address.frame(event, "RunContinued")

    def _dispatched(self, event: JsonObject) -> Iterator[JsonObject]:
        """Start an inner run, after the starts of the running calls, one of which has started it. A
        step of a Penstock workflow is dispatched before it starts, but Agno's clients expect the
        step's start first, so such a dispatch waits for it."""
        yield from self._show_calls(event)
        data = event["data"]
        if not data.get("subrun_id"):
            return  # the members of a team may have inner runs of their own
        if self.kind == "workflow" and self._address.awaits_start(event):
            self._dispatches[event["step_id"]] = event
        else:
            yield self._inner_started(event)

    def _inner_started(self, event: JsonObject) -> JsonObject:
        # The worker's name is used as its id, which only later events contain.
        data = event["data"]
        name = data.get("worker_name") or data["team_name"]
        parent = data.get("parent_subrun_id")
        subrun = {"id": data["subrun_id"], "parent_id": parent, "name": name}
        source = {"agent_id": name, "agent_name": name, "agent_type": "worker"}
        inner = {**event, "source": source, "subrun": subrun}
        self._speaker(inner)
        return self._address.frame(inner, "RunStarted", model="", model_provider="")

    # Text and thoughts.

    def _streaming(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        self._streamed.add(data["message_id"])
        yield self._send_text(event, data["content"])

    def _message_completed(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        if data["message_id"] in self._streamed:
            self._streamed.discard(data["message_id"])
        elif data.get("value") is not None:
            yield self._send_text(event, data["value"], data.get("content_type"))
        elif data["content"]:
            yield self._send_text(event, data["content"])
        if data.get("citations"):
            self._speaker(event).citations = pauses.citations(data["citations"])

    def _thought(self, event: JsonObject) -> Iterator[JsonObject]:
        thought = event["data"]["thought"]
        if thought:
            self._speaker(event).in_turn = True
            if not event.get("subrun"):
                append_text(self._thoughts, thought)
            fields = {"content_type": "str", "reasoning_content": thought, "workflow_agent": False}
            yield self._address.frame(event, "RunContent", **fields)

    def _send_text(self, event: JsonObject, content: Json, content_type: Json = None) -> JsonObject:
        speaker = self._speaker(event)
        speaker.spoke = speaker.in_turn = True
        self._spoke = self._spoke or not event.get("subrun")
        if self._first_text_s is None:
            self._first_text_s = epoch_s(event)
        return self._content(event, content, content_type)

    def _content(
        self, event: JsonObject, content: Json, content_type: Json = None, **fields: Json
    ) -> JsonObject:
        return self._address.frame(
            event,
            "RunContent",
            content=content,
            content_type=content_type or _type_of(content),
            **fields,
            reasoning_content="",
            workflow_agent=False,
        )

    def _end_content(self, event: JsonObject) -> Iterator[JsonObject]:
        """If there are citations, a last empty piece of text has them."""
        speaker = self._speaker(event)
        if speaker.spoke:
            yield self._content(event, "", citations=speaker.citations)
        yield self._address.frame(event, "RunContentCompleted")
        speaker.spoke = speaker.in_turn = False

    def _speaker(self, event: JsonObject) -> _Speaker:
        subrun = event.get("subrun")
        if subrun is None:
            return self._speakers.setdefault("", _Speaker())
        speaker = self._speakers.setdefault(subrun["id"], _Speaker())
        speaker.sender = {"source": event.get("source"), "subrun": subrun}
        return speaker

    # Tools.

    def _tool_call(self, event: JsonObject) -> Iterator[JsonObject]:
        """Keep a call until it runs. If the turn has no content yet, send an empty text."""
        data = event["data"]
        tool = pauses.tool(data["tool_call_id"], data["tool"], data.get("args"))
        self._calls[data["tool_call_id"]] = _Call(event, tool)
        yield from self._begin_turn(event)

    def _begin_turn(self, event: JsonObject) -> Iterator[JsonObject]:
        speaker = self._speaker(event)
        if not speaker.in_turn:
            speaker.in_turn = True
            yield self._content(event, "")

    def _tool_progress(self, event: JsonObject) -> Iterator[JsonObject]:
        call = self._calls.get(event["data"]["tool_call_id"])
        if call:
            yield from self._run(call, event)

    def _run(self, call: _Call, event: JsonObject) -> Iterator[JsonObject]:
        if call.started_s is None:
            call.started_s = epoch_s(event)
            at = {**call.event, "timestamp": event["timestamp"]}
            yield self._address.frame(at, "ToolCallStarted", tool=dict(call.tool))

    def _tool_result(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        outcome = data.get("outcome")
        call = self._calls.pop(data["tool_call_id"], None)
        if call is None:  # there was no `llm.tool_call` for this result
            call = _Call(event, pauses.tool(data["tool_call_id"], data["tool"], None))
        self._speaker(event).in_turn = False
        if call.started_s is None and (
            outcome in ("rejected", "expired") or pauses.is_silent(call.item, data["tool"])
        ):
            return
        duration_s = data.get("duration_s", call.duration_s(event))
        yield from self._run(call, event)
        failed = has_failed(data)
        result = data.get("error") if failed else data.get("result")
        tool = {
            **call.tool,
            "result": pauses.result_text(result),
            "tool_call_error": failed,
            "metrics": None if duration_s is None else {"duration": duration_s},
        }
        message = pauses.completion_text(tool, duration_s)
        yield self._address.frame(event, "ToolCallCompleted", content=message, tool=tool)

    def _show_calls(self, event: JsonObject) -> Iterator[JsonObject]:
        """Start the calls that need no decision and have not started."""
        for call in self._calls.values():
            if not call.is_waiting:
                yield from self._run(call, event)

    # Pauses.

    def _requested(self, event: JsonObject) -> Iterator[JsonObject]:
        for item in objects(event["data"].get("items")):
            call = self._calls.get(item.get("tool_call_id") or "")
            if call:
                call.item = item
                call.tool = pauses.waiting_tool(item, event["data"].get("approval_id"))
        yield from ()

    def _decided(self, event: JsonObject) -> Iterator[JsonObject]:
        decisions = {each["item_id"]: each for each in objects(event["data"].get("items"))}
        for call in self._calls.values():
            decision = decisions.get(call.item["item_id"]) if call.item else None
            if decision and call.tool["requires_confirmation"]:
                call.tool["confirmed"] = decision.get("decision") == "approve"
                call.tool["confirmation_note"] = decision.get("note")
        yield from ()

    def _paused(self, event: JsonObject) -> Iterator[JsonObject]:
        yield from self._show_calls(event)
        if self.kind != "workflow":
            if not self._speaker(event).spoke:
                yield from self._begin_turn(event)
            yield from self._end_content(event)
        waiting = [
            (item, pauses.waiting_tool(item, request.get("approval_id")))
            for request, item in self._approvals.items()
        ]
        message = pauses.PAUSE_TEXTS.get(waiting[0][0]["kind"] if waiting else "", pauses.CONFIRM)
        at = event["timestamp"]
        if self.kind == "workflow":
            asked = [pauses.step_requirement(item, tool, at) for item, tool in waiting]
            yield self._address.frame(event, "RunPaused", status="PAUSED", step_requirements=asked)
            return
        own = [tool for item, tool in waiting if self.kind == "agent" or not item.get("subrun")]
        asked = [pauses.requirement(item, tool, at) for item, tool in waiting]
        yield self._address.frame(
            event, "RunPaused", content=message, tools=own, requirements=asked
        )

    def _step(self, event: JsonObject) -> Iterator[JsonObject]:
        if self.kind == "workflow":
            yield STEP_FRAMES[event["event"]["action"]](self._address, event)
            if event["event"]["action"] == "step_started":
                dispatch = self._dispatches.pop(event["data"]["step_id"], None)
                if dispatch is not None:
                    yield self._inner_started({**dispatch, "timestamp": event["timestamp"]})

    # Ends.

    def _finished(self, event: JsonObject) -> Iterator[JsonObject]:
        # The sender is the run's agent, even if another agent reports the end.
        data = event["data"]
        inner = event
        if obj(event.get("subrun")).get("id") != data["subrun_id"]:
            speaker = self._speakers.get(data["subrun_id"], _Speaker())
            inner = {**event, "subrun": {"id": data["subrun_id"]}, **speaker.sender}
        if self._speaker(inner).spoke:
            yield from self._end_content(inner)
        match data.get("status"):
            case "failed":
                yield self._address.frame(inner, "RunError", content=data.get("error") or "")
            case "cancelled":
                yield self._address.frame(inner, "RunCancelled", reason=_stopped(data["subrun_id"]))
            case _:
                result = data.get("result")
                yield self._address.frame(
                    inner, "RunCompleted", content=result, content_type=_type_of(result)
                )

    def _completed(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield from self._show_calls(event)
        summary, value = data.get("summary", ""), data.get("value")
        # If the summary is empty or only repeats the structured output as text, the content of the
        # answer is the structured output.
        structured = value is not None and summary in ("", text(value))
        content = value if structured else summary
        if self.kind != "workflow":
            if content and not self._spoke:
                yield self._send_text(event, content, data.get("content_type"))
            yield from self._end_content(event)
        first_token_s = self._first_text_s and round(self._first_text_s - self._started_s, 6)
        duration_s = round(epoch_s(event) - self._started_s, 6)
        thoughts = {"reasoning_content": "".join(self._thoughts)} if self._thoughts else {}
        # Agno's own client reads a workflow's metrics only if the metrics have the key `steps`.
        steps: JsonObject = {"steps": {}} if self.kind == "workflow" else {}
        yield self._address.frame(
            event,
            "RunCompleted",
            content=content,
            content_type=(structured and data.get("content_type")) or _type_of(content),
            **thoughts,
            citations=self._speaker(event).citations,
            session_state=obj(self._state.value),
            metrics=steps | pauses.metrics(data, duration_s, first_token_s),
        )

    def _failed(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield from self._close(event)
        message = data.get("error", "")
        error = {"error": message} if self.kind == "workflow" else {}
        kind = data.get("error_type") or data.get("code")
        yield self._address.frame(event, "RunError", content=message, error_type=kind, **error)

    def _cancelled(self, event: JsonObject) -> Iterator[JsonObject]:
        yield from self._close(event)
        reason = _stopped(event["run_id"]) + unconfirmed(event["data"])
        yield self._address.frame(event, "RunCancelled", reason=reason)

    def _close(self, event: JsonObject) -> Iterator[JsonObject]:
        yield from self._show_calls(event)
        if self._speaker(event).spoke:
            yield from self._end_content(event)

    def _state_set(self, event: JsonObject) -> Iterator[JsonObject]:
        """Keep the state for RunCompleted."""
        self._state.replace(event["data"].get("snapshot"))
        yield from ()

    def _state_changed(self, event: JsonObject) -> Iterator[JsonObject]:
        self._state.apply_each(event["data"].get("delta") or ())
        yield from ()


Handler = Callable[[AgnoEncoder, JsonObject], Iterator[JsonObject]]

_HANDLERS: Final[Mapping[str, Handler]] = {
    "lifecycle.started": AgnoEncoder._started,
    "lifecycle.paused": AgnoEncoder._paused,
    "lifecycle.resumed": AgnoEncoder._resumed,
    "lifecycle.completed": AgnoEncoder._completed,
    "lifecycle.failed": AgnoEncoder._failed,
    "lifecycle.cancelled": AgnoEncoder._cancelled,
    "llm.stream": AgnoEncoder._streaming,
    "llm.message_completed": AgnoEncoder._message_completed,
    "llm.reasoning": AgnoEncoder._thought,
    "llm.tool_call": AgnoEncoder._tool_call,
    "llm.tool_progress": AgnoEncoder._tool_progress,
    "llm.tool_result": AgnoEncoder._tool_result,
    "dispatch.team": AgnoEncoder._dispatched,
    "dispatch.worker": AgnoEncoder._dispatched,
    "dispatch.finished": AgnoEncoder._finished,
    "workflow.step_started": AgnoEncoder._step,
    "workflow.step_progress": AgnoEncoder._step,
    "workflow.step_completed": AgnoEncoder._step,
    "workflow.step_failed": AgnoEncoder._step,
    "approval.requested": AgnoEncoder._requested,
    "approval.decided": AgnoEncoder._decided,
    "state.snapshot": AgnoEncoder._state_set,
    "state.delta": AgnoEncoder._state_changed,
}

OMITTED: Final = omitted_types(_HANDLERS.keys(), _INSTEAD, "no event of the document")
DIALECT: Final = ClientDialect(
    AgnoEncoder, omitted=OMITTED, stateful=True, for_workflows=partial(AgnoEncoder, kind="workflow")
)


def _type_of(content: Json) -> str:
    """Return the name of the content's Python type; "str" for None."""
    return "str" if content is None else type(content).__name__


def _stopped(run_id: str) -> str:
    return f"Run {run_id} was cancelled"
