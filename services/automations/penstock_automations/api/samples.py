"""Makes the samples with which rules are tried. Pure, except for random ids."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import orjson
import uuid_utils

from penstock.events.examples import example
from penstock_automations.actions.executor import Occurrence
from penstock_automations.jobs.job import EventSource, Job, TriggerKind, TriggerSource
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule
from penstock_automations.triggers.firing import body_of_firing
from penstock_automations.triggers.hook_request import body_of_request

_SAMPLE: Final = {"sample": True}  # the body of an imagined request to a hook
_TYPES: Final[dict[TriggerKind, str]] = {"schedule": "schedule.fired", "hook": "hook.received"}


def _of_schedule(rule: Rule, now: str) -> dict[str, Any]:
    assert rule.schedule is not None
    return body_of_firing(rule.schedule.times, datetime.fromisoformat(now).timestamp())


def _of_hook(rule: Rule, now: str) -> dict[str, Any]:
    return body_of_request(_SAMPLE, None, now)


_BODIES: Final[dict[TriggerKind, Callable[[Rule, str], dict[str, Any]]]] = {
    "schedule": _of_schedule,
    "hook": _of_hook,
}


def sample_types(rule: CompiledRule) -> list[str]:
    """Return the types of the samples with which a rule can be tried."""
    trigger = rule.record.rule.trigger
    return sorted(rule.types) if trigger == "subjects" else [_TYPES[trigger]]


def sample(rule: CompiledRule, type_: str, now: str) -> tuple[Job, Occurrence]:
    """Return a sample for a rule: a job, and the event or trigger that causes the job.

    `now` becomes the time of the event or trigger, as RFC 3339.

    Each call makes new ids, so that a receiver that ignores repeated ids handles each sample.
    """
    id = str(uuid_utils.uuid7())
    trigger = rule.record.rule.trigger
    record = rule.record
    if trigger == "subjects":
        body = orjson.loads(example(type_).dump()) | {"run_id": id, "timestamp": now}
        source: EventSource | TriggerSource = EventSource(id, body["sequence"], 0, 0)
    else:
        body = _BODIES[trigger](record.rule, now)
        source = TriggerSource(trigger, id, body)
    job = Job(rule.id, record.version, record.uid, type_, source)
    return job, Occurrence(orjson.dumps(body))
