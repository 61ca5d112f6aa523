"""From a message of the bus to an item: objects fetched, its run folded, and nothing left out."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from penstock.bus import Bus, BusError, ObjectGone, Stored, subjects
from penstock.bus.messages import SEQUENCE
from penstock.bus.streams import EVENTS
from penstock.bus.write.objects import unwrap
from penstock_edge.sources.history import Past
from penstock_edge.views.dialects import View
from penstock_edge.views.items import Encoding, Item
from penstock_edge.views.upstream_frames import is_raw

log = logging.getLogger(__name__)

OBJECT_TRIES: Final = 3
OBJECT_RETRY_S: Final = 0.5
FOLD_TRIES: Final = 40
FOLD_RETRY_S: Final = 0.05


async def encode(bus: Bus, view: View, encoding: Encoding, stored: Stored) -> Item:
    """One message as an item; one that cannot be read becomes a notice, never nothing."""
    try:
        if not is_raw(stored):
            stored = await _whole(bus, stored)
        if (start := encoding.lacks(stored)) is not None:
            await _fold(bus, encoding, stored, start)
        await encoding.meet(stored)
        return encoding.feed(stored)
    except (BusError, ObjectGone) as error:
        log.warning("%s %d: %s", stored.subject, stored.sequence, error)
        return Item(stored.sequence, [view.notice("payload_lost", str(error))])
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s %d cannot be read: %r", stored.subject, stored.sequence, error)
        text = f"message {stored.sequence} cannot be read"
        return Item(stored.sequence, [view.notice("unreadable_event", text)])


async def _fold(bus: Bus, encoding: Encoding, upto: Stored, start: int) -> None:
    """What has happened in the message's run before it."""
    run = (subjects.events_of_run(subjects.run_id_of(upto.subject)),)
    wanted = int(upto.headers[SEQUENCE]) - 1
    for _ in range(FOLD_TRIES):
        past = Past(bus, EVENTS, lambda: run, start)
        while found := await past.below(upto.sequence):
            for stored in found:
                encoding.fold(await _whole(bus, stored))
            start = found[-1].sequence + 1
            if int(found[-1].headers[SEQUENCE]) == wanted:
                return
        await asyncio.sleep(FOLD_RETRY_S)  # a replica lags behind what was republished
    log.warning("%s: not all of what was before %d is left", run[0], upto.sequence)


async def _whole(bus: Bus, stored: Stored) -> Stored:
    for _ in range(OBJECT_TRIES - 1):
        try:
            return replace(stored, payload=await unwrap(bus, stored.payload))
        except BusError:
            await asyncio.sleep(OBJECT_RETRY_S)
    return replace(stored, payload=await unwrap(bus, stored.payload))
