"""AG-UI's events (1.0, and what came before it) to canonical drafts.

One table leads from an event's type to its handler. What the agent says (`messages`), its
tool calls (`tools`), its subagents and steps (`speakers`) and what a pause waits for
(`pauses`) have modules of their own; chunks are expanded before (`chunks`).

Left out, since it is said elsewhere or says nothing: `timestamp` and `rawEvent` of an event, a
message without text, REASONING_START and _END around their messages, the text that Agno repeats
at a pause, the arguments of a call that is told again. What else has no place in the contract, or
is not as the protocol says, becomes `custom.event`: its name is the event's type and its value the
event, but a CUSTOM's are its own name and value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.dialects.agui.decode.agents import Agents
from penstock.dialects.agui.decode.chunks import Chunks
from penstock.dialects.agui.decode.messages import Messages
from penstock.dialects.agui.decode.metadata import with_metadata
from penstock.dialects.agui.decode.pauses import Pauses
from penstock.dialects.agui.decode.tools import Tools
from penstock.dialects.agui.decode.usage import add_usage, usage_metrics
from penstock.dialects.agui.vocabulary import EventType
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
from penstock.dialects.json import loads, obj, objects, present, string, strings, text
from penstock.sse import Frame

Handler = Callable[[JsonObject], Sequence[Draft | Pause] | None]  # None: not as it should be

_ON_INTERRUPT = "on_interrupt"


class AguiDecoder:
    """One run's decoder (see `penstock.dialects.base.Decoder`).

    `AgentFacts.drop` leaves out types that would be a `custom.event`. `AgentFacts.client_tools`
    tells a call that the client must run from one that needs a yes, where the server does not.
    """

    def __init__(self, agent: AgentFacts) -> None:
        self._drop = agent.drop
        self._over = False  # a terminal event was given: nothing follows
        self._waits = False  # this leg ended in a pause
        self._thread_id = ""
        self._usage: JsonObject = {}
        self._models: list[JsonObject] = []  # the usage of each model
        self._agents = Agents(agent)
        self._messages = Messages(self._agents)
        self._tools = Tools(self._agents, self._messages, agent.client_tools)
        self._pauses = Pauses(self._agents, self._tools)
        self._chunks = Chunks()
        self._handlers = self._table()

    def open(self, leg: int) -> Sequence[Draft | Pause]:
        """A leg begins: a run of its own, for the upstream."""
        self._waits = False
        self._chunks = Chunks()
        self._messages.open(leg)
        self._tools.open(leg)
        self._pauses.open()
        return []

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        """The results of calls that the client ran: the upstream takes them without a word."""
        drafts: list[Draft] = []
        for item_id, decision in items.items():
            drafts += self._pauses.decided(item_id, decision)
        return drafts

    def feed(self, frame: Frame) -> Sequence[Draft | Pause]:
        """One frame; after a terminal event or a pause nothing more is said."""
        if self._over or self._waits:
            return []
        try:
            body = loads(frame.data)
        except ValueError:
            body = frame.data.decode("utf-8", "replace")
        if not isinstance(body, dict) or not isinstance(body.get("type"), str):
            return self._custom("frame", body, body)
        drafts: list[Draft | Pause] = []
        try:
            for event in self._chunks.expand(body):
                drafts += self._event(event)
        except LimitReached as error:
            drafts += self._fail({"error": str(error), "code": "limit"})
        return drafts

    def end(self) -> Sequence[Draft | Pause]:
        """The response ended: if the run has neither ended nor paused, it is lost."""
        if self._over or self._waits:
            return []
        words = "the upstream's stream ended without a final event"
        return self._fail({"error": words, "code": "upstream_lost"})

    def abort(self) -> Sequence[Draft | Pause]:
        """The response was cut: close what is open, and leave the reason to the caller."""
        if self._over or self._waits:
            return []
        return [*self._messages.close(_CUT["message"]), *self._agents.close("failed", _CUT)]

    def snapshot(self) -> JsonObject:
        """The state between legs."""
        return {
            "over": self._over,
            "thread_id": self._thread_id,
            "usage": self._usage,
            "models": self._models,
            "cast": self._agents.dump(),
            "speech": self._messages.dump(),
            "tools": self._tools.dump(),
            "pauses": self._pauses.dump(),
        }

    def restore(self, state: JsonObject) -> None:
        """Goes on from a snapshot; `open` comes next."""
        self._over = state["over"]
        self._thread_id = state["thread_id"]
        self._usage, self._models = dict(state["usage"]), list(state["models"])
        self._agents.load(state["cast"])
        self._messages.load(state["speech"])
        self._tools.load(state["tools"])
        self._pauses.load(state["pauses"])

    def _table(self) -> dict[str, Handler]:
        """Every event that means something to us; all others become `custom.event`."""
        agents, messages, tools = self._agents, self._messages, self._tools
        return {
            "RUN_STARTED": self._started,
            "RUN_FINISHED": self._finished,
            "RUN_ERROR": self._failed,
            "STEP_STARTED": agents.step_started,
            "STEP_FINISHED": agents.step_finished,
            "TEXT_MESSAGE_START": messages.started,
            "TEXT_MESSAGE_CONTENT": self._said,
            "TEXT_MESSAGE_END": messages.ended,
            "TOOL_CALL_START": tools.started,
            "TOOL_CALL_ARGS": tools.arguments,
            "TOOL_CALL_END": tools.ended,
            "TOOL_CALL_RESULT": tools.result,
            "STATE_SNAPSHOT": self._snapshot,
            "STATE_DELTA": self._delta,
            "MESSAGES_SNAPSHOT": self._messages_snapshot,
            "REASONING_START": messages.span,
            "REASONING_MESSAGE_START": messages.thought_started,
            "REASONING_MESSAGE_CONTENT": messages.thought,
            "REASONING_MESSAGE_END": messages.thought_ended,
            "REASONING_END": messages.span,
            "THINKING_START": messages.thinking_started,
            "THINKING_TEXT_MESSAGE_START": messages.thinking_started,
            "THINKING_TEXT_MESSAGE_CONTENT": messages.thinking,
            "THINKING_TEXT_MESSAGE_END": messages.thinking_ended,
            "THINKING_END": messages.thinking_ended,
            "SUBAGENT_STARTED": agents.started,
            "SUBAGENT_FINISHED": agents.finished,
            "SUBAGENT_ERROR": agents.failed,
            "CUSTOM": self._custom_event,
        }

    def _event(self, body: JsonObject) -> Sequence[Draft | Pause]:
        type_: str = body["type"]
        before = [*self._messages.release(body), *self._agents.meet(body)]
        handle = self._handlers.get(type_)
        said = handle(body) if handle else None
        if said is None:
            fields = {key: value for key, value in body.items() if key != "type"}
            said = self._custom(type_, body, fields)
        return [*before, *said]

    # the run

    def _started(self, body: JsonObject) -> Sequence[Draft]:
        """The run itself was said to start before: its ids are what is new."""
        self._agents.run_id = string(body.get("runId")) or self._agents.run_id
        self._thread_id = string(body.get("threadId")) or self._thread_id
        value = {
            "upstream_run_id": string(body.get("runId")),
            "session_id": string(body.get("threadId")),
            "protocol_version": string(body.get("protocolVersion")),
            "parent_run_id": string(body.get("parentRunId")),
        }
        data = {"protocol": "agui", "name": body["type"], "value": present(value)}
        return [self._outer("custom.event", with_metadata(data, body))]

    def _finished(self, body: JsonObject) -> Sequence[Draft | Pause]:
        outcome = obj(body.get("outcome"))
        kind = string(outcome.get("type")) or "success"
        self._count(body)
        if kind == "cancelled":
            return self._end(
                "lifecycle.cancelled", {"reason": "user_stop", "confirmed": True}, body
            )
        asks = self._pauses.asks(outcome, strings(outcome.get("pendingToolCallIds")))
        LimitReached.check(len(asks), MAX_ITEMS, "open questions")
        if asks:
            drafts = [*self._messages.close(), *self._pauses.pause(asks), *self._tools.close()]
            self._waits = True
            resume = {
                "thread_id": self._thread_id,
                "run_id": self._agents.run_id,
                "items": {ask.item.item_id: ask.answer for ask in asks},
            }
            items = [ask.item for ask in asks]
            return [*drafts, Pause(items, resume, self._agents.source)]
        if kind == "interrupt":  # nobody could ever answer it
            words = "the upstream paused without saying what for"
            return self._fail({"error": words, "code": "upstream_error"})
        return [*self._warned(kind), *self._complete(body)]

    def _complete(self, body: JsonObject) -> Sequence[Draft]:
        drafts = [*self._messages.close(), *self._tools.close(), *self._tools.settle()]
        result = body.get("result")
        data = {
            "summary": self._messages.summary or text(result),
            "value": result,
            "usage": self._usage or None,
            "metrics": usage_metrics(self._models),
        }
        return [*drafts, *self._end("lifecycle.completed", present(data), body)]

    def _failed(self, body: JsonObject) -> Sequence[Draft]:
        self._count(body)
        code = string(body.get("code"))
        words = (
            string(body.get("message")) or code or "the upstream reported an error without words"
        )
        detail = {"raw_event": body.get("rawEvent"), "usage": self._usage or None}
        failure = {
            "error": words,
            "code": "upstream_error",
            "error_type": code,
            "detail": present(detail) or None,
        }
        return self._fail(with_metadata(present(failure), body))

    def _fail(self, failure: JsonObject) -> Sequence[Draft]:
        return self._end("lifecycle.failed", failure, {})

    def _end(self, event_type: str, data: JsonObject, body: JsonObject) -> Sequence[Draft]:
        """The one end: what is open closes as it ended."""
        self._over = True
        status, error = _ENDS[event_type]
        if "error" in data:
            error = {"code": data["code"], "message": data["error"]}
        drafts = self._messages.close(error["message"] if error else None)
        drafts += self._agents.close(status, error)
        return [*drafts, self._outer(event_type, with_metadata(data, body))]

    def _count(self, body: JsonObject) -> None:
        """Each leg is a run of its own for the upstream, with its own tokens."""
        models = objects(body.get("usage"))
        add_usage(self._usage, models)
        self._models += models

    def _warned(self, outcome: str) -> Sequence[Draft]:
        if outcome == "success":
            return []
        words = f"the upstream ended with the unknown outcome {outcome}, taken as success"
        return [self._outer("system.warning", {"message": words, "code": "unknown_outcome"})]

    # the rest

    def _said(self, body: JsonObject) -> Sequence[Draft] | None:
        self._tools.spoken()
        return self._messages.content(body)

    def _snapshot(self, body: JsonObject) -> Sequence[Draft] | None:
        if "snapshot" not in body:
            return None
        return [self._agents.draft(body, "state.snapshot", {"snapshot": body["snapshot"]})]

    def _delta(self, body: JsonObject) -> Sequence[Draft] | None:
        delta = body.get("delta")
        if not isinstance(delta, list):
            return None
        return [self._agents.draft(body, "state.delta", {"delta": delta})]

    def _messages_snapshot(self, body: JsonObject) -> Sequence[Draft] | None:
        messages = body.get("messages")
        if not isinstance(messages, list):
            return None
        return [self._agents.draft(body, "state.messages", {"messages": messages})]

    def _custom_event(self, body: JsonObject) -> Sequence[Draft] | None:
        name, value = string(body.get("name")), body.get("value")
        if name is None:
            return None
        if name == _ON_INTERRUPT:
            self._pauses.interrupted(value)
            return []
        draft = from_custom(name, value)
        if draft is not None:
            return [self._agents.draft(body, draft.type, draft.data)]
        if name in self._handlers or name in EventType.__members__ or "metadata" in body:
            return None  # whole, since its name and value alone would read as something else
        return self._custom(name, body, value)

    def _custom(self, name: str, body: Json, value: Json) -> list[Draft]:
        """What is the upstream's own."""
        if name in self._drop:
            return []
        data = {"protocol": "agui", "name": name, "value": value}
        return [self._agents.draft(obj(body), "custom.event", data)]

    def _outer(self, event_type: str, data: JsonObject) -> Draft:
        return Draft(event_type, data, self._agents.source)


_CUT: JsonObject = {"code": "upstream_lost", "message": "the run was cut off"}

# What becomes of subagents and of steps that are still open.
_ENDS: Mapping[str, tuple[str, JsonObject | None]] = {
    "lifecycle.completed": ("completed", None),
    "lifecycle.failed": ("failed", None),
    "lifecycle.cancelled": ("cancelled", {"code": "cancelled", "message": "the run was cancelled"}),
}
