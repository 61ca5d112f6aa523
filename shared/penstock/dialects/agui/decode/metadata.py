"""Copies the `metadata` that any AG-UI event may carry."""

from __future__ import annotations

from penstock.dialects.agui.decode.frames import AguiFrame
from penstock.dialects.base import JsonObject
from penstock.dialects.json import obj


def with_metadata(data: JsonObject, body: AguiFrame) -> JsonObject:
    """Return the data, with the event's `metadata` if the event has any."""
    metadata = obj(body.get("metadata"))
    return {**data, "metadata": metadata} if metadata else data
