"""Payloads too large for one message: kept in the object store, carried by reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from penstock.bus.errors import BusUnavailable
from penstock.bus.fence import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from penstock.bus.client import Bus

_BUCKET = "payloads"
_MARK = b'{"penstock_object":"'


async def wrap(bus: Bus, name: str, payload: bytes) -> bytes:
    """The payload itself, or a reference to it when it is over 512 KiB.

    `name` must be the same for the same payload: a repeat then writes the same object.
    """
    if len(payload) <= MAX_MESSAGE_BYTES:
        return payload
    try:
        store = await bus.js.object_store(_BUCKET)
        await store.put(name, payload)
    except (NatsError, JetStreamError) as error:
        raise BusUnavailable(f"the object store did not take {name}: {error}") from error
    return _MARK + name.encode() + b'"}'


async def unwrap(bus: Bus, payload: bytes) -> bytes:
    """What `wrap` was given. Raises BusUnavailable when the object cannot be read (any more)."""
    if not payload.startswith(_MARK):
        return payload
    name = payload[len(_MARK) : -2].decode()
    try:
        store = await bus.js.object_store(_BUCKET)
        result = await store.get(name)
    except (NatsError, JetStreamError) as error:
        raise BusUnavailable(f"the object {name} cannot be read: {error}") from error
    return result.data or b""
