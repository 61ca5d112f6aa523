"""Makes the sample with which a rule is tried. Pure but for the run's id."""

from __future__ import annotations

from typing import Final

import orjson
import uuid_utils

from penstock.events.examples import example
from penstock_automations.actions.carrier import Occurrence
from penstock_automations.jobs.job import EventSource, Job, TriggerKind, TriggerSource
from penstock_automations.rules.records import CompiledRule

TRIGGERED: Final = "fired"  # the action of the body of a schedule and of a hook


def sample_types(rule: CompiledRule) -> list[str]:
    """Return the types of samples that a rule can be tried with."""
    trigger = rule.record.rule.trigger
    return sorted(rule.types) if trigger == "subjects" else [f"{trigger}.{TRIGGERED}"]


def sample(rule: CompiledRule, type_: str, now: str) -> tuple[Job, Occurrence]:
    """Return a job and the event that it is about. `now`: the event's time, RFC 3339.

    The run is a new one each time: a receiver that leaves out repeated ids gets each sample.
    """
    run_id = str(uuid_utils.uuid7())
    trigger = rule.record.rule.trigger
    record = rule.record
    if trigger == "subjects":
        body = orjson.loads(example(type_).dump()) | {"run_id": run_id, "timestamp": now}
        source: EventSource | TriggerSource = EventSource(run_id, body["sequence"], 0, 0)
    else:
        body = _fired(trigger, now)
        source = TriggerSource(trigger, run_id, body)
    job = Job(rule.id, record.version, record.uid, type_, source)
    return job, Occurrence(orjson.dumps(body))


def _fired(trigger: TriggerKind, now: str) -> dict[str, object]:
    event = {"category": trigger, "action": TRIGGERED}
    return {"timestamp": now, "event": event, "data": {}}
