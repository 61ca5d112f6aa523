"""Provides the bus, the only code of Penstock that uses NATS.

Services import the classes and errors of the bus from here: `from penstock.bus import Bus,
RawWriter`. Subjects, streams and message headers are modules of this package; records are in the
modules of `records`, and functions in the packages `read`, `write`, `state` and `admin`.

Every call that needs an answer of NATS raises BusError without one (see `errors`). `Raises:` names
only the errors that callers handle apart.
"""

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout

from penstock.bus.bus import Bus
from penstock.bus.connection.incoming import Incoming, Listener
from penstock.bus.connection.retry import RETRY_S
from penstock.bus.connection.settings import BusSettings
from penstock.bus.errors import (
    BusError,
    BusUnavailable,
    FenceConflict,
    HistoryLost,
    MessageTooLarge,
    NotThereYet,
    ObjectGone,
    OutcomeUnknown,
    StartUpError,
    StreamFull,
)
from penstock.bus.messages import Message, Stored
from penstock.bus.read.follow import Follow, Followed
from penstock.bus.read.reader import Reader
from penstock.bus.read.work_queue import Consumer, NeverFinished, Retry, WorkQueue
from penstock.bus.state.fair_share import FairShare
from penstock.bus.state.kv import Bucket, Entry
from penstock.bus.state.leases import Lease
from penstock.bus.state.losses import Loss
from penstock.bus.state.peers import Peers
from penstock.bus.write.raw_writer import RawWriter

__all__ = [
    "RETRY_S",
    "Bucket",
    "Bus",
    "BusError",
    "BusSettings",
    "BusUnavailable",
    "Consumer",
    "Entry",
    "FairShare",
    "FenceConflict",
    "Follow",
    "Followed",
    "HistoryLost",
    "Incoming",
    "Lease",
    "Listener",
    "Loss",
    "Message",
    "MessageTooLarge",
    "Msg",
    "NatsError",
    "NatsTimeout",
    "NeverFinished",
    "NotThereYet",
    "ObjectGone",
    "OutcomeUnknown",
    "Peers",
    "RawWriter",
    "Reader",
    "Retry",
    "StartUpError",
    "Stored",
    "StreamFull",
    "Subscription",
    "WorkQueue",
]
