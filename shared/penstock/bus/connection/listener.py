"""Defines a subscription whose messages are delivered as they are parsed."""

from __future__ import annotations

from collections.abc import Callable

from penstock.bus.connection.incoming import Incoming


class Listener:
    """A subscription that calls `deliver` with each message, synchronously, in order of arrival.

    nats-py's `Subscription` has a queue and a task: two turns of the event loop for each message,
    and 5 KB for each subscription. `deliver` must not wait, and must bound the memory that it
    keeps, since no queue limits the messages that wait for `deliver`. If `deliver` raises, the
    error is logged, and the next message is delivered.

    The client keeps this object among nats-py's subscriptions, so that nats-py subscribes it again
    after each reconnect. For this, nats-py uses the attributes that begin with an underscore.
    """

    __slots__ = ("_end", "_id", "_queue", "_subject", "deliver", "is_patient")

    _max_msgs = 0
    _received = 0
    _jsi = None
    _wait_for_msgs_task = None
    _message_iterator = None
    _pending_next_msgs_calls = None

    def __init__(
        self,
        number: int,
        subject: str,
        queue: str,
        deliver: Callable[[Incoming], None],
        end: Callable[[int], None],
        is_patient: bool = False,
    ) -> None:
        self._id = number
        self._subject = subject
        self._queue = queue
        self._end = end
        self.deliver = deliver
        # whether the messages may wait for further messages (see `Pace`)
        self.is_patient = is_patient

    @property
    def number(self) -> int:
        return self._id

    @property
    def subject(self) -> str:
        return self._subject

    def stop(self) -> None:
        """End the subscription: not even a message that has arrived already is delivered."""
        self._end(self._id)

    async def _drain(self) -> None:
        self.stop()
