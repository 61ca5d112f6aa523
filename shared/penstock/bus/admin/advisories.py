"""What the server delivered as often as a consumer allows, and then no more, becomes a dead letter.

The server tells of it in an advisory, which is a core message; the stream ADVISORIES keeps it until
it was dealt with. Our own work queues give up before it comes to that (see `pull.WorkQueue`). What
is left are messages that could not even be given up, and the consumers of subscribers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import orjson

from penstock.bus import streams
from penstock.bus.read.direct import Stored
from penstock.bus.read.pull import NeverFinished, WorkQueue
from penstock.bus.subjects import MAX_DELIVERIES

if TYPE_CHECKING:
    from penstock.bus.bus import Bus

log = logging.getLogger(__name__)

WATCHED = frozenset({streams.COMMANDS, streams.RAW, streams.EVENTS, streams.SCHEDULES})


def exhausted(
    bus: Bus,
    durable: str,
    bury: Callable[[str, Stored, Exception], Awaitable[None]],
    end: Callable[[Stored, Exception], Awaitable[None]],
    on_poison: Callable[[Stored, Exception], Awaitable[None]],
) -> WorkQueue:
    """A queue of what was delivered too often. `bury` gets the service, the message, and why.

    `end` gets a command, to end the run that nobody will carry it out for, and why. The same
    advisory may come twice: both must bear that. The service is the durable's name up to
    its first dash, which is how ours are named.
    """

    async def handle(stored: Stored) -> None:
        advisory = orjson.loads(stored.payload)
        stream, consumer = advisory["stream"], advisory["consumer"]
        if stream not in WATCHED:
            log.info("the consumer %s of %s gave a message up: not ours", consumer, stream)
            return
        message = await bus.at(stream, advisory["stream_seq"])
        if message is None:
            log.warning(
                "the consumer %s of %s gave up its message %d, which is gone: done meanwhile, or "
                "aged",
                *(consumer, stream, advisory["stream_seq"]),
            )
            return
        message.delivered = advisory["deliveries"]
        service = consumer.partition("-")[0]
        why = NeverFinished(message.delivered)
        await bury(service, message, why)
        if stream == streams.COMMANDS:
            await end(message, why)
            # a work queue would keep for ever what nobody acknowledges
            await bus.delete(stream, message.sequence)

    return WorkQueue(
        bus,
        streams.ADVISORIES,
        durable,
        [f"{MAX_DELIVERIES}.>"],
        handle,
        on_poison=on_poison,
    )
