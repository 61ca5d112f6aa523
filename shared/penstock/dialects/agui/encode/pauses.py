"""Makes the interrupts of a pause, and reads the decisions from a client's `resume[]`.

Each item of an approval becomes one interrupt. Its id is the `question_id` of the item. A
client answers a confirmation with `{"approved": bool, "reason"?: str, "editedArgs"?: object}`. The
answer to any other item is a value. The status `cancelled` is a rejection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.dialects.agui.ids import Names
from penstock.dialects.approvals import CONFIRMATIONS, question_id
from penstock.dialects.base import Json, JsonObject

# Maps the kind of an item to AG-UI's usual reason. The reason for any other kind begins with
# `penstock:`.
_REASONS: Final[Mapping[str, str]] = {
    "confirmation": "confirmation",
    "input": "input_required",
    "feedback": "input_required",
    "external": "tool_call",
    "long_running": "tool_call",
}
# the keys that Penstock, Agno and ADK use
_YES_OR_NO: Final = ("approved", "accepted", "confirmed")
_NOTES: Final = ("reason", "note")
_METADATA: Final = ("item_id", "kind", "digest", "tool", "args", "options", "editable")


class UnclearAnswer(ValueError):
    """A resume entry neither approves nor rejects a call, which then does not run."""


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


def decided(item: JsonObject, entry: JsonObject) -> JsonObject:
    """Return `{item_id, decision, note, value}`, which the approvals service takes unchanged, for
    an `item` of `approval.requested`. Raise `UnclearAnswer` for an answer to a confirmation that is
    neither yes nor no."""
    payload = entry.get("payload")
    fields = payload if isinstance(payload, dict) else {}
    note = next((fields[name] for name in _NOTES if isinstance(fields.get(name), str)), None)
    if entry.get("status") == "cancelled":
        return _decision(item, "reject", note)
    if item["kind"] not in CONFIRMATIONS:
        return _decision(item, "approve", None, payload)
    yes = payload if isinstance(payload, bool) else _yes_or_no(fields)
    if yes is None:
        raise UnclearAnswer(f"item {item['item_id']}: the payload must say `approved`")
    return _decision(item, "approve" if yes else "reject", note, fields.get("editedArgs"))


def _yes_or_no(fields: JsonObject) -> bool | None:
    answers = [fields[name] for name in _YES_OR_NO if isinstance(fields.get(name), bool)]
    return all(answers) if answers else None


def _decision(item: JsonObject, decision: str, note: str | None, value: Json = None) -> JsonObject:
    return {"item_id": item["item_id"], "decision": decision, "note": note, "value": value}


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
