"""Makes dead letters of messages that the server has stopped delivering.

After the largest number of deliveries that a consumer allows, the server publishes an advisory, a
core message. The stream ADVISORIES keeps it until it is processed. Penstock's own work queues give
messages up before that (see `read.work_queue`). What remains are messages for which this failed,
and the messages of subscribers' consumers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import orjson

from penstock.bus import streams
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.messages import Stored
from penstock.bus.read import leader
from penstock.bus.read.work_queue import NeverFinished, WorkQueue
from penstock.bus.subjects import MAX_DELIVERIES

log = logging.getLogger(__name__)

WATCHED = frozenset({streams.COMMANDS, streams.RAW, streams.EVENTS, streams.SCHEDULES})


def exhausted(
    bus: HasJetStream,
    durable: str,
    bury: Callable[[str, Stored, Exception], Awaitable[None]],
    end: Callable[[Stored, Exception], Awaitable[None]],
    on_poison: Callable[[Stored, Exception], Awaitable[None]],
) -> WorkQueue:
    """The queue of messages that were delivered too often.

    `bury` gets the service, the message, and the reason. `end` gets a command that no service will
    carry out, and the reason, to end its run. Both must be safe to repeat, since the same advisory
    may come twice. The service is the durable consumer's name up to its first dash.
    """

    async def handle(stored: Stored) -> None:
        advisory = orjson.loads(stored.payload)
        stream, consumer = advisory["stream"], advisory["consumer"]
        if stream not in WATCHED:
            log.info("the consumer %s of %s gave up a message of another stream", consumer, stream)
            return
        message = await leader.at(bus, stream, advisory["stream_seq"])
        if message is None:
            log.warning(
                "the consumer %s of %s gave up its message %d, which is gone: it was processed "
                "meanwhile, or has expired",
                *(consumer, stream, advisory["stream_seq"]),
            )
            return
        message.delivered = advisory["deliveries"]
        service = consumer.partition("-")[0]
        why = NeverFinished(message.delivered)
        await bury(service, message, why)
        if stream == streams.COMMANDS:
            await end(message, why)
            # Without an acknowledgement the work queue would keep the message forever.
            await leader.delete(bus, stream, message.sequence)

    return WorkQueue(
        bus,
        streams.ADVISORIES,
        durable,
        [f"{MAX_DELIVERIES}.>"],
        handle,
        on_poison=on_poison,
    )
