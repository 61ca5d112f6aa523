"""Defines the phases of a client (see `client`), and the reasons why a client's stream ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock_edge.views.cursor import ByteOffset, RingPosition


class End(Enum):
    """Why a client's stream has ended."""

    COMPLETE = "complete"  # the client has all items that the request asked for
    LEFT = "left"  # the client has closed the connection
    EXPIRED = "expired"  # the client's credential has expired or was revoked
    AGED = "aged"  # the stream was open for the maximum time; the client reconnects
    DRAINED = "drained"  # this edge shuts down; the client reconnects to another edge
    SLOW = "slow"  # the client does not read
    STOPPED = "stopped"  # the hub was stopped
    FAILED = "failed"  # the hub has failed


@dataclass(slots=True)
class Live:
    """The phase in which a client takes items from the ring."""

    at: RingPosition
    taken_bytes: ByteOffset  # the number of bytes of all items before `at`


class InSync(Enum):
    """The phase in which the hub writes the items; the `InSyncGroup` knows the client's
    position."""

    IN_SYNC = "in sync"


IN_SYNC: Final = InSync.IN_SYNC


class Idle(Enum):
    """The result of `Client.next_write` if there is nothing to write until the next `wake`."""

    IDLE = "idle"


IDLE: Final = Idle.IDLE
