"""What can go wrong on the bus.

BusError
├── BusUnavailable      no connection, or no leader answered: nothing was stored, try again
│   ├── NotPermitted    this user may not do that: somebody must allow it
│   └── NoJetStream     the server, or the account, has none: somebody must switch it on
├── OutcomeUnknown      no answer in time: it may be stored or not, read the tail
├── FenceConflict       somebody else wrote first: reload the tail and decide anew
│   └── HistoryLost     what was stored before is gone: NATS came back with an older store
├── StreamFull          a limit of the stream was reached (discard new)
├── ApiError            the JetStream API refused, with its err_code
├── MessageTooLarge     over the server's max_payload
└── StartUpError        the server cannot carry Penstock: the text says what to do
    └── NotThereYet     no server is there, or none that answers: it may come

ObjectGone              the bus answers, and what was kept there is no more: never try again
"""

from __future__ import annotations

CONSUMER_NOT_FOUND = 10014
STREAM_NOT_FOUND = 10059  # err_codes of the JetStream API
NOT_ENABLED = frozenset({10039, 10076})  # for the account, on the server


class BusError(Exception):
    """Anything that the bus could not do."""


class BusUnavailable(BusError):
    """No connection, or no leader answered. Nothing was stored: try again."""


class NotPermitted(BusUnavailable):
    """NATS does not let this user do that. Nothing was stored; somebody must allow it."""


class NoJetStream(BusUnavailable):
    """The server, or the account, has no JetStream (or switched it off, its disk being full)."""


class OutcomeUnknown(BusError):
    """No answer came in time. The message may be stored or not: read the tail from the leader."""


class FenceConflict(BusError):
    """Somebody else wrote first (err_code 10071, or 10164 from a replica)."""


class HistoryLost(FenceConflict):
    """What this writer had stored is not there any more: NATS came back with an older store."""


class StreamFull(BusError):
    """A limit of the stream was reached."""


class MessageTooLarge(BusError):
    """The message is over the server's max_payload."""


class StartUpError(BusError):
    """The server cannot carry Penstock. The text says why and what to do."""


class ApiError(BusError):
    """The JetStream API said no; `code` is its err_code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (err_code {code})")
        self.code = code


class NotThereYet(StartUpError):
    """No server is there, or JetStream does not answer: it may be about to."""


class ObjectGone(LookupError):
    """A payload that was carried by reference is no more: aged out, or deleted by hand."""


# A cluster that has no leader yet, or not enough servers for the replicas; by err_code.
_FORMING = frozenset({10005, 10008})


def refusal(error: BusError) -> type[StartUpError]:
    """How a start ends: NotThereYet where a cluster may be about to form, or to elect a leader."""
    if isinstance(error, ApiError):
        return NotThereYet if error.code in _FORMING else StartUpError
    if isinstance(error, NotPermitted | NoJetStream):
        return StartUpError
    return NotThereYet if isinstance(error, BusUnavailable | OutcomeUnknown) else StartUpError
