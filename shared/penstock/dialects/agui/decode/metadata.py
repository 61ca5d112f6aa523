"""The `metadata` that any AG-UI event may carry."""

from __future__ import annotations

from penstock.dialects.base import JsonObject
from penstock.dialects.json import obj


def with_metadata(data: JsonObject, body: JsonObject) -> JsonObject:
    """The data, with the event's `metadata` where it has some."""
    metadata = obj(body.get("metadata"))
    return {**data, "metadata": metadata} if metadata else data
