"""Lists the erasures of an installation, and repeats them after the restore of an older backup
(docs/decisions/0396)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from penstock.bus import Bus, StartUpError, messages, streams, subjects
from penstock.bus.admin.ensure import shards_of
from penstock.bus.read import direct
from penstock.bus.records.erasures import EraseCommand
from penstock.bus.subjects import is_run_id
from penstock_normalizer.erasing.restored import withhold

NONE: Final = "none"  # in the place of a file: nothing was erased since the backup
_KEY: Final = ".erased."  # before the erasure's id in the key of its entry in the audit


async def listed(bus: Bus) -> AsyncIterator[dict[str, Any]]:
    """Yield the erasures that the audit has, and those that only EVENTS has because the audit is
    behind; some twice."""
    async for stored in direct.replay(bus, streams.AUDIT, ">"):
        with suppress(ValueError, KeyError, AttributeError):
            entry = json.loads(stored.payload)
            if entry["event"] == "erased":
                erasure_id = entry["key"].removeprefix(_KEY)
                yield _line(
                    entry["run_id"], erasure_id, entry["by"], entry["at"], entry.get("decision")
                )
    for shard in range((await shards_of(bus)).made):
        stream = streams.events_of(shard)
        async for stored in direct.replay(bus, stream, subjects.event("system.erased", "*")):
            event = json.loads(stored.payload)
            data = event["data"]
            yield _line(
                event["run_id"],
                data["erasure_id"],
                data["by"],
                event["timestamp"],
                data.get("reason"),
            )


def _line(run_id: str, erasure_id: str, by: str, at: str, reason: str | None) -> dict[str, Any]:
    return {"run_id": run_id, "erasure_id": erasure_id, "by": by, "at": at, "reason": reason}


def read(file: str) -> list[EraseCommand]:
    """Return the erasures of a file, one for each run. Raises StartUpError."""
    if file == NONE:
        return []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        parsed = [json.loads(line) for line in lines if line.strip()]
        if not parsed:
            # Such as one that was written anew while NATS was away.
            text = f"{file} is empty: write `{NONE}` if nothing was erased since the backup"
            raise StartUpError(text)
        found = {each["run_id"]: each for each in parsed if each.get("state") != "refused"}
        if wrong := [run_id for run_id in found if not is_run_id(str(run_id))]:
            raise StartUpError(f"{file}: {str(wrong[0])[:64]!r} is no run's id")
        return [_command(each) for each in found.values()]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise StartUpError(
            f"{file} does not have the lines of `penstock streams erasures --json`: {error!r}"
        ) from error


def _command(line: dict[str, Any]) -> EraseCommand:
    return EraseCommand(
        erasure_id=line.get("erasure_id") or line["run_id"],
        runs=[line["run_id"]],
        by=line.get("by") or "operator",
        at=line.get("at") or messages.now(),
        reason=line.get("reason"),
    )


async def repeat(bus: Bus, erasures: Iterable[EraseCommand]) -> Counter[str]:
    """Withhold the content of these runs, before services start; return how many were withheld,
    were open in the backup, and are not in it. Raises BusError and StartUpError."""
    found = Counter[str]()
    for each in erasures:
        try:
            found[await withhold(bus, each)] += 1
        except ValidationError as error:
            text = f"run {each.runs[0]} was erased, and its record cannot be read: {error}"
            raise StartUpError(text) from error
    return found
