"""Adds events to what a run has used of its budgets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from penstock.budgets.account import account_key
from penstock.budgets.document import RunFacts
from penstock.budgets.model import Budget
from penstock.bus.records import RunSpending
from penstock.events import TERMINAL

_ADDED_UP: Final = ("input_tokens", "output_tokens", "total_tokens")


@dataclass(frozen=True, slots=True)
class Charge:
    """A budget in which a run counts, and the facts of the run whose budget it is: the run itself,
    or a workflow around it."""

    budget: Budget
    facts: RunFacts


def add_events(
    spending: RunSpending, events: Iterable[Mapping[str, Any]], last: int, charges: Sequence[Charge]
) -> RunSpending:
    """Return the spending with these events of its run, each given as its envelope.

    `last` is the stream sequence of the last of them. An event that the record has already is not
    added again: NATS may have lost its copy, and the normalizer then publishes it again.
    """
    added = spending.model_copy(deep=True)
    added.last = last
    for event in events:
        if event["sequence"] > added.sequence:
            added.sequence = event["sequence"]
            _add(added, event, charges)
    return added


def _add(spending: RunSpending, event: Mapping[str, Any], charges: Sequence[Charge]) -> None:
    type_ = f"{event['event']['category']}.{event['event']['action']}"
    at = datetime.fromisoformat(event["timestamp"])
    spent = _spent(spending, type_, event["data"], at)
    spending.ended = spending.ended or type_ in TERMINAL
    for charge in charges:
        account = spending.accounts.setdefault(account_key(charge.budget, charge.facts, at), {})
        for name in charge.budget.limit.amounts:
            key = f"cost {charge.budget.currency}" if name == "cost" else name
            account[name] = account.get(name, 0) + spent.get(key, 0)


def _spent(
    spending: RunSpending, type_: str, data: Mapping[str, Any], at: datetime
) -> dict[str, int]:
    match type_:
        case "llm.usage":
            spent = {"tokens": sum(data.get(name, 0) for name in _ADDED_UP)}
            spent["model_calls"] = int(data["reported"] == "call")
            if (cost := data.get("cost")) is not None:
                spent[f"cost {cost['currency']}"] = cost["micros"]
        case "llm.tool_call":
            spent = {"tool_calls": 1}
        case _:
            spent = {}
    if spending.counted_to is not None:
        since = datetime.fromisoformat(spending.counted_to)
        # Whole seconds are counted, and the rest later.
        spent["time"] = max(0, int((at - since).total_seconds()))
    _move_clock(spending, type_, at, spent.get("time", 0))
    return spent


def _move_clock(spending: RunSpending, type_: str, at: datetime, counted_s: int) -> None:
    if type_ == "lifecycle.paused" or type_ in TERMINAL:
        spending.counted_to = None
    elif type_ in ("lifecycle.started", "lifecycle.resumed"):
        spending.counted_to = at.isoformat()
    elif spending.counted_to is not None and counted_s:
        since = datetime.fromisoformat(spending.counted_to)
        spending.counted_to = datetime.fromtimestamp(
            since.timestamp() + counted_s, since.tzinfo
        ).isoformat()
