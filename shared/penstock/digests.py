"""Make the digests to which decisions on approvals are bound. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

_BOUND = ("item_id", "kind", "tool", "args", "description")


def item_digest(approval_id: str, item: Mapping[str, Any]) -> str:
    """Return the digest of an item's request, made of the approval's id, the tool, the arguments
    and the description.

    Because the digest covers the approval's id, the digest of one pause cannot decide another pause
    with the same items.
    """
    asked = {name: item.get(name) for name in _BOUND}
    return _digest({"approval_id": approval_id, **asked})


def request_digest(item_digests: Sequence[str]) -> str:
    """Return the digest of a whole request, which is made of the digests of the request's items, in
    their order."""
    return _digest(list(item_digests))


def _digest(value: Any) -> str:
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return "sha256:" + hashlib.sha256(canonical).hexdigest()
