"""The list of runs: KV `runs`, moved along with each run's lifecycle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import orjson

from penstock.bus import Bus, BusError, MessageTooLarge, Stored, messages, streams
from penstock.bus.records import RunRecord, RunStatus
from penstock.bus.write import objects
from penstock.bus.write.fence import RETRY_S
from penstock.dialects.base import JsonObject
from penstock_normalizer.fold.run_fold import Placed, RunFold

log = logging.getLogger(__name__)

MAX_SHOWN_CHARACTERS = 2000

_STATUS: Mapping[str, RunStatus] = {
    "lifecycle.started": "running",
    "lifecycle.paused": "paused",
    "lifecycle.resumed": "running",
    "lifecycle.completed": "completed",
    "lifecycle.failed": "failed",
    "lifecycle.cancelled": "cancelled",
}


class RunIndex:
    """Brings a run's record up to its last lifecycle event; never back."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket("runs")

    async def record(self, run_id: str) -> RunRecord | None:
        """A run as the list shows it."""
        entry = await self._bucket.get(run_id)
        return RunRecord.model_validate_json(entry.value) if entry is not None else None

    async def follow(
        self,
        run_id: str,
        fold: RunFold,
        placed: list[Placed],
        first_event: int,
        *,
        overrule: bool = False,
    ) -> None:
        """Write down what these events changed; a repeat changes nothing.

        `overrule`: also where the record tells of a later event, which must have been lost.
        """
        telling = [event for event in placed if event.type in _STATUS]
        if not telling:
            return
        event = telling[-1]
        while True:
            try:
                entry = await self._bucket.get(run_id)
                record = (
                    RunRecord.model_validate_json(entry.value)
                    if entry is not None and entry.value is not None
                    else _record(run_id, fold, event)
                )
                stands = record.status == _STATUS[event.type] or not overrule
                if record.sequence >= event.sequence and stands:
                    return
                changes = _changes(fold, event, record.first_event or first_event)
                record = record.model_copy(update=changes)
                revision = entry.revision if entry is not None else 0
                if await self._bucket.update(run_id, record.dump(), revision) is not None:
                    _log_failure(record)
                    return
            except MessageTooLarge:
                raise  # nor will it be smaller the next time
            except BusError as error:
                log.warning("run %s: its record is not written yet: %s", run_id, error)
                await asyncio.sleep(RETRY_S)

    async def show(self, run_id: str, lifecycle: Stored) -> None:
        """Bring a run's record up to a lifecycle event of EVENTS; make it where it is lost.

        Raises BusError.
        """
        sequence = int(lifecycle.headers[messages.SEQUENCE])
        first = int(lifecycle.headers.get(messages.FIRST, lifecycle.sequence))
        while True:
            entry = await self._bucket.get(run_id)
            if entry is not None:
                record = RunRecord.model_validate_json(entry.value)
                if record.sequence >= sequence:
                    return
            else:
                started = lifecycle if first == lifecycle.sequence else await self._at(first)
                if started is None:
                    return  # its beginning has aged: there is nothing to show of it
                record = _of_started(run_id, await self._body(started))
            event = await self._body(lifecycle)
            changes = _shown_by(event["event"]["action"], event["data"])
            changes |= {
                "sequence": sequence,
                "updated_at": event["timestamp"],
                "legs": event["leg"],
                "first_event": record.first_event or first,
            }
            revision = entry.revision if entry is not None else 0
            value = record.model_copy(update=changes).dump()
            if await self._bucket.update(run_id, value, revision) is not None:
                log.warning("run %s: shown as its events say: %s", run_id, changes["status"])
                return

    async def _at(self, sequence: int) -> Stored | None:
        return await self._bus.at(streams.EVENTS, sequence)

    async def _body(self, stored: Stored) -> dict[str, Any]:
        body: dict[str, Any] = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        return body


def _of_started(run_id: str, body: Mapping[str, Any]) -> RunRecord:
    data = body["data"]
    return RunRecord(
        run_id=run_id,
        agent=data["agent"],
        session_id=body["session_id"],
        user_id=data.get("user_id", "anonymous"),
        message=data.get("message", "")[:200],
        created_at=body["timestamp"],
        updated_at=body["timestamp"],
    )


def _shown_by(action: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a lifecycle event says of its run."""
    return {
        "status": _STATUS.get(f"lifecycle.{action}", "running"),
        "approval_id": data.get("approval_id") if action == "paused" else None,
        "code": data.get("code"),
        "error": _shown(data.get("error")),
        "summary": _shown(data.get("summary")),
    }


def _record(run_id: str, fold: RunFold, event: Placed) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        agent=fold.facts.get("agent", ""),
        session_id=fold.facts.get("session_id", ""),
        user_id=fold.facts.get("user_id", "anonymous"),
        message=fold.facts.get("message", "")[:200],
        created_at=event.timestamp,
        updated_at=event.timestamp,
    )


def _shown(text: Any) -> str | None:
    """A list of runs shows the beginning; the whole is in the run's last event."""
    return None if text is None else str(text)[:MAX_SHOWN_CHARACTERS]


def _changes(fold: RunFold, event: Placed, first_event: int) -> dict[str, Any]:
    return {
        **_shown_by(event.type.partition(".")[2], event.data),
        "sequence": event.sequence,
        "updated_at": event.timestamp,
        "legs": fold.leg,
        "first_event": first_event,
        "unredacted": _unredacted(event.whole) if event.whole is not None else None,
    }


def _unredacted(data: JsonObject) -> dict[str, str]:
    """What the failure's words were, for who administers; the beginning of each."""
    words = {name: data[name] for name in ("error", "detail") if data.get(name) is not None}
    return {
        name: str(_shown(text if isinstance(text, str) else orjson.dumps(text).decode()))
        for name, text in words.items()
    }


def _log_failure(record: RunRecord) -> None:
    if record.status == "failed":
        whole = record.unredacted or {}
        error, detail = whole.get("error", record.error), whole.get("detail")
        words = error if detail is None or detail in str(error) else f"{error} {detail}"
        log.warning("run %s failed (%s): %s", record.run_id, record.code, words)
