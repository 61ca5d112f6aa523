"""The durable consumer of the user `subscriber`, who may not make one.

Who may make a consumer names the subject that its messages go to, which the server does not check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.bus.admin.permissions import SUBSCRIBER
from penstock.bus.errors import ApiError
from penstock.bus.streams import EVENTS

if TYPE_CHECKING:
    from penstock.bus.bus import Bus

ACK_WAIT_S = 30
MAX_DELIVER = 20
_CONSUMER_NOT_FOUND = 10014


async def ensure(bus: Bus) -> bool:
    """Make it where there is none; whether it was made. One that there is stays. Raises BusError.

    It gets every event that EVENTS holds and will hold, and keeps nothing there any longer.
    """
    try:
        await bus.api(f"CONSUMER.INFO.{EVENTS}.{SUBSCRIBER}")
        return False
    except ApiError as error:
        if error.code != _CONSUMER_NOT_FOUND:
            raise
    await bus.api(
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
