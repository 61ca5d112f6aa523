"""The requests of the API, one function each. Pure.

`Client` and `AsyncClient` send the same requests and differ in I/O alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict
from urllib.parse import quote

from penstock_client.models import ApprovalRecord


@dataclass(frozen=True, slots=True)
class Request:
    """One request. If `may_repeat` is True, a repeat of the request changes nothing more, so it is
    sent again when its answer was lost."""

    method: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict)
    body: Mapping[str, object] | None = None  # sent as JSON
    document: bytes | None = None  # sent unchanged, as YAML
    may_repeat: bool = True


class StartOptions(TypedDict, total=False):
    """What a start may have besides the agent or workflow.

    With the same `idempotency_key`, a second start gets the first one's run. Without one, the
    client makes one, so that its own repeats start no second run.
    """

    session_id: str | None
    user_id: str | None
    input: Mapping[str, Any] | None
    idempotency_key: str | None
    when_busy: Literal["queue", "refuse", "interrupt", "steer"]
    tags: Mapping[str, str] | None


class ItemDecision(TypedDict, total=False):
    """The decision about one item. `value` answers a question, `args` replaces the arguments."""

    item_id: str
    decision: Literal["approve", "reject"]
    note: str | None
    value: Any
    args: Mapping[str, Any] | None


def path_of(*segments: str) -> str:
    """Return the path below /v1 with these segments, each quoted."""
    return "/".join(["/v1", *(quote(each, safe="") for each in segments)])


def start(path: str, body: Mapping[str, object]) -> Request:
    """Return a start with a POST to this path, with an idempotency key."""
    known = {name: value for name, value in body.items() if value is not None}
    return Request("POST", path, body={"idempotency_key": str(uuid.uuid4()), **known})


def decide(
    approval: ApprovalRecord | Mapping[str, Any],
    items: bool | Sequence[ItemDecision] | Sequence[Mapping[str, Any]],
    note: str | None,
) -> Request:
    """Return a decision on the request that `approval` shows; the service refuses it if the request
    has changed since. With True or False for `items`, all items are approved or rejected."""
    decision: Literal["approve", "reject"] = "approve" if items is True else "reject"
    each: Sequence[Mapping[str, Any]] = (
        [{"item_id": item["item_id"], "decision": decision} for item in approval["items"]]
        if isinstance(items, bool)
        else items
    )
    return start(
        path_of("approvals", approval["approval_id"], "decision"),
        {"items": each, "note": note, "digest": approval.get("digest")},
    )
