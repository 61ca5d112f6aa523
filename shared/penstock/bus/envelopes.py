"""Returns records of a run, as JSON, without the run's content: what lists need in clear. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Fields: TypeAlias = dict[str, Any]

# The content in a run's record: first words, results, error texts, and tags.
_OF_RUN: Final = frozenset({"message", "summary", "error", "unredacted", "tags"})
# What stays of an item that is to be approved, of the decision of an item, and of an attempt of a
# delivery. The arguments of an item are in the record's digest.
_OF_ITEM: Final = frozenset({"item_id", "kind", "tool", "tool_call_id", "digest", "editable"})
_OF_DECIDED: Final = frozenset({"item_id", "decision", "expired"})
_OF_ATTEMPT: Final = frozenset({"number", "replay", "at", "seconds", "status", "code", "final"})
# What stays of the job of a delivery: without it, nobody would find the delivery of a rule.
_OF_JOB: Final = frozenset(
    {
        *("rule", "uid", "version", "type", "source", "run_id", "sequence", "event", "raw", "leg"),
        *("id", "ordered", "depth", "attempt", "replay", "since", "dotted"),
    }
)


def _without(fields: Fields, names: frozenset[str]) -> Fields:
    return {name: value for name, value in fields.items() if name not in names or not value}


def _only(items: Any, names: frozenset[str]) -> list[Fields]:
    return [{name: each[name] for name in each if name in names} for each in items or ()]


def _of_run(fields: Fields) -> Fields:
    return _without(fields, _OF_RUN)


def _decided(fields: Fields) -> Fields:
    return {**_without(fields, frozenset({"note"})), "items": _only(fields["items"], _OF_DECIDED)}


def _of_approval(fields: Fields) -> Fields:
    made = _without(fields, frozenset({"reason", "masked_items"}))
    made["items"] = _only(fields["items"], _OF_ITEM)
    if fields.get("decision"):
        made["decision"] = _decided(fields["decision"])
    for name, of_one in _LISTS:
        if fields.get(name):
            made[name] = [of_one(each) for each in fields[name]]
    return made


_LISTS: Final[tuple[tuple[str, Callable[[Fields], Fields]], ...]] = (
    ("votes", _decided),
    ("remarks", lambda remark: _without(remark, frozenset({"text"}))),
    ("rulings", lambda ruling: _without(ruling, frozenset({"note"}))),
)


def _of_delivery(fields: Fields) -> Fields:
    made = _without(fields, frozenset({"answer"}))
    if job := fields.get("job"):
        [made["job"]] = _only([job], _OF_JOB)
        if "body" in job:
            made["job"]["body"] = {}
    if fields.get("attempts"):
        made["attempts"] = _only(fields["attempts"], _OF_ATTEMPT)
    return made


# By bucket: how a record loses its content.
ENVELOPES: Final[Mapping[str, Callable[[Fields], Fields]]] = {
    "runs": _of_run,
    "approvals": _of_approval,
    "deliveries": _of_delivery,
}
