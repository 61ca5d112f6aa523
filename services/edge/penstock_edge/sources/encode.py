"""Encodes a message of the bus as an item. A message that cannot be read becomes a notice."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.bus import Bus, BusError, ObjectGone, Stored, subjects
from penstock.bus.messages import SEQUENCE, Unreadable
from penstock.bus.streams import events_for
from penstock.bus.write.objects import is_reference, unwrapped
from penstock.log_fields import run_of
from penstock_edge.sources.history import History
from penstock_edge.views.cursor import StreamSequence
from penstock_edge.views.items import Encoding, Item
from penstock_edge.views.upstream_frames import is_raw
from penstock_edge.views.view import View

log = logging.getLogger(__name__)

OBJECT_TRIES: Final = 3
OBJECT_RETRY_S: Final = 0.5
FOLD_TRIES: Final = 40
FOLD_RETRY_S: Final = 0.05


def encode_now(view: View, encoding: Encoding, stored: Stored) -> Item | None:
    """Encode one message; None if `encode` must first read something from NATS. Nearly all messages
    need no such read, and are saved the cost of a coroutine."""
    if is_reference(stored.payload) and _must_unwrap(stored):
        return None
    try:
        return encoding.feed(stored) if encoding.is_ready(stored) else None
    except Exception as error:
        return _unreadable(view, stored, error)


async def encode(bus: Bus, view: View, encoding: Encoding, stored: Stored) -> Item:
    """Read from NATS what the encoding needs, then encode. If the message cannot be read, the item
    is a notice, so that a client sees that one is missing."""
    try:
        if _must_unwrap(stored):
            stored = await with_object(bus, stored)
        if (start := encoding.missing_from(stored)) is not None:
            await _fold(bus, encoding, stored, start)
        await encoding.prepare(stored)
        return encoding.feed(stored)
    except (BusError, ObjectGone) as error:
        extra = run_of(stored.subject)
        text = "the payload of %s %d cannot be read, so clients get a notice: %s"
        log.warning(text, stored.subject, stored.sequence, error, extra=extra)
        return Item(stored.sequence, [view.notice("payload_lost", str(error))])
    except Exception as error:
        return _unreadable(view, stored, error)


def _must_unwrap(stored: Stored) -> bool:
    """Return whether the payload is elsewhere or cannot be opened. A source frame may look like a
    reference, and is none."""
    if is_raw(stored):
        return isinstance(stored.payload, Unreadable)
    return is_reference(stored.payload)


def _unreadable(view: View, stored: Stored, error: Exception) -> Item:
    # An encoder may raise any exception for a body that is not an event. If the exception ended the
    # hub, each client that reconnects would fail again at the same message.
    expected = isinstance(error, (ValueError, KeyError, TypeError))
    text = "%s %d cannot be read: %r"
    log.warning(
        text,
        stored.subject,
        stored.sequence,
        error,
        exc_info=None if expected else error,
        extra=run_of(stored.subject),
    )
    text = f"message {stored.sequence} cannot be read"
    return Item(stored.sequence, [view.notice("unreadable_event", text)])


async def _fold(bus: Bus, encoding: Encoding, upto: Stored, start: StreamSequence) -> None:
    run_id = subjects.run_id_of(upto.subject)
    stream, run = events_for(run_id), (subjects.events_of_run(run_id),)
    newest = int(upto.headers[SEQUENCE]) - 1
    for _ in range(FOLD_TRIES):
        history = History(bus, stream, lambda: run, start)
        while found := await history.before(upto.sequence):
            for stored in found:
                encoding.fold(await with_object(bus, stored))
            start = StreamSequence(found[-1].sequence + 1)
            if int(found[-1].headers[SEQUENCE]) == newest:
                return
        # An event is missing. Either the replica lags behind, and the next read finds the event, or
        # the event has expired.
        await asyncio.sleep(FOLD_RETRY_S)
    log.warning(
        "run %s: some events before %d are no longer stored, so later frames may be incomplete",
        run_id,
        upto.sequence,
    )


async def with_object(bus: Bus, stored: Stored) -> Stored:
    """Return the event with its payload from the object store. Raises BusError, ObjectGone."""
    for _ in range(OBJECT_TRIES - 1):
        try:
            return await unwrapped(bus, stored)
        except BusError:
            await asyncio.sleep(OBJECT_RETRY_S)
    return await unwrapped(bus, stored)
