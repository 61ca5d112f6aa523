"""Finds the trace of a run, in a header of the run's first event."""

from __future__ import annotations

from penstock.bus import Bus, subjects
from penstock.bus.read import direct
from penstock.bus.records.runs import RunRecord
from penstock.bus.streams import events_for
from penstock.tracing import context


async def trace_of(bus: Bus, record: RunRecord, address: str | None) -> dict[str, str]:
    """Return `trace_id`, and `trace_url` if the trace is sampled and `address` has the place of
    traces, as the setting `trace_url` does. A run that has not begun has neither."""
    if record.first_event is None:
        return {}
    subject = subjects.event("lifecycle.started", record.run_id)
    found, _ = await direct.read(
        bus, events_for(record.run_id), subject, record.first_event, limit=1
    )
    trace = context.parse(found[0].headers.get("traceparent")) if found else None
    if trace is None:
        return {}
    told = {"trace_id": trace.trace_id}
    if address is not None and trace.flags & context.SAMPLED:
        told["trace_url"] = address.replace("{trace_id}", trace.trace_id)
    return told
