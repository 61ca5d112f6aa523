"""Carries out `command.connector.cancel.<run>`: asks the connector that holds the run to cancel.

Any connector may get the command. The command is acknowledged only when the leg has ended. So if
the holder accepts the cancel and dies right after that, the command is delivered again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.bus import BusUnavailable, OutcomeUnknown, Retry, Stored
from penstock.bus.records.runs import CancelCommand
from penstock.bus.subjects import control
from penstock_connector.commands.shared import CommandContext
from penstock_connector.state.run_state import (
    CLOSED,
    end_event,
    holder_of,
    is_over,
    kind_of,
    leg_of,
)
from penstock_connector.succession.takeover import DIED

CONTROL_TIMEOUT_S: Final = 2.0  # seconds to wait for the holder's answer to a request to cancel
ENDING_S: Final = 1.0  # seconds before the next check whether a cancelled leg has ended


class Reply(Enum):
    """The answer of the run's holder to the request `control.<run>`."""

    ACCEPTED = "accepted"
    NO_ANSWER = "no_answer"  # the holder did not answer in time; it may be suspended
    NO_HOLDER = "no_holder"  # no connector listens for the run


class Action(Enum):
    """The action that a cancel command needs."""

    WAIT_FOR_END = "wait_for_end"  # the holder has accepted the cancel, and ends the leg
    WAIT = "wait"  # the holder does not answer, or has not subscribed yet
    # the run has no `open`: this connector claims the start and ends the run
    END_UNSTARTED = "end_unstarted"
    CANCEL_BETWEEN_LEGS = "cancel_between_legs"  # the run waits for a decision, or has ended
    # A connector claimed the start as cancelled and wrote the `open`, and died before it wrote the
    # run's end.
    END_UNCALLED = "end_uncalled"
    # the leg's holder is dead: this connector takes the leg over and cancels the run
    TAKE_OVER = "take_over"
    NOTHING = "nothing"  # the run has ended


@dataclass(frozen=True, slots=True)
class CancelFacts:
    """The facts that were read about a run that is to be cancelled."""

    reply: Reply
    last: Stored | None = None  # the run's last source frame
    has_ended: bool = False
    # whether the claim of the run's start has the state `cancelled`
    start_is_cancelled: bool = False
    is_held: bool = False  # whether the connector that wrote `last` is alive

    @property
    def is_open(self) -> bool:
        return self.last is not None and kind_of(self.last) not in CLOSED


def choose_action(seen: CancelFacts) -> Action:
    """Return the action that follows from the facts. Pure."""
    if seen.reply is Reply.ACCEPTED:
        return Action.WAIT_FOR_END
    if seen.reply is Reply.NO_ANSWER:
        # While the holder was suspended, another connector may have ended the leg.
        is_over = seen.last is not None and not seen.is_open and seen.has_ended
        return Action.NOTHING if is_over else Action.WAIT
    if seen.last is None:
        # NATS may have lost the frames of a run that has ended.
        return Action.NOTHING if seen.has_ended else Action.END_UNSTARTED
    if not seen.is_open:
        return Action.CANCEL_BETWEEN_LEGS
    if seen.start_is_cancelled:
        return Action.END_UNCALLED
    return Action.WAIT if seen.is_held else Action.TAKE_OVER


class CancelHandler:
    """Carries out cancel commands; a cancel command may be delivered more than once."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._stores = context.stores
        self._actions: dict[Action, Callable[[CancelCommand, CancelFacts], Awaitable[None]]] = {
            Action.WAIT_FOR_END: self._wait_for_end,
            Action.WAIT: self._wait,
            Action.END_UNSTARTED: self._end_unstarted,
            Action.CANCEL_BETWEEN_LEGS: self._cancel_between_legs,
            Action.END_UNCALLED: self._end_uncalled,
            Action.TAKE_OVER: self._take_over,
            Action.NOTHING: self._nothing,
        }

    async def handle(self, stored: Stored) -> None:
        """Carry the command out; return when the run has ended, and raise Retry before."""
        async with self._context.attempts.at("cancel", stored):
            await self.carry_out(CancelCommand.model_validate_json(stored.payload))

    async def carry_out(self, command: CancelCommand) -> None:
        if command.leg is not None:
            last = await self._stores.runs.tail(command.run_id)
            if last is not None and is_over(last, command.leg):
                if command.ask is None and leg_of(last) == command.leg:
                    await self._stores.runs.cancel_between_legs(command.run_id, command.facts)
                return
        seen = await self._read_facts(command)
        await self._actions[choose_action(seen)](command, seen)

    async def _read_facts(self, command: CancelCommand) -> CancelFacts:
        run_id, runs = command.run_id, self._stores.runs
        reply = await self._ask_holder(command)
        if reply is Reply.ACCEPTED:
            return CancelFacts(reply)
        seen = CancelFacts(reply, last := await runs.tail(run_id))
        if not seen.is_open:
            return CancelFacts(reply, last, await runs.has_ended(run_id))
        if reply is Reply.NO_ANSWER or last is None:
            return seen
        claim = await self._stores.claims.read(run_id)
        if claim is not None and claim.state == "cancelled":
            return CancelFacts(reply, last, start_is_cancelled=True)
        return CancelFacts(reply, last, is_held=await self._context.takeover.is_held(run_id, last))

    async def _ask_holder(self, command: CancelCommand) -> Reply:
        bus, subject = self._context.bus, control(command.run_id)
        try:
            await bus.request(subject, command.dump(), CONTROL_TIMEOUT_S)
        except OutcomeUnknown:
            return Reply.NO_ANSWER
        except BusUnavailable:
            return Reply.NO_HOLDER
        return Reply.ACCEPTED

    # The actions

    async def _wait_for_end(self, command: CancelCommand, seen: CancelFacts) -> None:
        raise Retry(ENDING_S)

    async def _wait(self, command: CancelCommand, seen: CancelFacts) -> None:
        raise Retry(0.5)

    async def _end_unstarted(self, command: CancelCommand, seen: CancelFacts) -> None:
        await self._context.claim_as_cancelled(command.run_id)
        event = end_event("lifecycle.cancelled", **command.facts, confirmed=True)
        await self._context.open_and_end(command.run_id, event)

    async def _cancel_between_legs(self, command: CancelCommand, seen: CancelFacts) -> None:
        await self._stores.runs.cancel_between_legs(command.run_id, command.facts)

    async def _end_uncalled(self, command: CancelCommand, seen: CancelFacts) -> None:
        assert seen.last is not None
        facts = {"outcome": "cancelled", "confirmed": True, **command.facts}
        await self._stores.runs.end(command.run_id, seen.last, "end", facts)

    async def _take_over(self, command: CancelCommand, seen: CancelFacts) -> None:
        assert seen.last is not None
        run_id, reason = command.run_id, DIED.format(holder_of(seen.last))
        with self._context.registry.exclusively(run_id):
            await self._context.takeover.take_over(run_id, seen.last, reason, command)
        raise Retry(0.1)  # the leg has ended, or its new holder is about to end it

    async def _nothing(self, command: CancelCommand, seen: CancelFacts) -> None:
        """Do nothing, because the run has ended."""
