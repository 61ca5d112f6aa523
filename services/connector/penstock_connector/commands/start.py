"""Carries out `command.connector.start.<run>`: opens the first leg of a run.

The `open` is in RAW before the agent server is called. So a connector that finds the claim of a
dead connector looks for the `open`. If there is no `open`, nothing was sent, and the connector may
open the leg. If there is an `open`, the agent server may have been called, and the connector takes
the leg over.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock import log_fields
from penstock.bus import BusError, Message, Retry, Stored
from penstock.bus.records.legs import Claim
from penstock.bus.records.runs import ENDED, CancelCommand, StartCommand
from penstock.bus.subjects import command as command_subject
from penstock.bus.subjects import run_id_of
from penstock_connector.commands.fair_queue import FairQueue
from penstock_connector.commands.session_order import EarlierStart, SessionOrder
from penstock_connector.commands.shared import HISTORY_LOST, CommandContext
from penstock_connector.legs.orders import Order
from penstock_connector.state.connectors import Liveness

log = logging.getLogger(__name__)

READ_AT_ONCE: Final = 64  # the most commands that are read at the same time
INTERRUPTING_S: Final = 0.2  # seconds before the next check whether interrupted runs have ended
CANCEL_AGAIN_S: Final = 5  # seconds after which an interrupted run that is open is cancelled again
# Seconds that a start waits for an earlier start of its session at another connector. After
# TAKE_UP_S, this connector begins the earlier start itself if it has a free leg. After
# TAKE_UP_ANYWAY_S, this connector begins the earlier start even without a free leg, because the
# other connector may hang.
TAKE_UP_S, TAKE_UP_ANYWAY_S = 2.0, 30.0


class Action(Enum):
    """The action that a start command needs."""

    OPEN = "open"  # the claim is new, so the leg is opened
    # this connector claimed the start at an earlier delivery; the leg is not open
    OPEN_AGAIN = "open_again"
    # a dead or silent connector has claimed the start; the leg is not open
    TAKE_OVER_CLAIM = "take_over_claim"
    TAKE_OVER_LEG = "take_over_leg"  # the leg is open, and its connector may be dead
    WAIT = "wait"  # another connector has claimed the start, and may still open the leg
    NOTHING = "nothing"  # the run was cancelled, or a connector holds it


@dataclass(frozen=True, slots=True)
class StartFacts:
    """The facts that were read about the run of a start command."""

    claim: Claim | None  # an earlier claim; None if this connector's claim is the first
    is_held_here: bool = False
    last: Stored | None = None  # the run's last source frame
    claimer: Liveness = Liveness.OURS


def choose_action(seen: StartFacts) -> Action:
    """Return the action that follows from the facts. Pure."""
    if seen.claim is None:
        return Action.OPEN
    if seen.claim.state == "cancelled" or seen.is_held_here:
        return Action.NOTHING
    if seen.last is not None:
        return _WITH_OPEN[seen.claimer]
    return _WITHOUT_OPEN[seen.claimer]


# The actions while the leg is open, by the liveness of the connector that claimed the start. A
# claimer that is alive holds the leg, or another connector has taken the leg over.
_WITH_OPEN: Final = {
    Liveness.OURS: Action.TAKE_OVER_LEG,
    Liveness.ALIVE: Action.NOTHING,
    Liveness.SILENT: Action.NOTHING,
    Liveness.DEAD: Action.TAKE_OVER_LEG,
}
# The actions while the leg is not open. A claimer that is alive may still open the leg, or may end
# before it opens the leg. So the command waits and is not finished. A claimer that was only
# silent may still try to open the leg, but the fence then refuses its `open`.
_WITHOUT_OPEN: Final = {
    Liveness.OURS: Action.OPEN_AGAIN,
    Liveness.ALIVE: Action.WAIT,
    Liveness.SILENT: Action.TAKE_OVER_CLAIM,
    Liveness.DEAD: Action.TAKE_OVER_CLAIM,
}


class StartHandler:
    """Carries out start commands; a start command may be delivered more than once."""

    def __init__(
        self,
        context: CommandContext,
        queue: FairQueue,
        cancel: Callable[[CancelCommand], Awaitable[None]],
    ) -> None:
        self._context = context
        self._cancel = cancel
        self._stores = context.stores
        self._queue = queue
        self._reading = asyncio.Semaphore(READ_AT_ONCE)
        self._order = SessionOrder(context.bus, context.stores.runs, context.stores.claims)
        self._actions: dict[Action, Callable[[Order, StartFacts], Awaitable[None]]] = {
            Action.OPEN: self._open,
            Action.OPEN_AGAIN: self._open_again,
            Action.TAKE_OVER_CLAIM: self._take_over_claim,
            Action.TAKE_OVER_LEG: self._take_over_leg,
            Action.WAIT: self._wait,
            Action.NOTHING: self._nothing,
        }

    async def handle(self, stored: Stored) -> None:
        """Carry the command out; return when the leg is open, or need not be opened. Raises Retry
        if an earlier start of the session still waits, or another connector works on the run."""
        if (earlier := await self._order.before(stored)) is not None:
            await self._wait_for_earlier(earlier, stored)
            raise Retry(0)
        try:
            await self._handle_in_turn(stored)
        finally:
            self._order.wake_next(stored)

    async def _wait_for_earlier(self, earlier: EarlierStart, stored: Stored) -> None:
        """Wait for an earlier start of the session; begin it here if the wait is too long."""
        is_due = earlier.waited_s > (TAKE_UP_S if self._queue.is_free else TAKE_UP_ANYWAY_S)
        if not is_due:
            await self._order.wait(stored, earlier)
            return
        run_id = run_id_of(earlier.stored.subject)
        log.info("run %s: begun here, since %s follows it", run_id, stored.subject)
        try:
            with log_fields.within_run(run_id):
                await self.handle(earlier.stored)
        except (BusError, Retry):
            await self._order.wait(stored, earlier)
        # delivered to a connector, this command will fail there, too, and become a dead letter
        except Exception:
            log.exception("run %s: it cannot be begun here", run_id)
            await self._order.wait(stored, earlier)

    async def _handle_in_turn(self, stored: Stored) -> None:
        attempts, orders = self._context.attempts, self._context.orders
        async with self._reading, attempts.at("read", stored):
            order: Order | None = await orders.of_start(stored)
        assert order is not None
        assert isinstance(order.command, StartCommand)
        await self._interrupt(order.command)
        user, run_id = order.command.tenant_user, order.run_id
        if not self._queue.is_free:
            order = None  # this frees memory: a request may be large, and many starts may wait
        async with (
            self._queue.turn(user, run_id, stored.sequence),
            attempts.at("begin", stored),
        ):
            await self._begin(order or await orders.of_start(stored))

    async def _interrupt(self, command: StartCommand) -> None:
        """End the runs that this start interrupts; raise Retry while one of them is open.

        The cancels are commands, and this start waits in COMMANDS meanwhile. So another connector
        goes on if this one dies at any place.
        """
        run_id, stores = command.run_id, self._stores
        # A start with a claim has begun, or was itself cancelled while it waited.
        if not command.interrupts or await stores.claims.read(run_id) is not None:
            return
        records = await asyncio.gather(*map(stores.runs.record, command.interrupts))
        is_open = [record is not None and record.status not in ENDED for record in records]
        for interrupted in itertools.compress(command.interrupts, is_open):
            cancel = CancelCommand(run_id=interrupted, by=command.user_id, reason="superseded")
            subject = command_subject("connector", "cancel", interrupted)
            # NATS ignores a second message with an id, so most checks add no cancel.
            attempt = int(self._context.bus.clock.time()) // CANCEL_AGAIN_S
            headers = {"Nats-Msg-Id": f"{run_id} interrupts {interrupted} {attempt}"}
            await self._context.bus.publisher.publish(Message(subject, cancel.dump(), headers))
        if any(is_open):
            raise Retry(INTERRUPTING_S)

    async def _begin(self, order: Order) -> None:
        assert isinstance(order.command, StartCommand)
        # A cancelled workflow cancels its steps one after another. This start may be handled
        # before its own cancel exists.
        stopped = await self._stores.trees.stopped_among(order.command.ancestors or ())
        if stopped is not None:
            cancel = CancelCommand(run_id=order.run_id, by=stopped.by, reason=stopped.reason)
            await self._cancel(cancel)
            return
        with self._context.registry.exclusively(order.run_id):
            # The claim comes before the reads. If the reads came first, two connectors could read
            # the same state and both open the leg.
            claim = await self._stores.claims.claim(order.run_id)
            seen = await self._read_facts(order.run_id, claim)
            await self._actions[choose_action(seen)](order, seen)

    async def _read_facts(self, run_id: str, claim: Claim | None) -> StartFacts:
        if claim is None:
            return StartFacts(None)
        is_held_here = self._context.registry.has_leg(run_id)
        if claim.state == "cancelled" or is_held_here:
            return StartFacts(claim, is_held_here)
        last = await self._stores.runs.tail(run_id)
        return StartFacts(claim, False, last, await self._stores.connectors.liveness(claim.pod))

    # The actions

    async def _open(self, order: Order, seen: StartFacts) -> None:
        context, run_id, command = self._context, order.run_id, order.command
        assert isinstance(command, StartCommand)
        was_claimed = seen.claim is not None
        may_be_lost = await context.may_be_lost(order, "KV_claims", was_claimed=was_claimed)
        if may_be_lost and await self._stores.runs.tail(run_id) is None:
            await context.open_and_end(run_id, HISTORY_LOST)
            await self._stores.leg_records.delete(run_id)
            return
        try:
            agent = context.config.server_agent(command.agent)
            writer = self._stores.runs.writer(run_id)
            facts = context.facts_of_open(command, agent)
            await context.opener.open(order, agent, writer, facts, is_taken_over=was_claimed)
        except BusError:
            raise
        except Exception:
            # Another connector may be able to carry the command out. If the claim were kept, the
            # other connector would wait for this connector.
            await self._stores.claims.give_back(run_id)
            raise

    async def _open_again(self, order: Order, seen: StartFacts) -> None:
        pod = seen.claim.pod if seen.claim is not None else self._stores.pod
        log.warning("run %s: claimed by %s and never opened; going on", order.run_id, pod)
        await self._open(order, seen)

    async def _take_over_claim(self, order: Order, seen: StartFacts) -> None:
        if not await self._stores.claims.take_over(order.run_id):
            raise Retry(1)
        await self._open_again(order, seen)

    async def _take_over_leg(self, order: Order, seen: StartFacts) -> None:
        assert seen.last is not None
        await self._context.takeover.take_over_unless_held(order.run_id, seen.last)

    async def _wait(self, order: Order, seen: StartFacts) -> None:
        raise Retry(1)

    async def _nothing(self, order: Order, seen: StartFacts) -> None:
        """Do nothing, because the run was cancelled, or a connector holds it."""
