"""Read the form of a link's page. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qs

from penstock.bus.records.approvals import ApprovalRecord, Decided
from penstock.visible import visible
from penstock_approvals.policy.model import ANSWERED_ONLY, NEEDS_VALUE

MAX_NOTE: Final = 2000
MAX_FIELDS: Final = 1000
TYPED: Final = "typed"  # the name of the field for the tool's name
VALUE: Final = "value-"  # the prefix of the name of an item's field, before the item's number


Choice = Literal["approve", "reject", "ask", "take-back"]
CHOICES: Final[tuple[Choice, ...]] = get_args(Choice)
_NUMBER: Final = re.compile(r"[0-9]{1,6}")


class InvalidForm(ValueError):
    """The error for a form that cannot be read. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a person has sent."""

    signature: str
    decision: Choice
    note: str | None
    values: Mapping[int, str]
    typed: str = ""

    def fields(self) -> dict[str, str]:
        values = {f"{VALUE}{number}": text for number, text in self.values.items()}
        return {**values, "note": self.note or ""}


def parse(body: bytes) -> Form:
    """Return the form in a body of the type `application/x-www-form-urlencoded`. Raises InvalidForm
    if a field is missing, wrong, or there twice."""
    try:
        pairs = parse_qs(
            body.decode(), keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS
        )
    except ValueError as error:
        raise InvalidForm("the form cannot be read; open the link again") from error
    if any(len(values) > 1 for values in pairs.values()):
        raise InvalidForm("the form has a field twice; open the link again")
    fields = {name: values[0] for name, values in pairs.items()}
    decision = next((each for each in CHOICES if each == fields.get("decision")), None)
    if decision is None:
        raise InvalidForm("choose Approve or Reject")
    note = fields.get("note", "").replace("\r\n", "\n").strip()
    if len(note) > MAX_NOTE:
        raise InvalidForm(f"the note has {len(note)} characters; at most {MAX_NOTE}")
    values = {
        int(number): text.replace("\r\n", "\n")
        for name, text in fields.items()
        if (number := name.removeprefix(VALUE)) != name and _NUMBER.fullmatch(number)
    }
    return Form(
        fields.get("csrf", ""),
        decision,
        note or None,
        values,
        fields.get(TYPED, "").strip(),
    )


def name_to_type(record: ApprovalRecord) -> str | None:
    """Return what a person types to approve: the name of each tool that a rule calls dangerous, as
    the page shows it; None if no rule does."""
    dangerous = {each.item_id for each in record.rulings if each.danger}
    named = (item for item in record.items if item["item_id"] in dangerous)
    names = dict.fromkeys(visible(str(item.get("tool") or item.get("kind"))) for item in named)
    return ", ".join(names).strip() or None


def problem_of(form: Form, record: ApprovalRecord) -> str | None:
    """Return what is missing in the form; None if nothing is."""
    if form.decision == "ask" and form.note is None:
        return "write your question into the field below"
    name = name_to_type(record) if form.decision == "approve" else None
    if name is not None and form.typed != name:
        return f"this is dangerous: to approve it, type {name} into the field"
    return None


def decisions(items: Sequence[Mapping[str, Any]], form: Form) -> list[Decided]:
    """Return the form's decision on each item, with the value of the item's own field."""
    decision: Literal["approve", "reject"] = "approve" if form.decision == "approve" else "reject"
    return [
        Decided(
            item_id=item["item_id"],
            decision=decision,
            value=_value(item, form.values.get(number)) if decision == "approve" else None,
        )
        for number, item in enumerate(items)
    ]


def can_reject(record: ApprovalRecord) -> bool:
    return record.is_of_workflow or not any(
        item.get("kind") in ANSWERED_ONLY for item in record.items
    )


def _value(item: Mapping[str, Any], text: str | None) -> Any:
    """Return the value of an item's field: JSON, or the text itself if the schema asks for it."""
    if item.get("kind") not in NEEDS_VALUE or not text:
        return None
    if (item.get("input_schema") or {}).get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
