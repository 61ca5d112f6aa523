"""Reads a client's answer to an item of an approval.

The answer to a confirmation is yes or no, or `{"approved": bool, "reason"?: str, "editedArgs"?:
object}`. The answer to any other item is a value. The status `cancelled` is a rejection, and the
status `approved` says that the answer is a yes or no, which is the value of no item.
"""

from __future__ import annotations

from typing import Final

from penstock.dialects.approvals import CONFIRMATIONS
from penstock.dialects.base import Json, JsonObject

# the keys that Penstock, Agno and ADK use
_YES_OR_NO: Final = ("approved", "accepted", "confirmed")
_NOTES: Final = ("reason", "note")


class UnclearAnswer(ValueError):
    """An answer neither approves nor rejects a call, which then does not run."""


def decided(item: JsonObject, answer: JsonObject) -> JsonObject:
    """Return `{item_id, decision, note, value}`, which the approvals service takes unchanged, for
    an `item` of `approval.requested` and an `answer` with `status` and `payload`. Raise
    `UnclearAnswer` for an answer to a confirmation that is neither yes nor no, and for a yes where
    a value is needed."""
    payload = answer.get("payload")
    fields = payload if isinstance(payload, dict) else {}
    note = next((fields[name] for name in _NOTES if isinstance(fields.get(name), str)), None)
    if answer.get("status") == "cancelled":
        return _decision(item, "reject", note)
    if item["kind"] not in CONFIRMATIONS:
        if answer.get("status") == "approved":
            raise UnclearAnswer(f"item {item['item_id']}: needs a value, which a yes is not")
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
