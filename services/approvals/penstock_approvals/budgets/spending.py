"""Adds events to what a run has used of its budgets. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from penstock.budgets.account import WITHOUT_COST, account_key
from penstock.budgets.document import RunFacts
from penstock.budgets.model import Budget
from penstock.bus.records.budgets import RunSpending
from penstock.events import TERMINAL

MAX_CALLS: Final = 100  # the most different calls of tools that a run's record counts
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
    spending.leg = event["leg"]
    spending.ended = spending.ended or type_ in TERMINAL
    _count(spending, type_, event["data"], datetime.fromisoformat(event["timestamp"]), charges)


def _count(
    spending: RunSpending,
    type_: str,
    data: Mapping[str, Any],
    at: datetime,
    charges: Sequence[Charge],
) -> None:
    spent = _spent(spending, type_, data, at)
    for charge in charges:
        account = spending.accounts.setdefault(account_key(charge.budget, charge.facts, at), {})
        for name in charge.budget.limit.amounts:
            key = f"cost {charge.budget.currency}" if name == "cost" else name
            if name == "cost" and type_ == "llm.usage" and key not in spent:
                account[WITHOUT_COST] = account.get(WITHOUT_COST, 0) + 1
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
            _count_call(spending, data)
        case _:
            spent = {}
    if spending.counted_to is not None:
        since = datetime.fromisoformat(spending.counted_to)
        # Whole seconds are counted, and the rest later.
        spent["time"] = max(0, int((at - since).total_seconds()))
    _move_clock(spending, type_, at, spent.get("time", 0))
    return spent


def _count_call(spending: RunSpending, data: Mapping[str, Any]) -> None:
    """Count how often this tool was called with these arguments. The calls that were made last are
    kept: an agent that repeats itself does so soon."""
    called = [data["tool"], data["args"], data.get("args_text")]
    canonical = orjson.dumps(called, option=orjson.OPT_SORT_KEYS)
    digest = hashlib.sha256(canonical).hexdigest()[:16]
    spending.calls[digest] = spending.calls.pop(digest, 0) + 1
    if len(spending.calls) > MAX_CALLS:
        del spending.calls[next(iter(spending.calls))]


def tick(spending: RunSpending, now: datetime, charges: Sequence[Charge]) -> RunSpending:
    """Return the spending with the time of a run that is under way, counted up to now."""
    added = spending.model_copy(deep=True)
    _count(added, "", {}, now, charges)
    return added


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
