"""Updates the list of runs (KV `runs`): each record follows the lifecycle events of its run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson

from penstock import log_fields, telemetry
from penstock.bus import Bus, Stored, messages, streams
from penstock.bus.connection.retry import with_retries
from penstock.bus.records.runs import ENDED, RunRecord, RunStatus
from penstock.bus.write import objects
from penstock.dialects.base import JsonObject
from penstock.redactions.scanner import masked_by
from penstock.tracing import spans
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.spans import span_of

_SECONDS = 19  # the length of `2026-11-20T10:00:00`
_MILLISECONDS = 24  # the length of `2026-11-20T10:00:00.123Z`


def unix_s(stamp: str) -> float:
    """Return the Unix time in seconds of a time in RFC 3339. Raises ValueError.

    The times of frames that arrive together differ only in their milliseconds, so the part before
    the milliseconds is cached. This function takes 0.3 µs; `datetime.fromisoformat` takes 0.8 µs.
    """
    if len(stamp) == _MILLISECONDS and stamp[-1] == "Z" and stamp[_SECONDS] == ".":
        return _whole_s(stamp[:_SECONDS]) + int(stamp[_SECONDS + 1 : -1]) / 1000
    return datetime.fromisoformat(stamp).timestamp()


@lru_cache(maxsize=64)
def _whole_s(seconds: str) -> float:
    return datetime.fromisoformat(seconds + "Z").timestamp()


log = logging.getLogger(__name__)

MAX_SHOWN_CHARACTERS = 2000  # the greatest length of an event's text in a record

_STATUS: Mapping[str, RunStatus] = {
    "lifecycle.started": "running",
    "lifecycle.paused": "paused",
    "lifecycle.resumed": "running",
    "lifecycle.completed": "completed",
    "lifecycle.failed": "failed",
    "lifecycle.cancelled": "cancelled",
}


CHANGES_RECORD = frozenset(_STATUS)  # the types of events that change a run's record


class RunIndex:
    """Updates the records of runs: each record follows the run's last lifecycle event."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket("runs")

    async def record(self, run_id: str) -> RunRecord | None:
        """Return the run's record, None without one; raise ValueError if it cannot be parsed."""
        return await self._bucket.load(run_id, RunRecord)

    async def update(
        self,
        run_id: str,
        fold: RunFold,
        events: list[CanonicalEvent],
        first_event: int,
        *,
        overrule: bool = False,
    ) -> None:
        """Write the last lifecycle event of `events` into the record; wait while the bus is away.

        `first_event` is the stream sequence of the run's first event. With `overrule`, a record
        that names a later event is also replaced, because EVENTS must have lost that event. A
        repeated call changes nothing. Raises ValueError if the record cannot be parsed.
        """
        lifecycle = [event for event in events if event.type in _STATUS]
        if not lifecycle:
            return
        event = lifecycle[-1]
        log_fields.traced(run_id, fold.facts.get("traceparent"))

        async def write() -> bool:
            entry = await self._bucket.get(run_id)
            record = (
                RunRecord.model_validate_json(entry.value)
                if entry is not None
                else _new_record(run_id, fold, event)
            )
            may_stay = record.status == _STATUS[event.type] or not overrule
            if record.sequence >= event.sequence and may_stay:
                return True
            changes = _changes(fold, event, record.first_event or first_event)
            if fold.asks and not record.message:
                # Who has started the run did not know what the checker finds.
                changes["message"] = fold.facts.get("message", "")[:200]
            before, record = record, record.model_copy(update=changes)
            revision = entry.revision if entry is not None else 0
            if await self._bucket.update(run_id, record.dump(), revision) is None:
                return False
            _log_failure(record)
            _measure(before, record)
            if spans.is_on() and record.status in ENDED:
                spans.record(span_of(record, fold.facts, event.data))
            return True

        while not await with_retries(write, f"run {run_id}: its record is not written yet"):
            pass

    async def update_from_stored(self, run_id: str, lifecycle: Stored) -> None:
        """Update a run's record to a lifecycle event of EVENTS; create the record if it was
        lost."""
        sequence = int(lifecycle.headers[messages.SEQUENCE])
        first = int(lifecycle.headers.get(messages.FIRST, lifecycle.sequence))
        while True:
            entry = await self._bucket.get(run_id)
            if entry is not None:
                record = RunRecord.model_validate_json(entry.value)
                if record.sequence >= sequence:
                    return
            else:
                is_first = first == lifecycle.sequence
                events = streams.events_for(run_id)
                started = lifecycle if is_first else await self._bus.at(events, first)
                if started is None:
                    # the run's first event has expired, and the record may have expired, too
                    return
                record = _record_of_started(run_id, await self._body(started))
            event = await self._body(lifecycle)
            changes = _lifecycle_fields(event["event"]["action"], event["data"])
            changes |= {
                "sequence": sequence,
                "updated_at": event["timestamp"],
                "legs": event["leg"],
                "first_event": record.first_event or first,
            }
            revision = entry.revision if entry is not None else 0
            before, record = record, record.model_copy(update=changes)
            if await self._bucket.update(run_id, record.dump(), revision) is not None:
                _measure(before, record)
                if spans.is_on() and record.status in ENDED:
                    facts = {"traceparent": lifecycle.headers.get("traceparent")}
                    spans.record(span_of(record, facts, event["data"]))
                log.warning(
                    "run %s: its record was behind its events; it is %s now",
                    run_id,
                    changes["status"],
                )
                return

    async def _body(self, stored: Stored) -> dict[str, Any]:
        body: dict[str, Any] = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        return body


def _new_record(run_id: str, fold: RunFold, event: CanonicalEvent) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        agent=fold.facts.get("agent", ""),
        session_id=fold.facts.get("session_id", ""),
        user_id=fold.facts.get("user_id", "anonymous"),
        tenant=fold.facts.get("tenant"),
        message=fold.facts.get("message", "")[:200],
        redactions=(fold.facts.get("redactions") or {}).get("version"),
        masked=masked_by(fold.facts.get("redactions")),
        created_at=event.timestamp,
        updated_at=event.timestamp,
        target="workflows" if fold.is_workflow else None,
        **_of_child(fold.facts),
    )


def _record_of_started(run_id: str, body: Mapping[str, Any]) -> RunRecord:
    data = body["data"]
    return RunRecord(
        run_id=run_id,
        agent=data["agent"],
        session_id=body["session_id"],
        user_id=data.get("user_id", "anonymous"),
        tenant=data.get("tenant"),
        message=data.get("message", "")[:200],
        redactions=data.get("redactions"),
        created_at=body["timestamp"],
        updated_at=body["timestamp"],
        target="workflows" if "workflow" in data else None,
        **_of_child(body),
    )


def _of_child(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields.get(name) for name in ("parent_run_id", "step_id", "workflow_depth")}


def _changes(fold: RunFold, event: CanonicalEvent, first_event: int) -> dict[str, Any]:
    unredacted = event.unredacted
    return {
        **_lifecycle_fields(event.type.partition(".")[2], event.data),
        "sequence": event.sequence,
        "updated_at": event.timestamp,
        "legs": fold.leg,
        "first_event": first_event,
        "unredacted": _failure_texts(unredacted) if unredacted is not None else None,
    }


def _lifecycle_fields(action: str, data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "status": _STATUS.get(f"lifecycle.{action}", "running"),
        "approval_id": data.get("approval_id") if action == "paused" else None,
        "code": data.get("code"),
        "error": _beginning(data.get("error")),
        "summary": _beginning(data.get("summary")),
    }


def _beginning(text: Any) -> str | None:
    return None if text is None else str(text)[:MAX_SHOWN_CHARACTERS]


def _failure_texts(data: JsonObject) -> dict[str, str]:
    """Return the beginnings of a failure's unredacted texts, for the scope `administer`."""
    texts = {name: data[name] for name in ("error", "detail") if data.get(name) is not None}
    return {
        name: str(_beginning(text if isinstance(text, str) else orjson.dumps(text).decode()))
        for name, text in texts.items()
    }


def _measure(before: RunRecord, after: RunRecord) -> None:
    """Count a run that has just ended; observe how long after its creation it started or ended.

    The bucket accepts each change from `before` to `after` once, even if several normalizers have
    folded the run.
    """
    agent = telemetry.agent_label(after.agent)
    try:
        # Clocks may differ, so the measured time may be negative.
        seconds = max(0.0, unix_s(after.updated_at) - unix_s(after.created_at))
    except ValueError:
        log.debug("run %s: its record has no valid times, they are not measured", after.run_id)
        seconds = None
    if after.status in ENDED and before.status not in ENDED:
        telemetry.RUNS.labels(agent, after.status).inc()
        measured = telemetry.RUN_SECONDS
    elif after.status == "running" and not before.sequence:
        measured = telemetry.RUN_START_SECONDS
    else:
        return
    if seconds is not None:
        measured.labels(agent).observe(seconds)


def _log_failure(record: RunRecord) -> None:
    if record.status == "failed":
        unredacted = record.unredacted or {}
        error, detail = unredacted.get("error", record.error), unredacted.get("detail")
        text = error if detail is None or detail in str(error) else f"{error} {detail}"
        # An agent server's error may repeat a prompt or an answer, so the error is logged only at
        # the level DEBUG.
        log.warning("run %s failed: %s", record.run_id, record.code)
        log.debug("run %s failed: %s: %s", record.run_id, record.code, text)
