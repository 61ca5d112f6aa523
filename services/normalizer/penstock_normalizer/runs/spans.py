"""Makes the spans of a run and its calls of models and tools, by OpenTelemetry's GenAI conventions.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.bus.messages import RawFrame
from penstock.bus.records.runs import RunRecord
from penstock.dialects.base import JsonObject
from penstock.dialects.usage import USAGE
from penstock.tracing import spans
from penstock.tracing.spans import Span, Value, nanoseconds, of_run
from penstock_normalizer.fold.approval_request import approval_id_of
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold

_NEVER_RAN: Final = frozenset({"rejected", "expired"})  # outcomes of calls whose tool never ran
_BROKEN_OFF: Final = frozenset({"lifecycle.failed", "lifecycle.cancelled"})
# The types of the events that end or begin a call of a tool or a model.
ENDS_OR_BEGINS: Final = _BROKEN_OFF | {
    *("llm.tool_call", "llm.tool_progress", "llm.tool_result"),
    USAGE,
}
_UNFINISHED: Final = "unfinished"  # the outcome of a call that was running when its run broke off
_NS_PER_S: Final = 1_000_000_000


@dataclass(slots=True)
class _Call:
    """A call without a result."""

    tool: str
    leg: int  # the leg in which the model asked for the call
    began: str | None  # when the tool began to run; None while the call waits for a decision
    began_in: int  # the leg in which the tool began to run


class CallSpans:
    """Makes the span of each tool call and model call from the events of one run.

    A tool runs within one leg. If the call waited for an approval, the span begins after the
    decision, in the leg that carries the decision out, and has a link to the approval's span.

    A model call begins at the earliest when the last call of a model or tool has ended, and so does
    its span: most agent servers do not tell its begin.
    """

    __slots__ = ("_called_at", "_calls", "_run_id", "leg_began")

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.leg_began = ""  # when the leg's `open` was received, RFC 3339
        self._calls: dict[str, _Call] = {}  # by `tool_call_id`
        self._called_at = ""  # when the last call of a model or tool ended, RFC 3339

    def ended_by(self, event: CanonicalEvent, frame: RawFrame, fold: RunFold) -> tuple[Span, ...]:
        """Return the spans of the calls that end with this event.

        `frame` is the event's frame, and `fold` is the run's fold. The caller must pass each event
        whose type is in `ENDS_OR_BEGINS`, also an event that is published already. So a normalizer
        that takes over a run knows when the open calls began.
        """
        data = event.data
        match event.type:
            case "llm.tool_call" if data.get("execution") != "client":
                began = None if data.get("pending") else event.timestamp
                self._calls[data["tool_call_id"]] = _Call(data["tool"], fold.leg, began, fold.leg)
            case "llm.tool_progress" if data.get("status") == "running":
                call = self._calls.get(data["tool_call_id"])
                if call is not None and (call.began is None or call.began_in < fold.leg):
                    call.began, call.began_in = event.timestamp, fold.leg
            case "llm.usage":
                return self._model_span(event, fold)
            case "llm.tool_result":
                self._called_at = event.timestamp
                call = self._calls.pop(data["tool_call_id"], None)
                # If the result comes with the decision, a person or the client has given the
                # result.
                by_decision = "open" in (frame.kind, frame.whole)
                if data["outcome"] not in _NEVER_RAN and not by_decision:
                    return self._span(event, fold, call, data)
            case broken_off if broken_off in _BROKEN_OFF:
                return self._unfinished(event, fold)
        return ()

    def _model_span(self, event: CanonicalEvent, fold: RunFold) -> tuple[Span, ...]:
        """Return the span of a model call; an empty tuple if the run has no trace, or if the agent
        server has counted several calls together."""
        began, self._called_at = max(self._called_at, self.leg_began), event.timestamp
        used, run_id = event.data, self._run_id
        parent = spans.of_leg(fold.facts.get("traceparent"), run_id, fold.leg)
        context = spans.child(parent, "model", run_id, event.sequence)
        if parent is None or context is None or used["reported"] != "call":
            return ()
        try:
            began_ns, ended_ns = nanoseconds(began), nanoseconds(event.timestamp)
        except ValueError:
            return ()
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "chat",
            "penstock.run.id": run_id,
            "penstock.leg": fold.leg,
            **{ours: used[name] for name, ours in _OF_MODEL.items() if name in used},
        }
        if (cost := used.get("cost")) is not None:
            attributes["penstock.cost.micros"] = cost["micros"]
            attributes["penstock.cost.currency"] = cost["currency"]
        span = Span(
            name=f"chat {used['model']}" if used.get("model") else "chat",
            kind="internal",
            context=context,
            parent=parent,
            began_ns=began_ns,
            ended_ns=ended_ns,
            attributes=attributes,
        )
        return (span,)

    def _unfinished(self, event: CanonicalEvent, fold: RunFold) -> tuple[Span, ...]:
        ended: tuple[Span, ...] = ()
        for call_id, call in self._calls.items():
            if call.began is not None and call.began_in == fold.leg:
                data = {"tool_call_id": call_id, "tool": call.tool, "outcome": _UNFINISHED}
                ended += self._span(event, fold, call, data)
        self._calls = {}
        return ended

    def _span(
        self, event: CanonicalEvent, fold: RunFold, call: _Call | None, data: JsonObject
    ) -> tuple[Span, ...]:
        """Return the span of a call that ends now; an empty tuple if the run has no trace. `call`
        is None if the call began before the run's stored pause."""
        traceparent, run_id = fold.facts.get("traceparent"), self._run_id
        call_id = data["tool_call_id"]
        parent = spans.of_leg(traceparent, run_id, fold.leg)
        context = spans.child(parent, "tool", run_id, call_id)
        if parent is None or context is None:
            return ()
        began = self.leg_began
        if call is not None and call.began is not None and call.began_in == fold.leg:
            began = call.began
        try:
            leg_began_ns = nanoseconds(self.leg_began)
            began_ns, ended_ns = nanoseconds(began), nanoseconds(event.timestamp)
        except ValueError:
            return ()
        duration_s = data.get("duration_s")
        if began_ns == ended_ns and isinstance(duration_s, int | float):
            # The agent server has reported the call only after its end, as Agno does for a team's
            # member that does not stream.
            began_ns = max(leg_began_ns, ended_ns - round(min(duration_s, 1e6) * _NS_PER_S))
        outcome, waited = data["outcome"], call is None or call.leg < fold.leg
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": data["tool"],
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": "function",
            "penstock.run.id": run_id,
            "penstock.leg": fold.leg,
            "penstock.tool.outcome": outcome,
        }
        approval = spans.of_approval(traceparent, run_id, approval_id_of(run_id, fold.leg - 1))
        failed = outcome == "error" or event.type == "lifecycle.failed"
        span = Span(
            name=f"execute_tool {data['tool']}",
            kind="internal",
            context=context,
            parent=parent,
            began_ns=began_ns,
            ended_ns=ended_ns,
            attributes=attributes,
            error=outcome if failed else None,
            links=(approval,) if waited and approval is not None else (),
        )
        return (span,)


# Maps the fields of `llm.usage` to the attributes of the span.
_OF_MODEL: Final = {
    "model": "gen_ai.response.model",
    "provider": "gen_ai.provider.name",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
# Maps the fields of `usage` in `lifecycle.completed` to the attributes of the span.
_USAGE: Final = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}


def span_of(record: RunRecord, facts: Mapping[str, Any], data: Mapping[str, Any]) -> Span | None:
    """Return the span of an ended run; None if the run has no trace.

    `facts` has the facts of the run's first `open`; only `traceparent` is needed. `data` is the
    terminal event's `data`; only the token counts and the code of a failure are used.
    """
    traceparent = facts.get("traceparent")
    context = of_run(traceparent, record.run_id)
    if traceparent is None or context is None:
        return None
    is_workflow = record.target == "workflows"
    operation = "invoke_workflow" if is_workflow else "invoke_agent"
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.workflow.name" if is_workflow else "gen_ai.agent.name": record.agent,
        "gen_ai.conversation.id": record.session_id,
        "penstock.run.id": record.run_id,
        "penstock.run.status": record.status,
        "penstock.run.legs": record.legs,
    }
    if not is_workflow:
        attributes["gen_ai.agent.id"] = record.agent
    if "protocol" in facts:
        attributes["penstock.protocol"] = facts["protocol"]
    usage = data.get("usage")
    for name, attribute in _USAGE.items():
        if isinstance(usage, Mapping) and isinstance(count := usage.get(name), int):
            attributes[attribute] = count
    try:
        began, ended = nanoseconds(record.created_at), nanoseconds(record.updated_at)
    except ValueError:
        return None
    return Span(
        name=f"{operation} {record.agent}",
        kind="internal",
        context=context,
        parent=traceparent,
        began_ns=began,
        ended_ns=ended,
        attributes=attributes,
        error=(record.code or "failed") if record.status == "failed" else None,
    )
