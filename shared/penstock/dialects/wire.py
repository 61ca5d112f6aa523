"""What encoders share: frames of JSON bodies, and times."""

from __future__ import annotations

import json
from datetime import datetime

import orjson

from penstock.dialects.base import JsonObject
from penstock.sse import Frame


def frame(body: JsonObject, event: str | None = None) -> Frame:
    """The frame of a JSON body that consists of parts of canonical events."""
    try:
        return Frame(orjson.dumps(body), event)
    except orjson.JSONEncodeError:
        # orjson writes 254 levels. A canonical event may use all of them, and some dialects wrap a
        # part of it in further levels.
        return Frame(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(), event)


def epoch_s(event: JsonObject) -> float:
    """An envelope's time in seconds since 1970."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()
