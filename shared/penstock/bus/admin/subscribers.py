"""Makes the durable consumer of the NATS user `subscriber`, which may not make consumers itself.

A user that may make a consumer chooses the subject of the consumer's deliveries, and the server
does not check whether the user may publish to this subject.
"""

from __future__ import annotations

from penstock.bus.admin.permissions import SUBSCRIBER
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import CONSUMER_NOT_FOUND, ApiError
from penstock.bus.streams import EVENTS

ACK_WAIT_S = 30
MAX_DELIVER = 20


async def ensure(bus: HasJetStream) -> bool:
    """Make the consumer if it does not exist; return whether this call made the consumer.

    The consumer delivers every present and future event of EVENTS. It does not change how long
    events are kept.

    Raises:
        BusError: the server refuses the request, or does not answer.
    """
    api = bus.jetstream.api
    try:
        await api(f"CONSUMER.INFO.{EVENTS}.{SUBSCRIBER}")
        return False
    except ApiError as error:
        if error.code != CONSUMER_NOT_FOUND:
            raise
    await api(
        f"CONSUMER.DURABLE.CREATE.{EVENTS}.{SUBSCRIBER}",
        {
            "stream_name": EVENTS,
            "config": {
                "durable_name": SUBSCRIBER,
                "description": "Every event once, for the NATS user of that name",
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "ack_wait": ACK_WAIT_S * 1_000_000_000,
                "max_deliver": MAX_DELIVER,
                "max_ack_pending": 1000,
            },
        },
    )
    return True
