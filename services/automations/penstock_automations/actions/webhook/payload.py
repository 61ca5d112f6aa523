"""Makes the body of a webhook: `{type, timestamp, data}`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

_REFERENCE = ("run_id", "sequence", "session_id", "leg", "event")


def body_of(
    type_: str,
    event: bytes,
    payload: Literal["full", "reference"],
    max_bytes: int,
    links: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """Return the body for a canonical event.

    With "full", `data` is the event itself, byte for byte. With "reference", `data` has only the
    ids and the type of the event. If the full body would be larger than `max_bytes`, `data` is made
    as with "reference", and its field `omitted` gives the reason.
    """
    parsed: Mapping[str, Any] = orjson.loads(event)
    head = orjson.dumps({"type": type_, "timestamp": parsed["timestamp"]})[:-1]
    tail = b',"links":' + orjson.dumps(links) + b"}" if links else b"}"
    if payload == "full":
        full = head + b',"data":' + event + tail
        if len(full) <= max_bytes:
            return full
    data = {name: parsed[name] for name in _REFERENCE if name in parsed}
    if payload == "full":
        data["omitted"] = f"the event has {len(event)} bytes; at most {max_bytes} are sent"
    return head + b',"data":' + orjson.dumps(data) + tail
