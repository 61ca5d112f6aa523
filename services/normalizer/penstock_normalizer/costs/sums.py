"""Adds calls of models and of tools to the record of a run's costs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from penstock.bus.records.costs import CostRecord, CostRow

# The names of models and tools come from agent servers. Further ones are added up under one name,
# so that a record cannot grow without a limit.
MAX_ROWS: Final = 200
OTHER: Final = "other"
_COUNTS: Final = (
    *("input_tokens", "output_tokens", "total_tokens", "reasoning_tokens"),
    *("cached_input_tokens", "cache_write_tokens"),
)


def add_model_calls(
    record: CostRecord, events: Iterable[Mapping[str, Any]], last: int
) -> CostRecord:
    """Return the record with these `llm.usage` of its run, each given as its envelope.

    `last` is the stream sequence of the last of them. An event that the record has already is not
    added again: NATS may have lost its copy, and the normalizer then publishes it again.
    """
    rows, sequence = _added(record, events, record.sequence, _add_model_call)
    return record.model_copy(update={"rows": rows, "sequence": sequence, "last": last})


def add_tool_calls(
    record: CostRecord, events: Iterable[Mapping[str, Any]], last: int
) -> CostRecord:
    """Do what `add_model_calls` does, for `llm.tool_result` that have a cost."""
    rows, sequence = _added(record, events, record.tool_sequence, _add_tool_call)
    return record.model_copy(update={"rows": rows, "tool_sequence": sequence, "last_tool": last})


Rows = dict[tuple[str, ...], CostRow]


def _added(
    record: CostRecord,
    events: Iterable[Mapping[str, Any]],
    sequence: int,
    add: Callable[[Rows, str, Mapping[str, Any]], None],
) -> tuple[list[CostRow], int]:
    rows = {_key(row): row.model_copy() for row in record.rows}
    for event in events:
        if event["sequence"] > sequence:
            sequence = event["sequence"]
            add(rows, event["timestamp"][:10], event["data"])
    return list(rows.values()), sequence


def _add_model_call(rows: Rows, day: str, used: Mapping[str, Any]) -> None:
    cost = used.get("cost")
    currency = cost["currency"] if cost is not None else None
    names = {"model": used.get("model") or "", "provider": used.get("provider") or ""}
    row = _row(rows, CostRow(day=day, currency=currency, **names))
    row.calls += used["reported"] == "call"
    row.estimated += used["estimated"]
    for name in _COUNTS:
        setattr(row, name, getattr(row, name) + used.get(name, 0))
    if cost is None:
        row.without_price += 1
    else:
        row.micros += cost["micros"]


def _add_tool_call(rows: Rows, day: str, called: Mapping[str, Any]) -> None:
    cost = called["cost"]
    row = _row(rows, CostRow(day=day, currency=cost["currency"], tool=called["tool"]))
    row.tool_calls += 1
    row.micros += cost["micros"]


def _row(rows: Rows, made: CostRow) -> CostRow:
    if _key(made) not in rows and len(rows) >= MAX_ROWS:
        other = {"tool": OTHER} if made.tool else {"model": OTHER, "provider": ""}
        made = made.model_copy(update=other)
    return rows.setdefault(_key(made), made)


def _key(row: CostRow) -> tuple[str, ...]:
    return row.day, row.model, row.provider, row.tool, row.currency or ""
