"""Keeps a run's open approvals, names their items, and compares the call that runs with the
approved call.

Frameworks change a call between its approval and its run. Frameworks reorder keys, write `1.0` for
`1`, and drop or add arguments that are null. The comparison ignores these changes (decision 0035).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from penstock.dialects.base import Json, JsonObject
from penstock.dialects.json import objects, string, without_none

# The kinds of items that are answered with yes or no. An item of another kind needs a value.
CONFIRMATIONS: Final = frozenset({"confirmation", "review", "budget"})
NOT_APPROVED = "not_what_was_approved"
# The greatest size of the arguments in `detail`, in bytes of JSON. For larger arguments, `detail`
# has only a digest.
MAX_SHOWN_BYTES = 16_384
_MAX_READABLE = 300  # The greatest number of characters of a call in `message`.
# `_encoded` wraps this many levels around the arguments, to check that orjson can write the
# arguments inside of an event. An event itself wraps fewer levels around the arguments.
_LEVELS_AROUND = 8
_UNSHOWN = b"(nested too deeply to be shown)"


def question_id(approval_id: str, item_id: str) -> str:
    """Return the id under which a client answers one item: `<approval id> "/" <item id>`. An
    approval id is a UUID. An item id comes from the agent server and may contain any characters,
    even "/"."""
    return f"{approval_id}/{item_id}"


def parse_question_id(question: str) -> tuple[str, str | None]:
    """Return the ids of the approval and of the item; None for a question about all items."""
    approval_id, slash, item_id = question.partition("/")
    return approval_id, item_id if slash else None


def refusal(decision: Mapping[str, Json]) -> tuple[str, str]:
    outcome = "expired" if decision.get("expired") else "rejected"
    return outcome, string(decision.get("note")) or outcome


def have_same_args(approved: JsonObject, ran: JsonObject) -> bool:
    """Null arguments do not count."""
    return _same(without_none(approved), without_none(ran))


def difference(
    call_id: str, approved: tuple[str, JsonObject], ran: tuple[str, JsonObject]
) -> JsonObject | None:
    """Return the data of `system.warning`. `approved` and `ran` are pairs of tool and arguments."""
    if ran[0] == approved[0] and have_same_args(approved[1], ran[1]):
        return None
    return {
        "message": f"the agent server ran {_readable(*ran)} as the call {call_id}, and what was "
        f"approved is {_readable(*approved)}",
        "code": NOT_APPROVED,
        "detail": {
            "tool_call_id": call_id,
            "approved": _shown(*approved),
            "ran": _shown(*ran),
        },
    }


def _same(one: Json, other: Json) -> bool:
    # The agent server decides how deeply the values are nested, and a recursion could exceed
    # Python's limit.
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            pairs += [(value, right[name]) for name, value in left.items()]
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif isinstance(left, bool) is not isinstance(right, bool) or left != right:
            return False  # in Python, True equals 1
    return True


def _readable(tool: str, args: JsonObject) -> str:
    readable = f"{tool} {(_encoded(args) or _UNSHOWN).decode()}"
    return readable if len(readable) <= _MAX_READABLE else f"{readable[: _MAX_READABLE - 1]}…"


def _shown(tool: str, args: JsonObject) -> JsonObject:
    encoded = _encoded(args)
    if encoded is None:
        return {"tool": tool}
    digest = hashlib.sha256(encoded).hexdigest()
    shown: JsonObject = {"tool": tool, "args_digest": f"sha256:{digest}"}
    if len(encoded) <= MAX_SHOWN_BYTES:
        shown["args"] = args
    return shown


def _encoded(args: JsonObject) -> bytes | None:
    wrapped: Json = args
    for _ in range(_LEVELS_AROUND):
        wrapped = [wrapped]
    try:
        return orjson.dumps(wrapped, option=orjson.OPT_SORT_KEYS)[_LEVELS_AROUND:-_LEVELS_AROUND]
    except TypeError:
        return None


# The types of the events after which an approval can no longer be decided.
_SETTLED: Final = frozenset({"approval.decided", "approval.expired", "approval.withdrawn"})


@dataclass(slots=True)
class OpenApprovals:
    """Keeps the requests that wait for a decision, in the order of the requests."""

    requests: dict[Json, JsonObject] = field(default_factory=dict)

    def feed(self, event_type: str, data: JsonObject) -> None:
        approval_id = data.get("approval_id")
        if event_type == "approval.requested":
            self.requests[approval_id] = data
        elif event_type in _SETTLED:
            self.requests.pop(approval_id, None)

    def items(self) -> Iterator[tuple[JsonObject, JsonObject]]:
        """Yield each with the data of its `approval.requested`."""
        for request in self.requests.values():
            for item in objects(request.get("items")):
                yield request, item
