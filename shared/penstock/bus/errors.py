"""Defines the errors of the bus."""

from __future__ import annotations

# err_codes of the JetStream API
CONSUMER_NOT_FOUND = 10014
MESSAGE_NOT_FOUND = 10037
STREAM_NAME_IN_USE = 10058
STREAM_NOT_FOUND = 10059
# JetStream is off for the account (10039) or on the server (10076)
NOT_ENABLED = frozenset({10039, 10076})


class BusError(Exception):
    """The base of all errors of the bus."""


class BusUnavailable(BusError):
    """There is no connection, or no leader answered. Nothing was stored: retry."""


class NotPermitted(BusUnavailable):
    """This NATS user lacks a permission, which the operator must grant. Nothing was stored."""


class NoJetStream(BusUnavailable):
    """The server or the account has no JetStream; a server whose disk is full disables it, too."""


class OutcomeUnknown(BusError):
    """No answer came in time. The message may be stored or not: read the tail from the leader."""


class FenceConflict(BusError):
    """Another writer stored a message first (err_code 10071, or 10164 from a replica). Read the
    tail again, and decide again."""


class HistoryLost(FenceConflict):
    """Messages that this writer had stored are gone: NATS restarted with an older store."""


class StreamFull(BusError):
    """A limit of the stream was reached."""


class MessageTooLarge(BusError):
    """The message exceeds the server's max_payload."""


class StartUpError(BusError):
    """Penstock cannot use the server. The text contains the reason and advice."""


class ApiError(BusError):
    """The JetStream API refused a request; `code` is its err_code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (err_code {code})")
        self.code = code


class NotThereYet(StartUpError):
    """No server answers, or the server's JetStream does not answer. A later attempt may succeed."""


class ObjectGone(LookupError):
    """The bus answers, but a payload that was stored by reference is gone: do not retry."""


class ContentErased(ObjectGone, ValueError):
    """The content of a message is gone for good, because the key of its run was destroyed."""


class ContentRefused(ObjectGone, ValueError):
    """Sealed content was changed, or stands where it does not belong."""


# The err_codes of a cluster without a leader, or with fewer servers than replicas.
_FORMING = frozenset({10005, 10008})


def refusal(error: BusError) -> type[StartUpError]:
    """Return the class of the error to raise when `error` has ended the start of a service.

    Returns NotThereYet if a later attempt may succeed, because a cluster may still form or elect a
    leader. Returns StartUpError otherwise.
    """
    if isinstance(error, ApiError):
        return NotThereYet if error.code in _FORMING else StartUpError
    if isinstance(error, NotPermitted | NoJetStream):
        return StartUpError
    return NotThereYet if isinstance(error, BusUnavailable | OutcomeUnknown) else StartUpError
