"""Encodes canonical events into AG-UI events, in either field profile.

Each leg of a run becomes one AG-UI run. `lifecycle.paused` ends an AG-UI run with the outcome
`interrupt`, or with success and pending calls if a frontend must run tools. `lifecycle.resumed`
begins the next AG-UI run. Events between `lifecycle.paused` and `lifecycle.resumed` are left out,
because clients refuse events outside of a run. If a run ends while it waits, the encoder sends
RUN_STARTED and a terminal event.

An event of a type that AG-UI lacks becomes CUSTOM, with the name `penstock.<category>.<action>` and
with the event's data as the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from penstock.dialects.agui.encode.context import NO_FACTS, Context, Emitted
from penstock.dialects.agui.encode.messages import Messages
from penstock.dialects.agui.encode.native import Passthrough
from penstock.dialects.agui.encode.pauses import interrupt, interrupt_of_all
from penstock.dialects.agui.encode.profiles import EventIds, Profile
from penstock.dialects.agui.encode.steps import Steps
from penstock.dialects.agui.encode.tools import Tools
from penstock.dialects.agui.ids import scope_of
from penstock.dialects.agui.vocabulary import (
    CLIENT_KINDS,
    PROTOCOL_VERSION,
    TOKENS,
    EventType,
    is_modern,
)
from penstock.dialects.approvals import OpenApprovals
from penstock.dialects.base import Json, JsonObject, epoch_s, frame, unconfirmed
from penstock.events import TERMINAL
from penstock.sse import Frame

_MAX_SAFE_INTEGER: Final = 2**53 - 1


def token_usage(usage: JsonObject | None) -> JsonObject:
    """Keep only those counts that a client accepts."""
    counts = {theirs: (usage or {}).get(ours) for ours, theirs in TOKENS.items()}
    return {
        name: count
        for name, count in counts.items()
        if isinstance(count, int)
        and not isinstance(count, bool)
        and 0 <= count <= _MAX_SAFE_INTEGER
    }


# The error text that clients get for every internal error of Penstock, because the original text
# may name internals. agent-runs-sse.md requires this text.
INTERNAL_ERROR: Final = "runtime execution failed"

_ENDS_A_WAIT: Final = TERMINAL | {"lifecycle.resumed"}


class Phase(Enum):
    """The phase of the run as the client sees it."""

    BEFORE = auto()
    RUNNING = auto()
    WAITING = auto()  # the last AG-UI run has ended, and the next one has not begun
    OVER = auto()


# `feed` uses these names, because the access to an enum's attribute takes 0.14 µs in Python 3.11.
_OVER, _RUNNING, _WAITING = Phase.OVER, Phase.RUNNING, Phase.WAITING


class AguiEncoder:
    """Encodes one run. `run_ids` returns the AG-UI runId of each leg, counted from 1, and of one
    further leg if a run ends while it waits.

    A client before 1.0 has no `protocol_version`, and gets no SUBAGENT_*, no outcome `cancelled`,
    no `pendingToolCallIds` and no results in parts. The ids of messages and tool calls are unique
    in the thread (see `ids`).
    """

    def __init__(
        self,
        profile: Profile,
        thread_id: str,
        run_ids: Callable[[int], str],
        protocol_version: str | None = None,
    ) -> None:
        self.profile = profile
        self.phase = Phase.BEFORE
        self._thread_id = thread_id
        self._run_ids = run_ids
        self._context = Context(profile, is_modern(protocol_version))
        self._messages = Messages(self._context)
        self._tools = Tools(self._context, self._messages)
        self._steps = Steps(self._context)
        self._leg = 0
        self._run_id = ""
        self._is_workflow = False  # whether the run is a workflow of Penstock
        self._approvals = OpenApprovals()
        self._handlers = self._table()

    def _table(self) -> Mapping[str, Callable[[JsonObject], Iterator[Emitted]]]:
        """Any other type becomes CUSTOM."""
        passthrough = Passthrough(self._context)
        return {
            "lifecycle.started": self._started,
            "lifecycle.paused": self._paused,
            "lifecycle.resumed": _nothing,
            "lifecycle.completed": self._completed,
            "lifecycle.failed": self._failed,
            "lifecycle.cancelled": self._cancelled,
            "approval.requested": _nothing,
            "llm.message_started": self._messages.started,
            "llm.stream": self._messages.streamed,
            "llm.message_completed": self._messages.completed,
            "llm.reasoning": self._messages.thought,
            "llm.tool_args": self._tools.arguments,
            "llm.tool_call": self._tools.called,
            "llm.tool_result": self._tools.answered,
            "llm.usage": _nothing,  # RUN_FINISHED has the sum
            "workflow.step_started": self._steps.step_started,
            "workflow.step_completed": self._steps.step_ended,
            "workflow.step_failed": self._steps.step_ended,
            "dispatch.team": self._steps.team_dispatched,
            "dispatch.worker": self._steps.dispatched,
            "dispatch.finished": self._steps.finished,
            "state.snapshot": passthrough.snapshot,
            "state.delta": passthrough.delta,
            "state.messages": passthrough.messages,
            "custom.event": passthrough.custom_event,
        }

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        name, data, context = event["event"], event["data"], self._context
        event_type = f"{name['category']}.{name['action']}"  # as `type_of`, without a call
        context.current_type = event_type
        phase = self.phase
        if phase is _OVER:
            return ()
        if name["category"] == "approval":
            # A policy may decide a request without a pause. So a request is not shown before the
            # run pauses.
            self._approvals.feed(event_type, data)
        if phase is _WAITING and event_type not in _ENDS_A_WAIT:
            return ()
        subrun = event.get("subrun")
        context.current_subrun = subrun.get("id") if subrun else None
        emitted = [] if phase is _RUNNING else list(self._begin(event))
        if self.profile.step is not None:
            emitted += self._steps.enter(data)
        handler = self._handlers.get(event_type)
        emitted += handler(data) if handler else (context.custom(data),)
        event_ids = EventIds(self._thread_id, self._run_id, _epoch_ms(event))
        body = self.profile.body
        return [
            frame(body(kind, fields, facts, event_ids), kind._value_)
            for kind, fields, facts in emitted
        ]

    def cut(self, message: str, code: str) -> Sequence[Frame]:
        """End a stream that cannot continue with an error: the run would else seem to have
        succeeded."""
        if self.phase not in (Phase.BEFORE, Phase.RUNNING):
            return ()
        self._run_id = self._run_id or self._run_ids(1)
        emitted = [*self._close(error=message), _error(message, code)]
        self.phase = Phase.OVER
        return [self._frame(each, self.event_ids) for each in emitted]

    @property
    def scope(self) -> str:
        return self._context.scope

    @property
    def event_ids(self) -> EventIds:
        return EventIds(self._thread_id, self._run_id, None)

    def reopened(self) -> Iterator[Emitted]:
        """Start all open parts, for a client that joins now, or for a new AG-UI run."""
        yield from self._steps.reopened()
        yield from self._messages.reopened()
        yield from self._tools.reopened()

    def _frame(self, emitted: Emitted, event_ids: EventIds) -> Frame:
        event_type, fields, facts = emitted
        return frame(self.profile.body(event_type, fields, facts, event_ids), event_type.value)

    def _begin(self, event: JsonObject) -> Iterator[Emitted]:
        """Start the parts that are still open after a pause, too."""
        run_id = event.get("run_id") or ""
        if self.phase is Phase.BEFORE:
            self._context.names.scope = scope_of(run_id)
        self._leg = max(event.get("leg") or 1, self._leg + 1)
        self._run_id = self._run_ids(self._leg)
        self.phase = Phase.RUNNING
        fields = {"threadId": self._thread_id, "runId": self._run_id}
        if self._context.modern:
            fields["protocolVersion"] = PROTOCOL_VERSION
        facts = {"run_id": run_id, "leg": self._leg, "agent": event["data"].get("agent")}
        yield EventType.RUN_STARTED, fields, facts
        self._steps.begin()
        yield from self.reopened()

    def _started(self, data: JsonObject) -> Iterator[Emitted]:
        self._is_workflow = bool(data.get("workflow"))
        yield from ()

    def _paused(self, data: JsonObject) -> Iterator[Emitted]:
        approval_id = data["approval_id"]
        requested = list(self._approvals.items())
        items = [item for _, item in requested]
        outcome: JsonObject
        if items and all(map(_is_frontends, items)):
            outcome = {"type": "success"}
            if self._context.modern:
                pending = [self._context.names.of(item["tool_call_id"]) for item in items]
                outcome["pendingToolCallIds"] = list(dict.fromkeys(pending))
            yield from self._close(suspended=())
        else:
            modern = self._context.modern
            names = self._context.names
            asked = [
                interrupt(request, item, names=names, modern=modern) for request, item in requested
            ]
            if all(request["approval_id"] != approval_id for request, _ in requested):
                asked.append(interrupt_of_all(approval_id))
            outcome = {"type": "interrupt", "interrupts": asked}
            yield from self._close(suspended=[each["id"] for each in asked])
        self.phase = Phase.WAITING
        yield self._finished({"approval_id": approval_id}, outcome=outcome)

    def _completed(self, data: JsonObject) -> Iterator[Emitted]:
        if self._is_workflow:
            yield from self._messages.answer(data)
        yield from self._close()
        self.phase = Phase.OVER
        fields: JsonObject = {}
        if data.get("value") is not None:
            fields["result"] = data["value"]
        if usage := token_usage(data.get("usage")):
            fields["usage"] = [usage]
        yield self._finished(data, **fields)

    def _cancelled(self, data: JsonObject) -> Iterator[Emitted]:
        reason = data.get("reason") or "user_stop"
        yield from self._close(error=f"cancelled: {reason}")
        self.phase = Phase.OVER
        if self._context.modern:
            yield self._finished(data, outcome={"type": "cancelled"})
        else:  # an older client, which does not know the outcome `cancelled`
            facts = {"by": data.get("by")}
            text = f"The run was cancelled: {reason}{unconfirmed(data)}."
            yield _error(text, "cancelled", facts)

    def _failed(self, data: JsonObject) -> Iterator[Emitted]:
        code = data.get("code") or "internal"
        message, facts = data.get("error") or INTERNAL_ERROR, data
        if code == "internal":
            message, facts = INTERNAL_ERROR, NO_FACTS
        yield from self._close(error=message)
        self.phase = Phase.OVER
        yield _error(message, code, facts)

    def _close(
        self, *, error: str | None = None, suspended: Sequence[str] | None = None
    ) -> Iterator[Emitted]:
        """If the run waits, `suspended` has the ids of the interrupts."""
        yield from self._messages.close(error)
        yield from self._tools.close()
        yield from self._steps.close(error, suspended)

    def _finished(self, facts: JsonObject, **fields: Json) -> Emitted:
        body = {"threadId": self._thread_id, "runId": self._run_id, **fields}
        return EventType.RUN_FINISHED, body, facts


def _nothing(data: JsonObject) -> Iterator[Emitted]:
    yield from ()


def _is_frontends(item: JsonObject) -> bool:
    return item["kind"] in CLIENT_KINDS and bool(item.get("tool_call_id"))


def _error(message: str, code: str, facts: JsonObject = NO_FACTS) -> Emitted:
    return EventType.RUN_ERROR, {"message": message, "code": code}, facts


def _epoch_ms(event: JsonObject) -> int | None:
    return round(epoch_s(event) * 1000) if event.get("timestamp") is not None else None
