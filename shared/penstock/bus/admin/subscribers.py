"""Makes the durable consumers of the NATS user `subscriber`, which may not make consumers itself.

A user that may make a consumer chooses the subject of the consumer's deliveries, and the server
does not check whether the user may publish to this subject.
"""

from __future__ import annotations

from penstock.bus.admin.ensure import shards_of
from penstock.bus.admin.permissions import SUBSCRIBER
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import CONSUMER_NOT_FOUND, ApiError
from penstock.bus.state.kv import Buckets
from penstock.bus.streams import events_of

ACK_WAIT_S = 30
MAX_DELIVER = 20


async def ensure(bus: Buckets) -> list[str]:
    """Make the consumer of each shard if it does not exist; return the streams that got one.

    The consumer delivers every present and future event of its stream. It does not change how long
    events are kept.

    Raises:
        BusError: the server refuses the request, or does not answer.
    """
    names = [events_of(shard) for shard in range((await shards_of(bus)).made)]
    return [name for name in names if await _ensure(bus, name)]


async def _ensure(bus: HasJetStream, stream: str) -> bool:
    api = bus.jetstream.api
    try:
        await api(f"CONSUMER.INFO.{stream}.{SUBSCRIBER}")
        return False
    except ApiError as error:
        if error.code != CONSUMER_NOT_FOUND:
            raise
    await api(
        f"CONSUMER.DURABLE.CREATE.{stream}.{SUBSCRIBER}",
        {
            "stream_name": stream,
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
