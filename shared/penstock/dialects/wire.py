"""Provides the functions that all encoders use for JSON frames and for times."""

from __future__ import annotations

import json
from datetime import datetime

import orjson

from penstock.dialects.base import JsonObject
from penstock.sse import Frame


def frame(body: JsonObject, event: str | None = None) -> Frame:
    try:
        return Frame(orjson.dumps(body), event)
    except orjson.JSONEncodeError:
        # orjson writes at most 254 levels. A canonical event may have 254 levels, and some dialects
        # wrap further levels around a part of the event. Such a body is written with the slower
        # module `json`, which has no limit of 254 levels.
        return Frame(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(), event)


def epoch_s(event: JsonObject) -> float:
    """Return the time of an envelope in seconds since 1970."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()
