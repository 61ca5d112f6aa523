"""Carries out the steps of budgets: warns runs, stops them, and lets them ask people.

Every call may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from penstock import telemetry
from penstock.budgets.document import RunFacts
from penstock.bus import Bus, Message
from penstock.bus.records.runs import CancelCommand, RunRecord
from penstock.bus.subjects import command
from penstock_approvals.budgets.reached import Reached
from penstock_approvals.runs.announcements import Announcements

log = logging.getLogger(__name__)

BY: Final = "policy"  # who has cancelled a run that a budget stops
REASON: Final = "budget"
# In what a step's run asks: the workflow's run whose budget is used up.
AROUND: Final = "workflow_run_id"


class BudgetActions:
    """Sends warnings and commands. Every method raises BusError."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        # Announcements are written as those of approvals are: once, in the run's order.
        self._announcements = Announcements(bus, pod)

    async def carry_out(self, reached: Reached, run: RunRecord, facts: RunFacts, leg: int) -> None:
        """Carry a step out for a run that has just spent. `facts` are of the run whose budget it
        is: this run, or a workflow around it."""
        step = reached.step.do
        telemetry.BUDGET_STEPS.labels(reached.budget.id, step).inc()
        log.info("run %s: budget %s: %s at %s", run.run_id, reached.budget.id, step, reached.told)
        if step == "warn":
            await self._warn(run.run_id, leg, reached)
        elif step == "stop":
            await self._stop(reached, facts)
        else:
            await self._cancel(run, reached, leg=leg, ask=_asked(reached, run, facts))

    async def _warn(self, run_id: str, leg: int, reached: Reached) -> None:
        await self._announcements.once(run_id, leg, ("system.warning", reached.warning))

    async def _stop(self, reached: Reached, facts: RunFacts) -> None:
        """Stop all runs of the account; of a workflow's account, the workflow, which stops its
        steps' runs."""
        ids: Iterable[str] = (
            [facts.run_id] if reached.budget.per == "run" else list(reached.account.runs)
        )
        for run_id in ids:
            record = await self._bus.bucket("runs").load(run_id, RunRecord)
            if record is not None:
                await self._cancel(record, reached)

    async def _cancel(
        self,
        run: RunRecord,
        reached: Reached,
        leg: int | None = None,
        ask: dict[str, Any] | None = None,
    ) -> None:
        cancel = CancelCommand(
            run_id=run.run_id, by=BY, reason=REASON, leg=leg, budget=reached.facts, ask=ask
        )
        name = f"{run.run_id}.{reached.mark(leg or 0)}"
        subject = command(run.target or "connector", "cancel", run.run_id)
        await self._bus.publisher.publish(Message(subject, cancel.dump(), {"Nats-Msg-Id": name}))


def _asked(reached: Reached, run: RunRecord, facts: RunFacts) -> dict[str, Any]:
    """Return what people are asked. A step asks for the workflow whose budget is used up, and a
    rejection ends the workflow."""
    ask = reached.ask
    if reached.budget.per == "run" and facts.run_id != run.run_id:
        ask["args"] = {**ask["args"], AROUND: facts.run_id}
    return ask
