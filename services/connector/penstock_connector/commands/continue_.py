"""Carries out `command.connector.continue.<run>`: sends a decision to the agent server, once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from penstock.bus import BusError, FenceConflict, Retry, Stored
from penstock.bus.records.approvals import ContinueCommand
from penstock_connector.commands.shared import HISTORY_LOST, CommandContext
from penstock_connector.legs.orders import Order
from penstock_connector.state.claims import ClaimedSending
from penstock_connector.state.connectors import Liveness
from penstock_connector.state.run_state import kind_of, leg_of

log = logging.getLogger(__name__)


class Action(Enum):
    """The action that a continue command needs."""

    SEND = "send"  # this connector has claimed the sending, and opens the leg
    # a dead or silent connector has claimed the sending, and has sent nothing
    TAKE_OVER_SENDING = "take_over_sending"
    TAKE_OVER_LEG = "take_over_leg"  # the leg is open, and its holder may be dead
    WAIT = "wait"  # another connector has claimed the sending, and may still open the leg
    NOTHING = "nothing"  # the result of the sending is recorded already


@dataclass(frozen=True, slots=True)
class ContinueFacts:
    """The facts that were read about the sending of a decision."""

    sending: ClaimedSending | None  # an earlier claim; None if this connector's claim is the first
    leg: int  # the number of the leg that sends the decision
    last: Stored | None = None  # the run's last source frame
    claimer: Liveness = Liveness.OURS


def choose_action(seen: ContinueFacts) -> Action:
    """Return the action that follows from the facts. Pure."""
    if seen.sending is None:
        return Action.SEND
    if seen.sending.sent.state != "claimed":
        return Action.NOTHING
    if seen.last is not None and leg_of(seen.last) >= seen.leg:
        return Action.TAKE_OVER_LEG
    return _WITHOUT_OPEN[seen.claimer]


# The actions while the leg is not open, by the liveness of the connector that claimed the sending.
# Nothing was sent yet. A connector that was only silent may still try to open the leg, but the
# fence then refuses its `open`.
_WITHOUT_OPEN: Final = {
    Liveness.OURS: Action.SEND,
    Liveness.ALIVE: Action.WAIT,
    Liveness.SILENT: Action.TAKE_OVER_SENDING,
    Liveness.DEAD: Action.TAKE_OVER_SENDING,
}


class OpenDecision(Enum):
    """The action for a decision whose sending this connector has claimed."""

    OPEN = "open"
    LOOK_AGAIN = "look_again"  # the leg was opened before, so the run is read again
    # the decision may have been sent, but NATS has lost the leg's frames
    END_AS_LOST = "end_as_lost"
    REFUSE = "refuse"  # the run has ended


def decide_to_open(
    last: Stored | None, leg: int, *, may_be_lost: bool, has_ended: bool
) -> OpenDecision:
    """Return whether the leg must be opened; `last` is the run's last source frame. Pure."""
    if last is not None and leg_of(last) >= leg:
        return OpenDecision.LOOK_AGAIN
    if may_be_lost:
        return OpenDecision.END_AS_LOST
    if has_ended or (last is not None and kind_of(last) == "event"):
        return OpenDecision.REFUSE
    return OpenDecision.OPEN


@dataclass(frozen=True, slots=True)
class Continuing:
    """A continue command that is carried out now, and the facts about it."""

    order: Order
    command: ContinueCommand  # as the decision's record has it
    seen: ContinueFacts


class ContinueHandler:
    """Carries out continue commands; a continue command may be delivered more than once."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._stores = context.stores
        self._actions: dict[Action, Callable[[Continuing], Awaitable[None]]] = {
            Action.SEND: self._send,
            Action.TAKE_OVER_SENDING: self._take_over_sending,
            Action.TAKE_OVER_LEG: self._take_over_leg,
            Action.WAIT: self._wait,
            Action.NOTHING: self._nothing,
        }
        self._opening: dict[OpenDecision, Callable[[Continuing], Awaitable[None]]] = {
            OpenDecision.OPEN: self._open,
            OpenDecision.LOOK_AGAIN: self._recheck,
            OpenDecision.END_AS_LOST: self._end_as_lost,
            OpenDecision.REFUSE: self._refuse,
        }

    async def handle(self, stored: Stored) -> None:
        """Carry the command out; return when the leg is open, or need not be opened.

        Raises:
            NotDecided: no recorded decision has the same content as the command. The run still
                waits for its decision.
            Retry: another connector works on the run, or the run has a new source frame.
        """
        async with self._context.attempts.at("send", stored):
            await self.carry_out(stored)

    async def carry_out(self, stored: Stored) -> None:
        order = await self._context.orders.of_continue(stored)
        command = order.command
        assert isinstance(command, ContinueCommand)
        sendings = self._stores.sendings
        with self._context.registry.exclusively(order.run_id):
            sent = await sendings.read(command.approval_id)
            if sent is not None and sent.state != "claimed":
                return
            # The decision is confirmed before the sending is claimed. A sending can be claimed only
            # once. In the other order, a command without a decision would take the only claim.
            command = await self._context.orders.decisions.confirmed(command)
            # The claim comes before the reads. If the reads came first, two connectors could read
            # the same state and both send the decision.
            sending = await sendings.claim(command.approval_id)
            seen = await self._read_facts(command, sending)
            await self._actions[choose_action(seen)](Continuing(order, command, seen))

    async def _read_facts(
        self, command: ContinueCommand, sending: ClaimedSending | None
    ) -> ContinueFacts:
        if sending is None or sending.sent.state != "claimed":
            return ContinueFacts(sending, command.leg)
        last = await self._stores.runs.tail(command.run_id)
        claimer = await self._stores.connectors.liveness(sending.sent.pod)
        return ContinueFacts(sending, command.leg, last, claimer)

    # The actions

    async def _send(self, asked: Continuing) -> None:
        try:
            await self._open_or_refuse(asked)
        except (BusError, Retry):
            raise
        except Exception:
            # Another connector may be able to send the decision. If the claim were kept, the other
            # connector would wait for this connector.
            await self._stores.sendings.give_back(asked.command.approval_id)
            raise

    async def _take_over_sending(self, asked: Continuing) -> None:
        assert asked.seen.sending is not None
        revision = asked.seen.sending.revision
        if not await self._stores.sendings.take_over(asked.command.approval_id, revision):
            raise Retry(1)
        await self._send(asked)

    async def _take_over_leg(self, asked: Continuing) -> None:
        assert asked.seen.last is not None
        takeover = self._context.takeover
        await takeover.take_over_unless_held(asked.command.run_id, asked.seen.last)
        await takeover.record_sending(asked.order.record, asked.command.run_id)

    async def _wait(self, asked: Continuing) -> None:
        raise Retry(1)

    async def _nothing(self, asked: Continuing) -> None:
        """Do nothing, because the result of the sending is recorded."""

    # The actions after this connector has claimed the sending

    async def _open_or_refuse(self, asked: Continuing) -> None:
        order, leg, runs = asked.order, asked.command.leg, self._stores.runs
        # The tail is read again. This connector may have taken the sending over from a connector
        # that was only suspended. Since the first read, that connector may have continued and sent
        # the decision.
        last = await runs.tail(order.run_id)
        may_be_lost = has_ended = False
        if last is None or leg_of(last) < leg:
            was_claimed = asked.seen.sending is not None
            may_be_lost = await self._context.may_be_lost(order, "KV_sent", was_claimed=was_claimed)
            has_ended = not may_be_lost and await runs.has_ended(order.run_id)
        decision = decide_to_open(last, leg, may_be_lost=may_be_lost, has_ended=has_ended)
        await self._opening[decision](replace(asked, seen=replace(asked.seen, last=last)))

    async def _open(self, asked: Continuing) -> None:
        command, seen = asked.command, asked.seen
        await self._context.orders.pause(command)  # raises LookupError if there is no pause
        facts = {
            "agent": command.agent,
            "approval_id": command.approval_id,
            "items": [item.model_dump() for item in command.items],
        }
        agent = self._context.config.server_agent(command.agent)
        writer = self._stores.runs.writer(asked.order.run_id, seen.last)
        try:
            await self._context.opener.open(
                asked.order, agent, writer, facts, is_taken_over=seen.sending is not None
            )
        except FenceConflict:
            # The run has a new source frame, so the next delivery reads the run again.
            raise Retry(0.1) from None

    async def _recheck(self, asked: Continuing) -> None:
        raise Retry(0.1)

    async def _end_as_lost(self, asked: Continuing) -> None:
        # The result is recorded before the run is ended. In the other order, this process could die
        # between the two writes. The run would then have ended, but the record of the sending would
        # show that the decision must still be sent.
        await self._stores.sendings.record(asked.command.approval_id, "outcome_unknown")
        last = asked.seen.last
        if last is None:
            await self._context.open_and_end(asked.order.run_id, HISTORY_LOST)
        else:
            await self._stores.runs.end(asked.order.run_id, last, "event", HISTORY_LOST)

    async def _refuse(self, asked: Continuing) -> None:
        log.info("run %s: it has ended, so the decision is not sent", asked.command.run_id)
        await self._stores.sendings.record(asked.command.approval_id, "refused")
