"""Separates the two forms of an event from which redactions hide something where callers read it
(`where: egress`). Pure.

Such an event is stored with both forms of its data: in `data`, tokens such as `[EMAIL_1]` stand for
what was found, and `clear` has the data as they came. Everything that reads events gets the masked
form, in the same bytes as if there was no other: whoever forgets to ask shows too little. For a
caller with the scope `pii`, a reader asks for `whole`.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.bus.messages import Stored
from penstock.bus.subjects import CATEGORIES

# How such an event begins. A reader compares the first bytes before it calls anything.
MARK: Final = b'{"masked":1,'


def with_both(body: dict[str, Any], clear: dict[str, Any]) -> dict[str, Any]:
    """Return the envelope of an event, whose `data` are masked, with the data as they came. These
    stand right behind `data`, so they are sealed with them."""
    made: dict[str, Any] = {"masked": 1}
    for name, value in body.items():
        made[name] = value
        if name == "data":
            made["clear"] = clear
    return made


def masked(payload: bytes) -> bytes:
    """Return the masked form of an event; another event unchanged. An event that cannot be read
    becomes nothing, since it may have both forms."""
    if not payload.startswith(MARK):
        return payload
    try:
        fields = orjson.loads(payload)
        del fields["masked"], fields["clear"]
        return orjson.dumps(fields)
    except (ValueError, KeyError):
        return b""


def split(stored: Stored) -> None:
    """Let every reader of an event get its masked form, unless it asks for `whole`. Other messages
    may begin in the same way, such as what an agent server has sent."""
    if stored.payload.startswith(MARK) and stored.subject.partition(".")[0] in CATEGORIES:
        stored.unmasked = stored.payload
        stored.payload = masked(stored.payload)


def whole(stored: Stored) -> bytes:
    """Return the payload of an event for those who may read what is masked for others. The event
    still says in `redactions` what that is."""
    if stored.unmasked is None:
        return stored.payload
    try:
        fields = orjson.loads(stored.unmasked)
        fields["data"] = fields.pop("clear")
        del fields["masked"]
        return orjson.dumps(fields)
    except (ValueError, KeyError):
        return b""
