"""Does the effects that the engine decided (`engine/effects.py`). Every call may be repeated."""

from __future__ import annotations

from pydantic import ValidationError

from penstock.bus import Bus
from penstock.bus.state.run_trees import RunTrees
from penstock.runs.calls import CallJob, publish_call
from penstock.validation import reason_of
from penstock_workflows.effects.children import Children
from penstock_workflows.effects.listens import Listens
from penstock_workflows.effects.step_span import context_of
from penstock_workflows.effects.timers import Timers
from penstock_workflows.effects.turns import Turns
from penstock_workflows.engine.effects import (
    Call,
    CancelChild,
    CancelTimer,
    Effect,
    LeaveTurn,
    StartTimer,
    TakeTurn,
    Unlisten,
)
from penstock_workflows.engine.inputs import CalledInput, Input
from penstock_workflows.engine.records import Stop
from penstock_workflows.engine.state import State


class Performer:
    """Does the effects of decisions. `Decisions` itself calls `children` and `listens` for the
    effects that have several steps."""

    def __init__(self, bus: Bus, children: Children, timers: Timers, listens: Listens) -> None:
        self._bus = bus
        self._trees = RunTrees(bus)
        self.children = children
        self.timers = timers
        self.listens = listens
        self._turns = Turns(bus, children, timers)

    async def perform(self, state: State, effect: Effect) -> Input | None:
        """Do an effect of the run with this state, except for `StartChild` and `Listen`.

        Returns an input of the run if the effect is known to have failed, or if a child that should
        be cancelled was never started; else None.
        """
        match effect:
            case CancelChild():
                return await self.children.cancel(effect)
            case StartTimer(timer, due):
                await self.timers.start(state.run_id, timer, due)
            case CancelTimer(timer):
                await self.timers.cancel(state.run_id, timer)
            case Unlisten():
                await self.listens.end(state, effect)
            case Call():
                return await self._call(state, effect)
            case TakeTurn():
                return await self._turns.take(state, effect)
            case LeaveTurn():
                await self._turns.leave(state, effect)
        return None

    async def mark_stopped(self, run_id: str, stop: Stop) -> None:
        """Let no further run below a run that stops begin."""
        by, reason = stop.by or "workflow", stop.reason or "stopped"
        await self._trees.mark_stopped(run_id, by, reason, stop.always_due)

    async def _call(self, state: State, effect: Call) -> Input | None:
        try:
            job = _job_of(state, effect)
        except ValidationError as error:
            # If this error were raised, the decision's input would become a dead letter, and the
            # step would stay open for ever.
            message = "; ".join(reason_of(each) for each in error.errors(include_url=False))
            failure = {"code": "not_accepted", "message": f"the call is not possible: {message}"}
            return CalledInput(effect.call_id, "failed", error=failure)
        await publish_call(self._bus, job)
        return None


def _job_of(state: State, effect: Call) -> CallJob:
    """Return the job of a call. Raises ValidationError if automations accepts no such call, for
    example because its body is too large."""
    command = state.started.command
    return CallJob(
        run_id=state.run_id,
        step_id=effect.step_id,
        call_id=effect.call_id,
        workflow=state.plan.workflow.name if state.plan is not None else "",
        url=effect.url,
        method=effect.method,
        headers=dict(effect.headers),
        statuses=list(effect.expect) if effect.expect is not None else None,
        body=effect.body,
        secret=effect.secret,
        retry_delays_s=[] if effect.one_attempt else None,
        give_up_at=effect.give_up_at / 1000 if effect.give_up_at is not None else None,
        traceparent=context_of(state, effect.call_id),
        depth=command.get("depth") or 0,
    )
