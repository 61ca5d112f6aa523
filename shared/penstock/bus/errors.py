"""What can go wrong on the bus.

BusError
├── BusUnavailable      no connection, or no leader answered: nothing was stored, try again
├── OutcomeUnknown      no answer in time: it may be stored or not, read the tail
├── FenceConflict       somebody else wrote first: reload the tail and decide anew
├── StreamFull          a limit of the stream was reached (discard new)
├── MessageTooLarge     over the server's max_payload
└── StartUpError        the server cannot carry Penstock: the text says what to do
"""

from __future__ import annotations


class BusError(Exception):
    """Anything that the bus could not do."""


class BusUnavailable(BusError):
    """No connection, or no leader answered. Nothing was stored: try again."""


class OutcomeUnknown(BusError):
    """No answer came in time. The message may be stored or not: read the tail from the leader."""


class FenceConflict(BusError):
    """Somebody else wrote first (err_code 10071, or 10164 from a replica)."""


class StreamFull(BusError):
    """A limit of the stream was reached."""


class MessageTooLarge(BusError):
    """The message is over the server's max_payload."""


class StartUpError(BusError):
    """The server cannot carry Penstock. The text says why and what to do."""
