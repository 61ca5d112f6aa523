"""The bodies of an encoder's frames as bytes."""

from __future__ import annotations

import json

import orjson

from penstock.dialects.base import JsonObject
from penstock.sse import Frame


def frame(body: JsonObject, event: str | None = None) -> Frame:
    """The frame of a body that is made of what canonical events hold."""
    try:
        return Frame(orjson.dumps(body), event)
    except orjson.JSONEncodeError:
        # orjson writes 254 levels. A canonical event may have all of them, and a dialect that
        # wraps a part of it some more.
        return Frame(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(), event)
