"""Makes the span of a run that has ended, by the GenAI conventions of OpenTelemetry. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.bus.records import RunRecord
from penstock.tracing.spans import Span, Value, nanoseconds, of_run

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
