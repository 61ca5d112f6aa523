"""Decodes AG-UI's events (1.0 and before) into canonical drafts.

First, `chunks` expands chunk events. Then one table maps the type of an event to its handler.
Further modules handle messages (`messages`), tool calls (`tools`), subagents and steps (`agents`)
and pauses (`pauses`).

The decoder leaves out data that has no content or that repeats other events. Such data is the
`timestamp` and `rawEvent` of an event, a message without text, REASONING_START and REASONING_END,
the text that Agno repeats at a pause, and the arguments of a repeated call. An event that is
malformed or has no place in the contract becomes a `custom.event`. The name of the `custom.event`
is the event's type, and the value is the whole event. A CUSTOM event keeps its own name and value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from penstock.dialects.agui.decode.agents import Agents
from penstock.dialects.agui.decode.chunks import Chunks
from penstock.dialects.agui.decode.frames import AguiFrame, with_metadata
from penstock.dialects.agui.decode.messages import Messages
from penstock.dialects.agui.decode.pauses import Pauses
from penstock.dialects.agui.decode.tools import Tools
from penstock.dialects.agui.vocabulary import TOKENS, EventType
from penstock.dialects.base import (
    MAX_ITEMS,
    AgentFacts,
    Draft,
    Json,
    JsonObject,
    LimitReached,
    Pause,
)
from penstock.dialects.custom_events import from_custom
from penstock.dialects.json import OBJECT, loads, obj, objects, string, strings, text, without_none
from penstock.dialects.snapshots import AS_IS, DICT, LIST, PART, Snapshots, Table
from penstock.dialects.usage import USAGE, Counting, add_usage, has_counts, usage_of
from penstock.sse import Frame

# AG-UI does not say which counts contain which; its servers count as OpenTelemetry does.
_COUNTING: Final = Counting(TOKENS, {"input_tokens": (), "output_tokens": ()})
_ON_INTERRUPT = "on_interrupt"


class AguiDecoder(Snapshots):
    """Decodes one run (see `penstock.dialects.base.Decoder`).

    Events without a canonical type whose name `AgentFacts.drop` has are left out. If a server does
    not say for what an open call waits, a call of `AgentFacts.client_tools`, which the client runs,
    waits for its result, and any other for a confirmation.
    """

    STORED: ClassVar[Table] = {
        "over": ("_over", AS_IS),
        "thread_id": ("_thread_id", AS_IS),
        "usage": ("_usage", DICT),
        "models": ("_models", LIST),
        "cast": ("_agents", PART),
        "speech": ("_messages", PART),
        "tools": ("_tools", PART),
        "pauses": ("_pauses", PART),
    }

    def __init__(self, agent: AgentFacts) -> None:
        self._drop = agent.drop
        self._over = False  # Whether a terminal event was emitted; if so, no more events follow.
        self._waits = False  # Whether this leg ended in a pause.
        self._told_usage = False  # Whether custom events of this leg reported its model calls.
        self._thread_id = ""
        self._usage: JsonObject = {}
        self._models: list[JsonObject] = []  # the token counts of each model
        self._agents = Agents(agent)
        self._messages = Messages(self._agents)
        self._tools = Tools(self._agents, self._messages, agent.client_tools)
        self._pauses = Pauses(self._agents, self._tools)
        self._chunks = Chunks()

    def open(self, leg: int) -> Sequence[Draft | Pause]:
        """For the upstream, each leg is a separate run."""
        self._over = False  # the agent server said that it was stopped, and the run goes on
        self._waits = self._told_usage = False
        self._chunks = Chunks()
        self._messages.open(leg)
        self._tools.open(leg)
        self._pauses.open()
        return []

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        """Return the results of the calls that the client ran."""
        drafts: list[Draft] = []
        for item_id, decision in items.items():
            drafts += self._pauses.decided(item_id, decision)
        return drafts

    def feed(self, frame: Frame) -> Sequence[Draft | Pause]:
        """Return none for a frame after a terminal event or a pause."""
        if self._over or self._waits:
            return []
        try:
            body = loads(frame.data)
        except ValueError:
            body = frame.data.decode("utf-8", "replace")
        if not isinstance(body, OBJECT) or not isinstance(body.get("type"), str):
            return self._custom("frame", body, body)
        drafts: list[Draft | Pause] = []
        try:
            for event in self._chunks.expand(body):
                drafts += self._event(event)
        except LimitReached as error:
            drafts += self._fail({"error": str(error), "code": "limit"})
        return drafts

    def end(self) -> Sequence[Draft | Pause]:
        if self._over or self._waits:
            return []
        message = "the upstream's stream ended without a final event"
        return self._fail({"error": message, "code": "upstream_lost"})

    def abort(self) -> Sequence[Draft | Pause]:
        if self._over or self._waits:
            return []
        return [*self._messages.close(_CUT["message"]), *self._agents.close("failed", _CUT)]

    def _event(self, body: AguiFrame) -> Sequence[Draft | Pause]:
        event_type: Any = body["type"]  # a string, as `feed` has checked
        before = [*self._messages.release(body), *self._agents.start_unknown(body)]
        handle = _HANDLERS.get(event_type)
        drafts = handle(self, body) if handle else None
        if drafts is None:
            fields = {key: value for key, value in body.items() if key != "type"}
            drafts = self._custom(event_type, body, fields)
        return [*before, *drafts]

    # The run.

    def _started(self, body: AguiFrame) -> Sequence[Draft]:
        """Only the upstream ids count: the run has already started."""
        self._agents.run_id = string(body.get("runId")) or self._agents.run_id
        self._thread_id = string(body.get("threadId")) or self._thread_id
        value = {
            "upstream_run_id": string(body.get("runId")),
            "session_id": string(body.get("threadId")),
            "protocol_version": string(body.get("protocolVersion")),
            "parent_run_id": string(body.get("parentRunId")),
        }
        data = {"protocol": "agui", "name": body["type"], "value": without_none(value)}
        return [self._outer("custom.event", with_metadata(data, body))]

    def _finished(self, body: AguiFrame) -> Sequence[Draft | Pause]:
        return [*self._count(body), *self._end_leg(body)]

    def _end_leg(self, body: AguiFrame) -> Sequence[Draft | Pause]:
        outcome = obj(body.get("outcome"))
        kind = string(outcome.get("type")) or "success"
        if kind == "cancelled":
            return self._end(
                "lifecycle.cancelled", {"reason": "user_stop", "confirmed": True}, body
            )
        questions = self._pauses.questions(outcome, strings(outcome.get("pendingToolCallIds")))
        LimitReached.check(len(questions), MAX_ITEMS, "open questions")
        if questions:
            drafts = [*self._messages.close(), *self._pauses.pause(questions), *self._tools.close()]
            self._waits = True
            resume = {
                "thread_id": self._thread_id,
                "run_id": self._agents.run_id,
                "items": {question.item.item_id: question.answer for question in questions},
            }
            items = [question.item for question in questions]
            return [*drafts, Pause(items, resume, self._agents.source)]
        if kind == "interrupt":  # nobody could answer a pause without items
            message = "the upstream paused and named nothing to decide"
            return self._fail({"error": message, "code": "upstream_error"})
        return [*self._warned(kind), *self._complete(body)]

    def _complete(self, body: AguiFrame) -> Sequence[Draft]:
        drafts = [*self._messages.close(), *self._tools.close(), *self._tools.end_rejected()]
        result = body.get("result")
        data = {
            "summary": self._messages.summary or text(result),
            "value": result,
            "usage": self._usage or None,
            "metrics": {"models": self._models} if self._models else None,
        }
        return [*drafts, *self._end("lifecycle.completed", without_none(data), body)]

    def _failed(self, body: AguiFrame) -> Sequence[Draft]:
        used = self._count(body)
        code = string(body.get("code"))
        message = (
            string(body.get("message"))
            or code
            or "the upstream reported an error without a message"
        )
        detail = {"raw_event": body.get("rawEvent"), "usage": self._usage or None}
        failure = {
            "error": message,
            "code": "upstream_error",
            "error_type": code,
            "detail": without_none(detail) or None,
        }
        return [*used, *self._fail(with_metadata(without_none(failure), body))]

    def _fail(self, failure: JsonObject) -> Sequence[Draft]:
        return self._end("lifecycle.failed", failure, {})

    def _end(self, event_type: str, data: JsonObject, body: AguiFrame) -> Sequence[Draft]:
        self._over = True
        status, error = _ENDS[event_type]
        if "error" in data:
            error = {"code": data["code"], "message": data["error"]}
        drafts = self._messages.close(error["message"] if error else None)
        drafts += self._agents.close(status, error)
        return [*drafts, self._outer(event_type, with_metadata(data, body))]

    def _count(self, body: AguiFrame) -> Sequence[Draft]:
        """Return the counts of a leg, a separate run for the upstream, as `llm.usage`, one for each
        model. If custom events have reported the leg's model calls, the counts only repeat
        these."""
        models = objects(body.get("usage"))
        for model in models:
            add_usage(self._usage, model, TOKENS)
        self._models += models
        if self._told_usage:
            return []
        used = (
            usage_of(
                counts,
                _COUNTING,
                model=counts.get("model"),
                provider=counts.get("provider"),
                reported="leg",
            )
            for counts in models
        )
        return [self._outer(USAGE, data) for data in used if has_counts(data)]

    def _warned(self, outcome: str) -> Sequence[Draft]:
        if outcome == "success":
            return []
        message = f"the upstream ended with the unknown outcome {outcome}, taken as success"
        return [self._outer("system.warning", {"message": message, "code": "unknown_outcome"})]

    # Other events.

    def _content(self, body: AguiFrame) -> Sequence[Draft] | None:
        self._tools.text_received()
        return self._messages.content(body)

    def _snapshot(self, body: AguiFrame) -> Sequence[Draft] | None:
        if "snapshot" not in body:
            return None
        return [self._agents.draft(body, "state.snapshot", {"snapshot": body["snapshot"]})]

    def _delta(self, body: AguiFrame) -> Sequence[Draft] | None:
        delta = body.get("delta")
        if not isinstance(delta, list):
            return None
        return [self._agents.draft(body, "state.delta", {"delta": delta})]

    def _messages_snapshot(self, body: AguiFrame) -> Sequence[Draft] | None:
        messages = body.get("messages")
        if not isinstance(messages, list):
            return None
        return [self._agents.draft(body, "state.messages", {"messages": messages})]

    def _custom_event(self, body: AguiFrame) -> Sequence[Draft] | None:
        name, value = string(body.get("name")), body.get("value")
        if name is None:
            return None
        if name == _ON_INTERRUPT:
            self._pauses.interrupted(value)
            return []
        draft = from_custom(name, value)
        if draft is not None:
            self._told_usage = self._told_usage or draft.type == USAGE
            return [self._agents.draft(body, draft.type, draft.data)]
        if name in _HANDLERS or name in EventType.__members__ or "metadata" in body:
            # The caller then emits a `custom.event` with the whole event. The name and value alone
            # would lack the metadata, and could look like another event.
            return None
        return self._custom(name, body, value)

    def _custom(self, name: str, body: Json, value: Json) -> list[Draft]:
        """Return none if the configuration drops the name."""
        if name in self._drop:
            return []
        data = {"protocol": "agui", "name": name, "value": value}
        return [self._agents.draft(obj(body), "custom.event", data)]

    def _outer(self, event_type: str, data: JsonObject) -> Draft:
        return Draft(event_type, data, self._agents.source)


_CUT: JsonObject = {"code": "upstream_lost", "message": "the run was cut off"}

# Maps the type of a terminal event to the status with which subagents end, and to the error with
# which open steps fail. If the error is None, the open steps are completed.
_ENDS: Mapping[str, tuple[str, JsonObject | None]] = {
    "lifecycle.completed": ("completed", None),
    "lifecycle.failed": ("failed", None),
    "lifecycle.cancelled": ("cancelled", {"code": "cancelled", "message": "the run was cancelled"}),
}


# A handler returns None for a malformed event, which then becomes a `custom.event`.
Drafts = Sequence[Draft | Pause] | None
Handler = Callable[[AguiDecoder, AguiFrame], Drafts]


def _by_agents(handle: Callable[[Agents, AguiFrame], Drafts]) -> Handler:
    return lambda decoder, body: handle(decoder._agents, body)


def _by_messages(handle: Callable[[Messages, AguiFrame], Drafts]) -> Handler:
    return lambda decoder, body: handle(decoder._messages, body)


def _by_tools(handle: Callable[[Tools, AguiFrame], Drafts]) -> Handler:
    return lambda decoder, body: handle(decoder._tools, body)


# Maps each known type to its handler. An event of any other type becomes a `custom.event`. All
# decoders share this table. If each decoder had a table of bound methods, the table would take 4 KB
# for each open run. Such a table would also refer to its decoder, so only the garbage collector
# could free the decoder after the run.
_HANDLERS: Final[Mapping[str, Handler]] = {
    "RUN_STARTED": AguiDecoder._started,
    "RUN_FINISHED": AguiDecoder._finished,
    "RUN_ERROR": AguiDecoder._failed,
    "STEP_STARTED": _by_agents(Agents.step_started),
    "STEP_FINISHED": _by_agents(Agents.step_finished),
    "TEXT_MESSAGE_START": _by_messages(Messages.started),
    "TEXT_MESSAGE_CONTENT": AguiDecoder._content,
    "TEXT_MESSAGE_END": _by_messages(Messages.ended),
    "TOOL_CALL_START": _by_tools(Tools.started),
    "TOOL_CALL_ARGS": _by_tools(Tools.arguments),
    "TOOL_CALL_END": _by_tools(Tools.ended),
    "TOOL_CALL_RESULT": _by_tools(Tools.result),
    "STATE_SNAPSHOT": AguiDecoder._snapshot,
    "STATE_DELTA": AguiDecoder._delta,
    "MESSAGES_SNAPSHOT": AguiDecoder._messages_snapshot,
    "REASONING_START": _by_messages(Messages.span),
    "REASONING_MESSAGE_START": _by_messages(Messages.thought_started),
    "REASONING_MESSAGE_CONTENT": _by_messages(Messages.thought),
    "REASONING_MESSAGE_END": _by_messages(Messages.thought_ended),
    "REASONING_END": _by_messages(Messages.span),
    "THINKING_START": _by_messages(Messages.thinking_started),
    "THINKING_TEXT_MESSAGE_START": _by_messages(Messages.thinking_started),
    "THINKING_TEXT_MESSAGE_CONTENT": _by_messages(Messages.thinking),
    "THINKING_TEXT_MESSAGE_END": _by_messages(Messages.thinking_ended),
    "THINKING_END": _by_messages(Messages.thinking_ended),
    "SUBAGENT_STARTED": _by_agents(Agents.started),
    "SUBAGENT_FINISHED": _by_agents(Agents.finished),
    "SUBAGENT_ERROR": _by_agents(Agents.failed),
    "CUSTOM": AguiDecoder._custom_event,
}
