"""Deletes messages so that the server overwrites their bytes in its files.

A purge, and a message that another one replaces, only leave the stream: their bytes stay in the
file until the server writes the file anew, which may take weeks. A secure delete overwrites one
message, in each replica, and takes one request. So messages are deleted one after another, while
others use the stream (docs/decisions/0381). Sealed messages whose key is destroyed need not be
overwritten, which is quicker. They are not purged either: decision 0245.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import ContentErased
from penstock.bus.messages import Stored, Unreadable
from penstock.bus.read import direct, leader
from penstock.bus.write import objects

BATCH: Final = 100
# The longest rest in seconds after a delete, which otherwise is as long as the delete took: it is a
# write to the disk, for which the publishes of others wait.
MAX_REST_S: Final = 0.1


async def overwrite(
    bus: HasJetStream, stream: str, pattern: str, start: int = 1, before: int | None = None
) -> None:
    """Delete all messages that match, from stream sequence `start` on and before `before`, and the
    objects to which they refer. A repeated call deletes what is left. Raises BusError."""
    # The leader says where to go on, because a replica that lags behind may lack messages.
    while (first := await leader.first(bus, stream, pattern, start)) is not None:
        if before is not None and first.sequence >= before:
            return
        found, _ = await direct.read(bus, stream, pattern, first.sequence, BATCH)
        found = [each for each in found or [first] if before is None or each.sequence < before]
        for each in found:
            began_s = time.monotonic()
            await _overwrite(bus, stream, each)
            await asyncio.sleep(min(time.monotonic() - began_s, MAX_REST_S))
        start = first.sequence


async def overwrite_object(bus: HasJetStream, name: str) -> None:
    """Delete the object of this name, if there is one. Raises BusError."""
    subjects = await objects.info_of(bus, name)
    if subjects is not None:
        description, content = subjects
        await overwrite(bus, objects.STREAM, content)
        await overwrite(bus, objects.STREAM, description)


async def _overwrite(bus: HasJetStream, stream: str, stored: Stored) -> None:
    payload = stored.payload
    is_destroyed = isinstance(payload, Unreadable) and isinstance(payload.error, ContentErased)
    if stream != objects.STREAM and not is_destroyed and objects.is_reference(payload):
        # Without the message, nobody would find the object.
        await overwrite_object(bus, objects.name_in(payload))
    await leader.delete(bus, stream, stored.sequence, overwrite=not is_destroyed)
