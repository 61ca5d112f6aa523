"""Continues or ends the runs that no command continues any more.

The command of such a run is a dead letter, or the watchdog has found that the run is stuck.
"""

from __future__ import annotations

import logging
from typing import Final

from pydantic import ValidationError

from penstock.bus import BusError, ObjectGone, Retry, Stored
from penstock.bus.records.approvals import ContinueCommand
from penstock.bus.streams import COMMANDS
from penstock.bus.subjects import command as command_subject
from penstock.bus.subjects import run_id_of
from penstock_connector.commands.continue_ import ContinueHandler
from penstock_connector.commands.shared import CommandContext
from penstock_connector.state.decided import NotDecided
from penstock_connector.state.run_state import CLOSED, end_event, kind_of
from penstock_connector.succession.watchdog import StuckReason

log = logging.getLogger(__name__)

_NEVER_STARTED: Final = end_event(
    "lifecycle.failed",
    code="not_sent",
    error="the command to start the run was lost before a connector had it; the agent's server "
    "was not called: start the run again",
    retryable=True,
)
_NEVER_SENT: Final = end_event(
    "lifecycle.failed",
    code="internal",
    error="the decision was taken, and was lost on its way to the agent's server; it was not "
    "sent: start the run again",
    retryable=True,
)


class DeadLetters:
    """Ends runs whose command is a dead letter."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context

    async def ends_its_run(self, stored: Stored) -> bool:
        """Return whether the dead letter must end its run, because nothing else will end the run.

        A continue command without a decision does not end its run, because the run still waits for
        the decision.
        """
        if ".continue." not in stored.subject:
            return ".start." in stored.subject
        orders, run_id = self._context.orders, run_id_of(stored.subject)
        try:
            order = await orders.of_continue(stored)
            assert isinstance(order.command, ContinueCommand)
            await orders.decisions.confirmed(order.command)
        except NotDecided:
            return False
        except (ValidationError, ObjectGone):
            return await orders.decisions.is_taken(run_id)
        return order.run_id == run_id

    async def end_run(self, run_id: str, error: Exception) -> None:
        """End the run as failed; do nothing if the run has ended, or if a connector holds it."""
        failed = end_event(
            "lifecycle.failed", code="internal", error=f"the command cannot be carried out: {error}"
        )
        runs, takeover = self._context.stores.runs, self._context.takeover
        last = await runs.tail(run_id)
        if last is None:
            await self._context.open_and_end(run_id, failed)
        elif await runs.has_ended(run_id):
            return
        # Nobody works on a leg that is closed, although the connector that had it may be alive.
        elif kind_of(last) in CLOSED or not await takeover.is_held(run_id, last):
            await runs.end(run_id, last, "event", failed)


class AbandonedRuns:
    """Continues or ends the runs that the watchdog finds (see `succession/watchdog.py`). All
    methods raise Retry if another connector works on the run."""

    def __init__(self, context: CommandContext, continues: ContinueHandler) -> None:
        self._context = context
        self._stores = context.stores
        self._continues = continues

    async def take_over(self, run_id: str, last: Stored) -> None:
        with self._context.registry.exclusively(run_id):
            await self._context.takeover.take_over_unless_held(run_id, last)

    async def send(self, run_id: str, approval_id: str) -> None:
        """Send a decision whose command was lost; end the run if the decision cannot be sent.

        The command is made again from the decision's record. As for every continue command, the
        claim in KV `sent` is taken first. So the agent server gets the decision only once, even if
        the lost command still arrives, or another connector also sends the decision.
        """
        sent = await self._stores.sendings.read(approval_id)
        command = await self._context.orders.decisions.command(approval_id)
        if command is not None and (sent is None or sent.state == "claimed"):
            # The queue of the session orders legs by their commands' sequences. With the last
            # sequence of COMMANDS, this leg comes after all legs in the queue.
            state = (await self._context.bus.api(f"STREAM.INFO.{COMMANDS}"))["state"]
            subject = command_subject("connector", "continue", run_id)
            stored = Stored(subject, int(state["last_seq"]), {}, command.dump())
            try:
                await self._continues.carry_out(stored)
                return
            except (BusError, Retry):
                raise
            except Exception:
                log.exception("run %s: its decision cannot be sent, so the run ends", run_id)
        await self.end(run_id, StuckReason.NEVER_SENT, approval_id)

    async def end(self, run_id: str, stuck: StuckReason, approval_id: str | None) -> None:
        """End a run whose start, or whose decision, was lost before it reached an agent server.

        The claim is taken first. Otherwise the lost command could still arrive, and begin a run
        that has ended.
        """
        with self._context.registry.exclusively(run_id):
            if stuck is StuckReason.NEVER_STARTED:
                await self._context.claim_as_cancelled(run_id)
                await self._context.open_and_end(run_id, _NEVER_STARTED)
                return
            assert approval_id is not None
            await self._claim_sending(approval_id)
            await self._stores.sendings.record(approval_id, "refused")
            last = await self._stores.runs.tail(run_id)
            if last is not None and kind_of(last) in CLOSED:
                await self._stores.runs.end(run_id, last, "event", _NEVER_SENT)

    async def _claim_sending(self, approval_id: str) -> None:
        sendings = self._stores.sendings
        sending = await sendings.claim(approval_id)
        if sending is None or sending.sent.state != "claimed":
            return
        if await self._stores.connectors.is_alive(sending.sent.pod):
            raise Retry(0.5)
        if not await sendings.take_over(approval_id, sending.revision):
            raise Retry(0.5)
