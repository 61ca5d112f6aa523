"""Makes the interrupts of a pause.

Each item of an approval becomes one interrupt. Its id is the `question_id` of the item.
`penstock.dialects.answers` reads the answers in a client's `resume[]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.dialects.agui.ids import Names
from penstock.dialects.approvals import CONFIRMATIONS, question_id
from penstock.dialects.base import JsonObject

# Maps the kind of an item to AG-UI's usual reason. The reason for any other kind begins with
# `penstock:`.
_REASONS: Final[Mapping[str, str]] = {
    "confirmation": "confirmation",
    "input": "input_required",
    "feedback": "input_required",
    "external": "tool_call",
    "long_running": "tool_call",
}
_METADATA: Final = ("item_id", "kind", "digest", "tool", "args", "options", "editable")


def interrupt(approval: JsonObject, item: JsonObject, *, names: Names, modern: bool) -> JsonObject:
    """`approval` is the data of `approval.requested`, and `names` maps the tool call's id to the
    client's. A `modern` client also gets the subrun."""
    kind = item["kind"]
    call_id = item.get("tool_call_id")
    reason = "tool_call" if kind == "confirmation" and call_id else _REASONS.get(kind)
    requested: JsonObject = {
        "id": question_id(approval["approval_id"], item["item_id"]),
        "reason": reason or f"penstock:{kind}",
        "message": item.get("description") or _message(kind, item.get("tool")),
        "toolCallId": names.of(call_id) if call_id else None,
        "responseSchema": _schema(item),
        "expiresAt": approval.get("expires_at"),
        "subagentRunId": (item.get("subrun") or {}).get("id") if modern else None,
        "metadata": {
            "penstock": {
                "approval_id": approval["approval_id"],
                **{name: item[name] for name in _METADATA if item.get(name) is not None},
            }
        },
    }
    return {name: value for name, value in requested.items() if value is not None}


def interrupt_of_all(approval_id: str) -> JsonObject:
    # The items are unknown if their request has expired.
    return {"id": approval_id, "reason": "confirmation", "message": "A decision is needed."}


def _message(kind: str, tool: str | None) -> str:
    what = kind.replace("_", " ")
    return f"The tool {tool} waits: {what}." if tool else f"The run waits: {what}."


def _schema(item: JsonObject) -> JsonObject | None:
    if item["kind"] not in CONFIRMATIONS:
        schema = item.get("input_schema")
        return schema if isinstance(schema, dict) else None
    properties: JsonObject = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
    if item.get("editable"):
        properties["editedArgs"] = {"type": "object"}
    return {"type": "object", "properties": properties, "required": ["approved"]}
