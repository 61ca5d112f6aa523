"""Payloads too large for one message: kept in the object store, carried by reference.

Written by nats-py. Read by direct get, since nats-py's reader waits for ever when a chunk is
missing, and leaves a consumer behind each time.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import orjson
from nats.errors import Error as NatsError

from penstock.bus.errors import BusUnavailable, ObjectGone
from penstock.bus.read.direct import replay
from penstock.bus.write.fence import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from penstock.bus.bus import Bus

_BUCKET = "payloads"
_STREAM = f"OBJ_{_BUCKET}"
_MARK = b'{"penstock_object":"'


async def wrap(bus: Bus, name: str, payload: bytes) -> bytes:
    """The payload itself, or a reference to it when it is over 512 KiB.

    `name` must be the same for the same payload: a repeat then finds it there and writes nothing.
    Raises BusUnavailable, OutcomeUnknown.
    """
    if len(payload) <= MAX_MESSAGE_BYTES:
        return payload
    info = await _info(bus, name)
    if info is None or info["digest"] != _digest(payload):
        await bus.client.standing(bus.settings.publish_timeout_s)
        try:
            store = await bus.js.object_store(_BUCKET)
            await store.put(name, payload)
        except NatsError as error:
            raise BusUnavailable(f"the object store did not take {name}: {error}") from error
    return _MARK + name.encode() + b'"}'


async def unwrap(bus: Bus, payload: bytes) -> bytes:
    """What `wrap` was given.

    Raises ObjectGone when there is no such object (any more), or not all of it; BusUnavailable,
    OutcomeUnknown.
    """
    if not payload.startswith(_MARK):
        return payload
    name = payload[len(_MARK) : -2].decode()
    info = await _info(bus, name)
    if info is None:
        raise ObjectGone(f"there is no object {name} (any more)")
    subject = f"$O.{_BUCKET}.C.{info['nuid']}"
    whole = b"".join([chunk.payload async for chunk in replay(bus, _STREAM, subject)])
    if _digest(whole) == info["digest"]:
        return whole
    # a replica that lags may have answered, or the object was written anew meanwhile
    state = (await bus.api(f"STREAM.INFO.{_STREAM}", {"subjects_filter": subject}))["state"]
    has_all = (state.get("subjects") or {}).get(subject, 0) >= info["chunks"]
    if has_all or await _info(bus, name) != info:
        raise BusUnavailable(f"the object {name} could not be read whole")
    raise ObjectGone(f"the object {name} is not complete (any more)")


async def _info(bus: Bus, name: str) -> dict[str, Any] | None:
    """The object's description as NATS's object store keeps it: nuid, size, chunks, digest."""
    subject = f"$O.{_BUCKET}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
    stored = await bus.tail(_STREAM, subject)
    info: dict[str, Any] | None = orjson.loads(stored.payload) if stored is not None else None
    return None if info is None or info.get("deleted") else info


def _digest(payload: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(payload).digest()).decode()
