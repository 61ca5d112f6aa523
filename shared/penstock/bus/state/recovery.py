"""Checks after each reconnect whether the streams are still the same and complete.

NATS may restart without its data, or with an older store. A process knows sequences of the streams
that existed when the process started, such as the last sequences of its runs. With new streams of
the same names, it would count on from a sequence of the old stream, and skip messages of the new
one. So until the check is done, `Connection.held_back` delays all other requests. A process makes
no missing stream itself: an operator may still restore the data, and a new empty stream would hide
the loss.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum, auto

import orjson
from nats.errors import Error as NatsError

from penstock.bus.connection.jetstream import JetStream
from penstock.bus.connection.nats_client import PASSES
from penstock.bus.connection.retry import RETRY_S
from penstock.bus.errors import (
    STREAM_NOT_FOUND,
    BusError,
    BusUnavailable,
    NotThereYet,
    StartUpError,
    refusal,
)
from penstock.bus.state.continuity import Continuity
from penstock.bus.state.losses import numbered_streams

CHECK_AGAIN_S = 2.0  # seconds between two comparisons while a stream is missing or was made anew
_NAMED = 3  # the most names in one message, because a server without data lacks all streams

_MISSING = (
    "NATS has lost {}: nothing is sent or read until they are there again. Restore the data (a "
    "backup, the volume), or restart the services to begin with nothing: runs in flight are lost"
)
_OTHERS = (
    "{} was made anew since this service started: the sequences that this service knows belong to "
    "data that are lost. Restart it"
)


class StreamIdentity:
    """Remembers when the streams at the start were created, and compares these times later.

    `created` returns a stream's time of creation, or None when there is no such stream; `created`
    raises BusError while the server does not answer. `found` is called as soon as one stream is
    known to be the same and no stream is missing. `lost` is called with the reason when a stream is
    missing or was made anew.
    """

    def __init__(
        self,
        created: Callable[[str], Awaitable[str | None]],
        found: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        self._created = created
        self._found = found
        self._lost = lost
        self._known: dict[str, str] = {}

    def know(self, stream: str, created: str) -> None:
        self._known[stream] = created

    def remembers(self, stream: str) -> bool:
        return stream in self._known

    async def check(self) -> None:
        """Compare the streams until every stream is known to be the same."""
        unseen, gone = set(self._known), False
        if not unseen:
            self._found()  # a process that remembers no streams has nothing to compare
        while unseen:
            looks = [asyncio.create_task(self._created_at(name, gone)) for name in sorted(unseen)]
            try:
                answers = dict(zip(sorted(unseen), await asyncio.gather(*looks), strict=True))
            finally:
                for look in looks:
                    look.cancel()
            unseen = {name for name, created in answers.items() if created != self._known[name]}
            missing = [name for name, created in answers.items() if created is None]
            others = [name for name in unseen if answers[name]]
            gone = bool(missing or others)
            if others:
                self._lost(_OTHERS.format(_names(others)))
            elif missing:
                self._lost(_MISSING.format(_names(missing)))
            elif len(unseen) < len(answers):
                self._found()
            if unseen:
                await asyncio.sleep(CHECK_AGAIN_S if gone else RETRY_S)

    async def _created_at(self, name: str, gone: bool) -> str | None:
        """Return a stream's time of creation; None without such a stream, empty without an answer.

        Calls `found` when the stream is the same, unless the last comparison found a missing or new
        stream (`gone`).
        """
        try:
            created = await self._created(name)
        except BusError:
            return ""
        if created == self._known[name] and not gone:
            self._found()
        return created


def _names(streams: Iterable[str]) -> str:
    names = sorted(streams)
    rest = len(names) - _NAMED
    if rest <= 1:
        return f"the streams {', '.join(names)}"
    return f"the streams {', '.join(names[:_NAMED])} and {rest} others"


log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 1.0  # seconds that a check after a reconnect waits for a stream's leader
NOTE_S = 2.0  # seconds between two records of how far the streams reach, by a repairing process
LEARN_S = 5.0  # seconds between two searches for losses, by a process that does not repair
ORDER_S = 0.25  # seconds between two checks while a stream is being repaired
ORDER_WAIT_S = 5.0  # seconds that a start waits for a repair


class Phase(Enum):
    """The phase of the check since the last reconnect."""

    OPEN = auto()  # everything works
    COMPARING = auto()  # checks whether the streams are the same streams as at the start
    # checks whether a stream has lost its end, and waits until the stream is repaired
    SETTLING = auto()


class Recovery:
    """Checks the streams after a reconnect, and checks every few seconds for lost stream ends."""

    def __init__(self, jetstream: JetStream, continuity: Continuity, *, repairs: bool) -> None:
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._health = jetstream.health
        self._continuity = continuity
        self._repairs = repairs
        self._identity = StreamIdentity(self._created, self._found, self._lost)
        self._phase = Phase.OPEN
        self._comparing: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None

    async def begin(self, created: Mapping[str, str]) -> None:
        """Remember when the streams were created, and wait until they are complete.

        Raises:
            NotThereYet: the repair of a stream takes too long.
            StartUpError: this user may not read or write the bucket `checkpoints`.
        """
        for name, at in created.items():
            self._identity.know(name, at)
        until = time.monotonic() + ORDER_WAIT_S
        try:
            while reason := await self._continuity.check():
                if time.monotonic() > until:
                    raise NotThereYet(reason)
                await asyncio.sleep(ORDER_S)
            await self._know_new_shards()
        except BusError as error:
            if isinstance(error, StartUpError):
                raise
            raise refusal(error)(
                f"cannot find out whether NATS has lost data: {error}. May this user read and "
                "write the bucket checkpoints?"
            ) from error

    def disconnected(self) -> None:
        """Hold all requests back, since other streams may exist after the reconnect."""
        self.stop()
        self._settling = None
        self._phase = Phase.COMPARING
        self._connection.held_back = "it is not known yet whether the streams are still there"

    def reconnected(self) -> None:
        self._comparing = asyncio.create_task(self._identity.check())

    def stop(self) -> None:
        for task in (self._comparing, self._settling):
            if task is not None:
                task.cancel()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(NOTE_S if self._repairs else LEARN_S)
            if not self._connection.is_usable:
                continue
            try:
                reason = await self._continuity.check()
                await self._know_new_shards()
                if self._repairs:
                    await self._continuity.note()
            except BusError as error:
                log.debug("cannot record how far the streams reach: %s", error)
                continue
            if reason and self._phase is not Phase.SETTLING:
                self._hold_back(reason)
                self._begin_settling()

    async def _created(self, stream: str) -> str | None:
        # `JetStream.api` waits until this check is over, so this check cannot use it.
        try:
            msg = await self._connection.request(
                f"$JS.API.STREAM.INFO.{stream}", timeout=CHECK_TIMEOUT_S
            )
        except NatsError as error:
            raise BusUnavailable(str(error)) from error
        answer = orjson.loads(msg.data)
        if "error" in answer:
            if answer["error"].get("err_code") == STREAM_NOT_FOUND:
                return None
            raise BusUnavailable(str(answer["error"].get("description")))
        return str(answer["created"])

    async def _know_new_shards(self) -> None:
        for name in numbered_streams(self._continuity.shards.made):
            if not self._identity.remembers(name) and (created := await self._created(name)):
                self._identity.know(name, created)

    def _found(self) -> None:
        if self._phase is Phase.COMPARING:
            self._begin_settling()

    def _lost(self, reason: str) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        self._phase = Phase.COMPARING
        self._hold_back(reason)

    def _hold_back(self, reason: str) -> None:
        self._connection.held_back = reason
        self._health.refused("lost", "", reason)

    def _begin_settling(self) -> None:
        self._phase = Phase.SETTLING
        self._settling = asyncio.create_task(self._wait_complete())

    async def _wait_complete(self) -> None:
        """Wait until no stream lacks its end; then stop holding requests back."""
        until = time.monotonic() + ORDER_WAIT_S
        passing = PASSES.set(True)
        while True:
            try:
                reason = await self._continuity.check()
            except BusError as error:
                log.warning("cannot find out yet whether NATS has lost data: %s", error)
                reason = ""
                if time.monotonic() < until:
                    # The streams may have no leader during an election, so the check is repeated.
                    # After `until`, requests are no longer held back, and `watch` checks again.
                    await asyncio.sleep(ORDER_S)
                    continue
            if not reason:
                break
            self._hold_back(reason)
            await asyncio.sleep(ORDER_S)
        PASSES.reset(passing)
        await asyncio.sleep(0)  # callbacks of `Continuity.on_loss` run before work continues
        self._connection.held_back = ""
        self._settling = None
        self._phase = Phase.OPEN
        self._health.worked("", "lost")
        self._jetstream.reconnected()
