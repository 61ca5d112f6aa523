"""Adds events `llm.usage` to the record of a run's costs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.bus.records import CostRecord, CostRow

# The names of models come from agent servers. Further models are added up under one name, so that a
# record cannot grow without a limit.
MAX_ROWS: Final = 200
OTHER: Final = "other"
_COUNTS: Final = (
    *("input_tokens", "output_tokens", "total_tokens", "reasoning_tokens"),
    *("cached_input_tokens", "cache_write_tokens"),
)


def add_events(record: CostRecord, events: Iterable[Mapping[str, Any]], last: int) -> CostRecord:
    """Return the record with these events of its run, each given as its envelope.

    `last` is the stream sequence of the last of them. An event that the record has already is not
    added again: NATS may have lost its copy, and the normalizer then publishes it again.
    """
    rows = {_key(row): row.model_copy() for row in record.rows}
    sequence = record.sequence
    for event in events:
        if event["sequence"] > sequence:
            sequence = event["sequence"]
            _add(rows, event["timestamp"][:10], event["data"])
    changes = {"rows": list(rows.values()), "sequence": sequence, "last": last}
    return record.model_copy(update=changes)


def _add(rows: dict[tuple[str, ...], CostRow], day: str, used: Mapping[str, Any]) -> None:
    cost = used.get("cost")
    names = {"model": used.get("model") or "", "provider": used.get("provider") or ""}
    made = CostRow(day=day, currency=cost["currency"] if cost is not None else None, **names)
    if _key(made) not in rows and len(rows) >= MAX_ROWS:
        made.model, made.provider = OTHER, ""
    row = rows.setdefault(_key(made), made)
    row.calls += used["reported"] == "call"
    row.estimated += used["estimated"]
    for name in _COUNTS:
        setattr(row, name, getattr(row, name) + used.get(name, 0))
    if cost is None:
        row.without_price += 1
    else:
        row.micros += cost["micros"]


def _key(row: CostRow) -> tuple[str, ...]:
    return row.day, row.model, row.provider, row.currency or ""
