"""The list of runs: KV `runs`, moved along with each run's lifecycle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import orjson

from penstock.bus import Bus, BusError
from penstock.bus.errors import MessageTooLarge
from penstock.bus.fence import RETRY_S
from penstock.bus.records import RunRecord, RunStatus
from penstock.dialects.base import JsonObject
from penstock_normalizer.fold import Placed, RunFold

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
        self._bucket = bus.bucket("runs")

    async def record(self, run_id: str) -> RunRecord | None:
        """A run as the list shows it."""
        entry = await self._bucket.get(run_id)
        return RunRecord.model_validate_json(entry.value) if entry is not None else None

    async def follow(
        self, run_id: str, fold: RunFold, placed: list[Placed], first_event: int
    ) -> None:
        """Write down what these events changed; a repeat changes nothing."""
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
                if record.sequence >= event.sequence:
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
    data = event.data
    return {
        "status": _STATUS[event.type],
        "sequence": event.sequence,
        "updated_at": event.timestamp,
        "legs": fold.leg,
        "first_event": first_event,
        "approval_id": data.get("approval_id") if event.type == "lifecycle.paused" else None,
        "code": data.get("code"),
        "error": _shown(data.get("error")),
        "summary": _shown(data.get("summary")),
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
