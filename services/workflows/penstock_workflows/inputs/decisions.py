"""Processes one input of a workflow's run: read the journal, decide, append records, do effects.

The input's message is acknowledged when `take` returns. So NATS delivers an input again if its
effects are not done.

- Each decision is made for a position in the journal. NATS stores the decision's records only if
  the journal still ends at this position. If another process has appended first, or if it is
  unknown whether the records were stored, this process reads the new records and decides again.
- After a repeated delivery, a conflict or an unknown outcome, the effects of all open steps are
  done again. The records may be stored already. In this case the new decision has no records, so
  only the open steps show which effects may be missing.
- Each effect may be repeated: the second time, the effect changes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final, Literal

from penstock import telemetry
from penstock.bus import Bus, FenceConflict, OutcomeUnknown, subjects
from penstock.bus.shards import new_run_id
from penstock.off_loop import OFF_LOOP
from penstock.tracing import spans
from penstock.turns import TenantUser
from penstock_workflows.effects.frames import Frames
from penstock_workflows.effects.perform import Performer
from penstock_workflows.effects.step_span import span_of
from penstock_workflows.engine.decide import Decision, decide
from penstock_workflows.engine.draft import SliceUsed
from penstock_workflows.engine.effecting import open_effects, start_child
from penstock_workflows.engine.effects import CancelChild, Effect, LeaveTurn, Listen
from penstock_workflows.engine.inputs import (
    ApprovalInput,
    CalledInput,
    ChildInput,
    Input,
    ProceedInput,
    StartInput,
    StepStartedSeen,
    TimerInput,
)
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import End, Ended, Json
from penstock_workflows.engine.records import Retry as RetryRecord
from penstock_workflows.journal.journal import Incomplete, Journals
from penstock_workflows.journal.memory import RunInMemory, Runs, Values, fold_new_records

log = logging.getLogger(__name__)

MAX_MESSAGE_CHARACTERS: Final = 2000
# The most steps of a decision that is made on the event loop; a step takes about a microsecond. A
# decision with more steps is made again in the thread.
SLICE_STEPS: Final = 2000
# The kinds of inputs that exist only for a run whose journal was begun. If the run of such an input
# has no journal, the journal was removed or lost.
_Taken = Literal["whole", "partial", "nothing"]  # how much was decided about an input
_OF_A_RUN: Final = (ApprovalInput, CalledInput, ChildInput, TimerInput)


class Decisions:
    """Processes inputs: one after another for the same run, and concurrently for different runs."""

    def __init__(
        self,
        bus: Bus,
        journals: Journals,
        runs: Runs,
        frames: Frames,
        performer: Performer,
        run_steps: int,
    ) -> None:
        self._bus = bus
        self._journals = journals
        self._values = Values(journals)
        self._runs = runs
        self._frames = frames
        self._performer = performer
        self._run_steps = run_steps

    async def take(self, run_id: str, cause: Input, *, repeated: bool) -> bool:
        """Decide about an input, and do the effects of the decision. Return False if there was
        nothing to decide: the input has no meaning, or another process has decided.

        After a partial decision, decide about the rest. Between two decisions, other inputs of the
        run have their turn, such as a cancel. `repeated` tells whether a decision about the input
        may have been made before.

        Raises:
            Retry, BusError: not everything is done; call again with the same input and `repeated`.
            Exception: the input cannot be processed.
        """
        taken = await self._take_once(run_id, cause, repeated=repeated)
        is_decided = taken != "nothing"
        while taken == "partial":
            taken = await self._take_once(run_id, ProceedInput(), repeated=False)
        return is_decided

    async def _take_once(self, run_id: str, cause: Input, *, repeated: bool) -> _Taken:
        async with self._runs.take(run_id) as run:
            try:
                return await self._take(run, cause, repeated=repeated or run.owes_effects)
            except Incomplete:
                # The journal may have been restored from a backup. The state in memory would then
                # fail every further input of the run until this process ends, so the state is read
                # again.
                run.is_stale = True
                raise

    async def repeat(self, run_id: str) -> None:
        """Do the effects of all open steps of a run again, if the run has a journal."""
        async with self._runs.take(run_id) as run:
            await self._read_on(run)
            if run.state is not None and run.unreadable is None:
                await self._do(run, open_effects(run.state))

    async def _take(self, run: RunInMemory, cause: Input, *, repeated: bool) -> _Taken:
        """Decide once, and do the effects."""
        if repeated or not (run.is_known or isinstance(cause, StartInput)):
            await self._read_on(run)
        if run.unreadable is not None:
            await self._fail_unreadable(run)
            return "whole"
        if isinstance(cause, StepStartedSeen):
            await self._on_step_started(run, cause, repeated=repeated)
            return "whole"
        is_current = repeated
        while True:
            decision = await self._decide(run, cause)
            if not decision.records:
                # The decision has no records. If the state in memory is old, another process may
                # have appended the records that the input is about. So the journal is read, and the
                # input is decided again.
                if is_current or not await self._read_on(run):
                    break
                is_current = True
                continue
            try:
                await self._append(run, decision)
                break
            except (FenceConflict, OutcomeUnknown) as error:
                telemetry.WORKFLOW_CONFLICTS.inc()
                log.debug("run %s: decided again: %s", run.run_id, error)
                repeated = is_current = True
                await self._read_on(run)
        if run.state is None and isinstance(cause, _OF_A_RUN):
            log.warning(
                "run %s has no journal (any more), so %s changes nothing",
                run.run_id,
                type(cause).__name__,
            )
        is_decided = bool(decision.records) or repeated
        if run.state is not None and is_decided:
            await self._do(run, open_effects(run.state) if repeated else decision.effects)
        if decision.is_partial:
            return "partial"
        return "whole" if is_decided else "nothing"

    async def _take_all(self, run: RunInMemory, cause: Input) -> None:
        while await self._take(run, cause, repeated=False) == "partial":
            cause = ProceedInput()

    async def _decide(self, run: RunInMemory, cause: Input) -> Decision:
        now_ms = round(self._bus.clock.time() * 1000)
        make_id = partial(new_run_id, subjects.shard_of(run.run_id), self._bus.clock.time())

        make = partial(
            decide,
            run.state,
            cause,
            now_ms=now_ms,
            new_id=make_id,
            run_steps=self._run_steps,
        )

        async def call(values: dict[str, Json]) -> Decision:
            # A partial decision was long, so the next one is likely to be long, too.
            if not isinstance(cause, ProceedInput):
                with contextlib.suppress(SliceUsed):
                    return make(values=values, slice_steps=SLICE_STEPS)
            return await OFF_LOOP.run(_owner_of(run, cause), partial(make, values=values))

        return await self._values.with_values(run.run_id, call)

    async def _append(self, run: RunInMemory, decision: Decision) -> None:
        for value in decision.stored:
            await self._journals.store_value(run.run_id, value.digest, value.payload)
        # From here on, the records may be stored although their effects are not done.
        run.owes_effects = True
        assert decision.state is not None
        end = await self._journals.append(run.run_id, run.end, decision.records)
        if not run.end.records:
            self._frames.begin(run)
        if spans.is_on():
            for record in decision.records:
                if isinstance(record, Ended | RetryRecord):
                    spans.record(span_of(run.state, record))
        run.take_over(decision.state, end, decision.frames)
        for record in decision.records:
            if isinstance(record, Ended):
                telemetry.WORKFLOW_STEPS.labels(record.outcome).inc()
            elif isinstance(record, End):
                telemetry.WORKFLOW_RUNS.labels(record.status).inc()
                log.info(
                    "run %s: the workflow has ended: %s%s",
                    run.run_id,
                    record.status,
                    _cause_of_end(record),
                )

    async def _do(self, run: RunInMemory, effects: Iterable[Effect]) -> None:
        assert run.state is not None
        run.owes_effects = True
        await self._frames.write(run)
        state, learnt = run.state, list[Input]()
        if (stop := state.stop) is not None and (state.abandoned_children or stop.always_due):
            await self._performer.mark_stopped(state.run_id, stop)
        listens: list[Listen] = []
        for effect in effects:
            if isinstance(effect, Listen):
                listens.append(effect)
            elif (cause := await self._performer.perform(state, effect)) is not None:
                learnt.append(cause)
        if state.end is not None:
            await self._performer.timers.purge_later(state.run_id, state.end.at)
        meanwhile = [await self._performer.listens.begin(state, listen) for listen in listens]
        if state.waits_for_turn and await self._read_on(run) and run.state.end is not None:
            # Another process has ended the run, and may have left the queue before this one entered
            # it. The run would stay there, and keep all others with its key waiting.
            await self._do(run, open_effects(run.state))
        # All effects so far are done. If one of the following inputs fails, the effects of the open
        # steps are repeated, and this includes `listens.begin`, which returns these inputs again.
        run.owes_effects = False
        for cause in itertools.chain(learnt, *meanwhile):
            await self._take_all(run, cause)
        for listen in listens:
            await self._performer.listens.caught_up(state, listen)

    async def _on_step_started(
        self, run: RunInMemory, seen: StepStartedSeen, *, repeated: bool
    ) -> None:
        if run.state is None:
            # The run is no workflow of Penstock. Agent servers also publish events with steps.
            return
        if repeated:
            await self._do(run, open_effects(run.state))
        child = start_child(run.state, seen.child)
        if child is None and not repeated and await self._read_on(run):
            child = start_child(run.state, seen.child)
        if child is None:
            return
        failure = await self._performer.children.start(run.state, child)
        if failure is not None:
            await self._take_all(run, failure)
            return
        # Another process may have ended the step meanwhile, at a moment when the child did not
        # exist and could not be cancelled. So the child is cancelled here.
        if await self._read_on(run) and start_child(run.state, seen.child) is None:
            await self._performer.perform(run.state, CancelChild(seen.child, "stopped", "workflow"))

    async def _fail_unreadable(self, run: RunInMemory) -> None:
        state = run.state
        assert state is not None
        if state.end is None:
            message = (
                "this version of Penstock cannot compile the workflow's definition: "
                f"{run.unreadable}"
            )
            error = {"code": "invalid_definition", "message": message[:MAX_MESSAGE_CHARACTERS]}
            now_ms = round(self._bus.clock.time() * 1000)
            end = End(max(now_ms, state.at), "failed", error=error)
            frames = projection(state, end)
            # If the append raises a conflict or an unknown outcome, NATS delivers the input again,
            # and the process that takes the input first reads the journal's end.
            position = await self._journals.append(run.run_id, run.end, [end])
            log.error("run %s: %s", run.run_id, message)
            telemetry.WORKFLOW_RUNS.labels(end.status).inc()
            state.end, state.length = end, position.records
            run.take_over(state, position, frames)
        effects: list[Effect] = [
            CancelChild(child, "stopped", "workflow") for child in run.children
        ]
        if state.turn is not None:
            effects.append(LeaveTurn(state.turn.workflow, state.turn.key))
        await self._do(run, effects)

    async def _read_on(self, run: RunInMemory) -> bool:
        """Apply the journal's new records to the run; return whether there were any."""
        return await fold_new_records(
            run, self._journals, self._values, self._frames.find_last_frame
        )


def _owner_of(run: RunInMemory, cause: Input) -> TenantUser:
    command = cause.command if isinstance(cause, StartInput) else {}
    if run.state is not None:
        command = run.state.started.command
    return TenantUser.of(command)


def _cause_of_end(end: End) -> str:
    """Return a failure's code and step for the log; its message may quote an agent."""
    if end.error is None:
        return ""
    return f" ({end.error.get('code')}{f', step {end.step}' if end.step else ''})"
