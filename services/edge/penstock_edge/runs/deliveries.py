"""Finds the deliveries of automations for a run's events, in the events `automation.*`: most have
their outcome when the run has ended, and the run's own stream with it."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.bus import Bus, subjects
from penstock.bus.read import direct
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.streams import events_for

_STATUS: Final = {
    "automation.triggered": "waiting",
    "automation.completed": "delivered",
    "automation.failed": "failed",
}
_SHOWN: Final = (
    "automation",
    "trigger",
    "workflow",
    "result",
    "status_code",
    "attempts",
    "duration_s",
    "started_run_id",
    "error",
)


async def deliveries_of(bus: Bus, record: RunRecord) -> list[dict[str, Any]]:
    """Return the deliveries in the order in which they began: at most of the first 500 events of
    deliveries, and of a run that has ended also of the first 500 after its end."""
    run_id, stream = record.run_id, events_for(record.run_id)
    pattern = subjects.event("automation.*", run_id)
    found, more = await direct.read(bus, stream, pattern)
    if more and record.status in ENDED:
        end = await bus.tail(stream, subjects.event(f"lifecycle.{record.status}", run_id))
        if end is not None:
            found += (await direct.read(bus, stream, pattern, end.sequence))[0]
    deliveries: dict[str, dict[str, Any]] = {}
    for stored in found:
        data = orjson.loads(stored.payload)["data"]
        delivery = deliveries.setdefault(data["delivery_id"], {"id": data["delivery_id"]})
        delivery["status"] = _STATUS[stored.subject.rpartition(".")[0]]
        delivery |= {name: data[name] for name in _SHOWN if data.get(name) is not None}
    return list(deliveries.values())
