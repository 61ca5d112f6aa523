"""Wraps the keys of runs with the operator's present key, so that an earlier one can be removed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bus import streams, subjects
from penstock.bus.errors import FenceConflict
from penstock.bus.messages import Message, Stored, stored_s
from penstock.bus.read import leader
from penstock.bus.read.direct import replay
from penstock.bus.write import fence
from penstock.bus.write.fence import Writes


@dataclass(slots=True)
class Rewrapped:
    """How many keys were wrapped anew, and how many there are."""

    changed: int = 0
    keys: int = 0


async def rewrap(bus: Writes) -> Rewrapped:
    """Wrap every key with the first of the operator's keys. Runs go on meanwhile; a call that was
    interrupted may be repeated.

    Raises:
        KeyMissing: a key is wrapped with an operator's key that is not in the settings.
    """
    done = Rewrapped()
    async for stored in replay(bus, streams.KEYS, subjects.content_key("*")):
        done.changed += await _rewrap(bus, stored)
        done.keys += 1
    return done


async def _rewrap(bus: Writes, stored: Stored) -> bool:
    masters = bus.jetstream.content.masters
    if masters.is_current(stored.payload):
        return False
    run_id = stored.subject.rpartition(".")[2]
    last = await leader.tail(bus, streams.KEYS, stored.subject)
    if last is None:
        return False  # the key was destroyed meanwhile
    if last.sequence == stored.sequence:
        keys = masters.unwrap(run_id, stored.payload, stored_s(stored))
        value = masters.wrap(run_id, keys)
        message = Message(stored.subject, value, {})
        try:
            await fence.append(bus, stored.subject, [message], last.sequence)
        except FenceConflict:
            return False  # the key was destroyed meanwhile
    # The new message is stored before the old one is deleted, so that a key is never lost. The
    # server overwrites the bytes of the old one.
    await bus.jetstream.api(f"STREAM.MSG.DELETE.{streams.KEYS}", {"seq": stored.sequence})
    return True
