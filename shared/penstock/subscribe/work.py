"""Handles the events of each run one after another, and answers each delivery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import orjson

from penstock.bus import Msg, NatsError, ObjectGone, Stored
from penstock.bus.connection.nats_client import Connection
from penstock.bus.errors import ContentErased
from penstock.bus.subjects import run_id_of
from penstock.bus.write.objects import is_reference
from penstock.events import Event, InvalidEvent, parse
from penstock.subscribe.account import AGAIN_S, Account, Lasting
from penstock.subscribe.granted import KeyRefused
from penstock.subscribe.handlers import Handler
from penstock.subscribe.received import ContentNeeded, Later, Reject, Sealed, SealedFields
from penstock.subscribe.settings import Limits

log = logging.getLogger("penstock.subscribe")

MAX_REASON_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message of a durable. The methods send answers about the message to the server."""

    connection: Connection
    subject: str
    reply: str
    payload: bytes
    headers: Mapping[str, str]
    delivered: int
    stored_at: datetime

    @classmethod
    def of(cls, connection: Connection, msg: Msg) -> Delivery:
        metadata = msg.metadata
        return cls(
            connection,
            msg.subject,
            msg.reply,
            msg.data,
            msg.headers or {},
            metadata.num_delivered or 1,
            metadata.timestamp,
        )

    @property
    def run_id(self) -> str:
        return run_id_of(self.subject)

    def done(self) -> None:
        self._answer(b"+ACK")

    def working(self) -> None:
        self._answer(b"+WPI")

    def redeliver(self, delay_s: float) -> None:
        """Ask the server to deliver the event again after this many seconds."""
        self._answer(b"-NAK " + orjson.dumps({"delay": round(delay_s * 1e9)}))

    def give_up(self, reason: str) -> None:
        """Ask for no further delivery; Penstock makes a dead letter with this reason."""
        plain = reason.encode("ascii", "backslashreplace").replace(b"\r", b" ").replace(b"\n", b" ")
        self._answer(b"+TERM " + plain[:MAX_REASON_CHARACTERS])

    def _answer(self, answer: bytes) -> None:
        try:
            self.connection.send(self.reply, answer)
        except NatsError as error:
            # The answer is lost, so the server delivers the event again.
            log.warning("run %s: %s comes again: %s", self.run_id, self.subject, error)


class Work:
    """Handles up to `concurrency` events at once, and the events of each run in their order."""

    def __init__(self, account: Account, handlers: Sequence[Handler], limits: Limits) -> None:
        self._account = account
        self._handlers = handlers
        self._limits = limits
        self._room = asyncio.Semaphore(limits.concurrency)
        # maps a run's id to the task of the run's newest event
        self._last: dict[str, asyncio.Task[None]] = {}
        # the handlers that take `Event`, and have asked for a field of its data that was sealed
        self._needing: set[str] = set()
        self._without_grant = Lasting()

    async def take(self, delivery: Delivery, heartbeat_s: float) -> None:
        """Wait until fewer than `concurrency` events are handled; then begin to handle this one."""
        try:
            await self._room.acquire()
        except asyncio.CancelledError:  # the subscriber stops
            delivery.redeliver(0)
            raise
        run_id = delivery.run_id
        task = asyncio.create_task(self._in_turn(delivery, heartbeat_s, self._last.get(run_id)))
        self._last[run_id] = task
        task.add_done_callback(lambda done: self._forget(run_id, done))

    async def finish(self, grace_s: float) -> None:
        """Wait for the running handlers; after `grace_s`, return the events of the others."""
        if tasks := set(self._last.values()):
            await asyncio.wait(tasks, timeout=grace_s)
        while tasks := {task for task in self._last.values() if not task.done()}:
            log.warning("%d events were not handled in time: they come again", len(tasks))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # lets the callbacks of these tasks run, because these callbacks update `_last`
            await asyncio.sleep(0)

    def _forget(self, run_id: str, task: asyncio.Task[None]) -> None:
        self._room.release()
        if self._last.get(run_id) is task:
            del self._last[run_id]

    async def _in_turn(
        self, delivery: Delivery, heartbeat_s: float, before: asyncio.Task[None] | None
    ) -> None:
        beat = asyncio.create_task(_extend_ack_time(delivery, heartbeat_s))
        try:
            if before is not None:
                await asyncio.wait([before])
            await self._handle(delivery)
        except asyncio.CancelledError:
            delivery.redeliver(0)
            raise
        finally:
            beat.cancel()

    async def _handle(self, delivery: Delivery) -> None:
        wanting = [handler for handler in self._handlers if handler.matches(delivery.subject)]
        if not wanting:
            delivery.done()
            return
        where = f"run {delivery.run_id}: {delivery.subject}"
        name = ""
        try:
            event, sealed = await self._read(delivery, wanting)
            for handler in wanting:
                name = handler.name
                while sealed is None or not self._needs_content(handler):
                    facts = delivery.delivered, delivery.stored_at
                    try:
                        await handler.call(handler.argument(event, sealed, *facts))
                        break
                    except (ContentNeeded, InvalidEvent):  # the second by `event.data_model()`
                        if sealed is None:
                            raise
                        self._needing.add(name)
                        event, sealed = await self._read(delivery, wanting)
        except ContentErased as error:
            # The envelope of a large event is erased, too, so there is nothing to handle.
            log.info("%s is not handled: %s", where, error)
            delivery.done()
        except (InvalidEvent, ObjectGone) as error:
            log.error("%s is given up, since it cannot be read: %s", where, error)
            delivery.give_up(f"cannot be read: {error}")
        except Reject as error:
            log.error("%s is given up by %s: %s", where, name, error)
            delivery.give_up(f"{name} rejects it: {error}")
        except Later as error:
            delivery.redeliver(error.delay_s)
        except Exception as error:
            self._failed(delivery, name, error)
        else:
            delivery.done()

    async def _read(
        self, delivery: Delivery, wanting: Sequence[Handler]
    ) -> tuple[Event, Sealed | None]:
        """Return the event, and what stands for its data if this subscriber does not get them.
        While the durable lacks the grant that a handler needs, the event waits."""
        payload = delivery.payload
        if is_reference(payload):
            payload = await self._account.large_event(payload)
        while True:
            stored = Stored(delivery.subject, 0, delivery.headers, payload)
            try:
                return parse(await self._account.opened(stored)), None
            except KeyRefused as error:
                needing = [each.name for each in wanting if self._needs_content(each)]
                if error.reason != "no_grant" or not needing:
                    event = parse(payload)
                    event.data = SealedFields(event.data)
                    return event, Sealed(reason=error.reason)
                self._say_what_it_needs(delivery, needing[0])
            await asyncio.sleep(AGAIN_S)

    def _needs_content(self, handler: Handler) -> bool:
        return not handler.takes_sealed or handler.name in self._needing

    def _say_what_it_needs(self, delivery: Delivery, name: str) -> None:
        if self._without_grant.is_to_be_said():
            log.error(
                "run %s: %s is sealed, and waits, since %s needs its content: the operator grants "
                "it with `penstock subscribers grant DURABLE content`, or the handler takes "
                "`| Sealed`",
                *(delivery.run_id, delivery.subject, name),
            )

    def _failed(self, delivery: Delivery, name: str, error: Exception) -> None:
        where = f"run {delivery.run_id}: {delivery.subject}"
        delays_s = self._limits.retry_delays_s
        if delivery.delivered > len(delays_s):
            log.error("%s is given up: %s failed", where, name, exc_info=error)
            delivery.give_up(f"{name} failed {delivery.delivered} times, last with {error!r}")
            return
        delay_s = delays_s[delivery.delivered - 1]
        log.warning("%s: %s failed, again in %g s", where, name, delay_s, exc_info=error)
        delivery.redeliver(delay_s)


async def _extend_ack_time(delivery: Delivery, heartbeat_s: float) -> None:
    while True:
        await asyncio.sleep(heartbeat_s)
        delivery.working()
