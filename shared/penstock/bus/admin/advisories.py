"""Makes dead letters of messages that the server has stopped delivering.

When a message has been delivered as often as its consumer allows, or when a client terminates the
message, the server publishes an advisory, which the stream ADVISORIES keeps until it is processed.
Penstock's own work queues normally give a message up earlier (see `read.work_queue`). So an
advisory is about a message that a work queue failed to give up, or about a message of a
subscriber's consumer: subscribers may not write dead letters, so they terminate a message with a
reason (`penstock.subscribe`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import orjson

from penstock.bus import streams
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.messages import Stored
from penstock.bus.read import leader
from penstock.bus.read.work_queue import BURIED, Consumer, Handle, NeverFinished
from penstock.bus.subjects import MAX_DELIVERIES, TERMINATED

log = logging.getLogger(__name__)

# The kinds of streams whose messages become dead letters here.
WATCHED = frozenset({streams.COMMANDS, streams.RAW, streams.EVENTS, streams.SCHEDULES})
ADVISORIES = Consumer(
    stream=streams.ADVISORIES,
    durable="normalizer-advisories",
    subjects=(f"{MAX_DELIVERIES}.>", f"{TERMINATED}.>"),
)


class Terminated(Exception):
    """The client that took a message has given the message up. The text is the client's reason."""


def handler_of_advisories(
    bus: HasJetStream,
    store_dead_letter: Callable[[str, Stored, Exception], Awaitable[None]],
    end: Callable[[Stored, Exception], Awaitable[None]],
) -> Handle:
    """Return the handler of the advisories.

    `store_dead_letter` gets the service (the durable consumer's name up to the first dash), the
    message, and the reason. `end` ends the run of a command that no service will carry out.
    Repeated calls must do no harm, since the same advisory may be delivered twice.
    """

    async def handle(stored: Stored) -> None:
        advisory = orjson.loads(stored.payload)
        stream, consumer = advisory["stream"], advisory["consumer"]
        if streams.kind_and_shard(stream)[0] not in WATCHED:
            log.info("the consumer %s of %s gave up a message of another stream", consumer, stream)
            return
        if advisory.get("reason") == BURIED:
            return
        message = await leader.at(bus, stream, advisory["stream_seq"])
        if message is None and stored.subject.startswith(TERMINATED):
            # The server also reports each message that was deleted before it was acknowledged, such
            # as a scheduled message that a service has processed.
            log.debug("message %d of %s was deleted", advisory["stream_seq"], stream)
            return
        if message is None:
            log.warning(
                "the consumer %s of %s gave up its message %d, which is gone: it was processed "
                "meanwhile, or has expired",
                consumer,
                stream,
                advisory["stream_seq"],
            )
            return
        message.delivered = advisory["deliveries"]
        service = consumer.partition("-")[0]
        reason: Exception = NeverFinished(message.delivered)
        if stored.subject.startswith(TERMINATED):
            reason = Terminated(advisory.get("reason") or "the client gave no reason")
        await store_dead_letter(service, message, reason)
        if stream == streams.COMMANDS:
            await end(message, reason)
            # No consumer acknowledges the message any more. Without this deletion, COMMANDS would
            # keep the message forever.
            await leader.delete(bus, stream, message.sequence)

    return handle
