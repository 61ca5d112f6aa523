"""Makes the records that are shown from the stored ones. Pure.

A person who answers an item of the kind `credential` sends a secret for the agent's server. The
record in KV holds the secret until the connector has sent the secret. No response, list, live
change or audit record shows the secret, and neither does the event `approval.decided`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from penstock.bus.envelopes import ENVELOPES
from penstock.bus.records.approvals import ApprovalRecord, Decided

SECRET_KINDS: Final = frozenset({"credential"})


def as_shown(record: ApprovalRecord, *, whole: bool) -> ApprovalRecord:
    """Return the record without credentials. An item is `editable` only if the policy lets a
    decision change an argument of it. Without `whole`, it has what redactions leave for others than
    those who decide.

    The stored items say what the agent's server takes, because the check of a decision's values
    depends on that, whatever the policy allows.
    """
    if record.masked_items is not None:
        shown = record if whole else _masked(record, record.masked_items)
        record = shown.model_copy(update={"masked_items": None})
    fixed = {each.item_id for each in record.rulings if not each.edit}
    items = [
        item | {"editable": False} if item["item_id"] in fixed and item.get("editable") else item
        for item in record.items
    ]
    update: dict[str, Any] = {"items": items}
    if any(item.get("kind") in SECRET_KINDS for item in record.items):
        update["votes"] = [
            vote.model_copy(update={"items": items_without_credentials(record, vote.items)})
            for vote in record.votes
        ]
        if (decision := record.decision) is not None:
            decided = items_without_credentials(record, decision.items)
            update["decision"] = decision.model_copy(update={"items": decided})
    return record.model_copy(update=update)


def _masked(record: ApprovalRecord, items: Sequence[dict[str, Any]]) -> ApprovalRecord:
    """Return the record with masked items, and without what people have written. An item that
    somebody has changed since has no arguments."""
    envelope = ENVELOPES["approvals"](orjson.loads(record.dump()))
    asked = {item["item_id"]: item for item in items}
    shown = [
        asked[item["item_id"]]
        if item["item_id"] in asked and asked[item["item_id"]]["digest"] == item["digest"]
        else item
        for item in envelope["items"]
    ]
    return ApprovalRecord.model_validate({**envelope, "items": shown})


def items_without_credentials(record: ApprovalRecord, items: Sequence[Decided]) -> list[Decided]:
    secret = {item["item_id"] for item in record.items if item.get("kind") in SECRET_KINDS}
    return [
        item.model_copy(update={"value": None}) if item.item_id in secret else item
        for item in items
    ]
