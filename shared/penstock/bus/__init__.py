"""The bus: the only code of Penstock that speaks NATS."""

from penstock.bus.client import Bus, BusSettings
from penstock.bus.direct import Stored
from penstock.bus.errors import (
    BusError,
    BusUnavailable,
    FenceConflict,
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
    "Message",
    "OutcomeUnknown",
    "StartUpError",
    "Stored",
]
