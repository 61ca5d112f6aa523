"""The bus: the only code of Penstock that speaks NATS."""

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from penstock.bus.client import Bus, BusSettings
from penstock.bus.direct import Stored
from penstock.bus.errors import (
    BusError,
    BusUnavailable,
    FenceConflict,
    HistoryLost,
    NotThereYet,
    ObjectGone,
    OutcomeUnknown,
    StartUpError,
)
from penstock.bus.publisher import Message

__all__ = [
    "Bus",
    "BusError",
    "BusSettings",
    "BusUnavailable",
    "FenceConflict",
    "HistoryLost",
    "Message",
    "Msg",
    "NotThereYet",
    "ObjectGone",
    "OutcomeUnknown",
    "StartUpError",
    "Stored",
    "Subscription",
]
