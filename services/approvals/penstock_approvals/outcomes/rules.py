"""Check whether a decision fits its request: its items, their values, and the arguments that it
changes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from penstock.bus.records.approvals import ApprovalRecord, Decided, DecideRequest
from penstock.dialects.approvals import have_same_args
from penstock.json_schema import (
    LOOP_STEPS,
    TooMuchWork,
    UnknownReference,
    misfits,
    schema_mistakes,
    shown_path,
)
from penstock_approvals.policy.model import ANSWERED_ONLY, NEEDS_VALUE

# the greatest size of a decision, because one message carries the whole decision
MAX_BYTES: Final = 512 * 1024
MAX_PATHS: Final = 10_000


class DecisionMismatch(ValueError):
    """The error for a decision that does not fit its request, or that changes an argument which
    must not be changed. The text names the item or the argument."""


def check(approval: ApprovalRecord, request: DecideRequest) -> None:
    """Raise DecisionMismatch unless each item of the request is decided once, as the item's kind
    allows, and no other item is decided."""
    wanted = {item["item_id"]: item for item in approval.items}
    counts = Counter(item.item_id for item in request.items)
    for item_id, count in counts.items():
        if item_id not in wanted:
            raise DecisionMismatch(f"there is no item {item_id} in this request")
        if count > 1:
            raise DecisionMismatch(f"item {item_id} is decided {count} times")
    if missing := [item_id for item_id in wanted if item_id not in counts]:
        raise DecisionMismatch(f"not decided: {', '.join(missing)}; all items are decided together")
    if (size := len(request.dump())) > MAX_BYTES:
        raise DecisionMismatch(
            f"the decision has {size} bytes, its values included; at most {MAX_BYTES}"
        )
    for item in request.items:
        if reason := _misfit_of(wanted[item.item_id], item, approval.is_of_workflow):
            raise DecisionMismatch(f"item {item.item_id}{reason}")


def _misfit_of(asked: dict[str, Any], item: Decided, is_of_workflow: bool) -> str | None:
    kind = asked["kind"]
    if item.decision == "reject":
        is_answered_only = kind in ANSWERED_ONLY and not is_of_workflow
        return f" ({kind}) cannot be rejected, only answered" if is_answered_only else None
    if kind not in NEEDS_VALUE:
        return None
    if item.value is None:
        # Without a choice, a budget is raised by the first amount that it offers.
        return None if kind == "budget" else f" ({kind}) needs a value"
    # On an ADK server, an answer that does not fit would make the session unusable for ever.
    schema = asked.get("input_schema")
    reason = misfit(schema, item.value, is_foreign=not is_of_workflow) if schema else None
    return f": {reason}" if reason else None


def misfit(schema: dict[str, Any], value: Any, *, is_foreign: bool = True) -> str | None:
    """Return where and why the value does not fit the schema, such as `value.days: is missing`.

    If the schema is an agent server's (`is_foreign`), and has mistakes or keywords that are not
    supported, or if the check would take longer than an event loop may wait, the value is accepted,
    because the agent server checks it again.
    """
    if is_foreign and schema_mistakes(schema, is_foreign=True):
        return None
    try:
        found = misfits(schema, value, LOOP_STEPS)
    except (TooMuchWork, UnknownReference, RecursionError):
        return None if is_foreign else "value: takes too long to be checked; send a smaller one"
    return f"{shown_path(found[0].path, 'value')}: {found[0].reason}" if found else None


def outcome(items: Sequence[Decided]) -> Literal["approved", "rejected", "mixed"]:
    decisions = {item.decision for item in items}
    if decisions == {"approve"}:
        return "approved"
    return "rejected" if decisions == {"reject"} else "mixed"


def check_edit(asked: Mapping[str, Any], edited: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Raise DecisionMismatch if the decision changes an argument that must not be changed, or
    changes the JSON type of an argument.

    `allowed` has paths such as `args.memo`. A path also allows all values below it, and `args.*`
    allows all arguments.
    """
    patterns = [tuple(pattern.removesuffix(".*").split(".")[1:]) for pattern in allowed]
    for path, before, after in _differences(asked, edited):
        name = ".".join(("args", *path))
        if not any(path[: len(pattern)] == pattern for pattern in patterns):
            may = ", ".join(allowed) or "nothing"
            raise DecisionMismatch(f"{name} may not be edited; the policy allows {may}")
        if before is not None and after is not None and _type(before) != _type(after):
            raise DecisionMismatch(f"{name} must stay a JSON {_type(before)}")


def _differences(
    asked: Mapping[str, Any], edited: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each path at which the values differ, with both values; None for a missing value."""
    pairs: list[tuple[tuple[str, ...], Any, Any]] = [((), dict(asked), dict(edited))]
    for _ in range(MAX_PATHS):
        if not pairs:
            return
        path, before, after = pairs.pop()
        if isinstance(before, dict) and isinstance(after, dict):
            names = sorted({*before, *after})
            pairs += [((*path, name), before.get(name), after.get(name)) for name in names]
        elif not have_same_args({"": before}, {"": after}):
            yield path, before, after
    raise DecisionMismatch(f"the arguments have more than {MAX_PATHS} values")


def _type(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
