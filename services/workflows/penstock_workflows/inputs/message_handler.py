"""Handles each message that may be an input of a run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import orjson

from penstock import log_fields
from penstock.bus import Bus, BusError, Retry, Stored, masking, streams, subjects
from penstock.bus.records.approvals import ApprovalNews
from penstock.bus.records.runs import CancelCommand, RunRecord, StartCommand
from penstock.bus.state.run_trees import RunTrees
from penstock.bus.streams import JOURNAL
from penstock.bus.subjects import WORKFLOWS
from penstock.bus.write import objects
from penstock.redactions.scanner import kinds_where
from penstock.runs.calls import Called
from penstock.runs.start import Starter
from penstock.web.problems import Problem
from penstock_workflows.effects.listens import Listens
from penstock_workflows.effects.timers import PURGE, Timers, timer_of, was_short
from penstock_workflows.effects.turns import TURN
from penstock_workflows.engine.inputs import (
    ApprovalInput,
    CalledInput,
    CancelInput,
    ChildInput,
    FailInput,
    Input,
    StepStartedSeen,
    TimerInput,
)
from penstock_workflows.engine.records import UnknownRecord
from penstock_workflows.inputs.decisions import Decisions
from penstock_workflows.inputs.starts import Starts, unstarted_input_of
from penstock_workflows.journal.journal import Journals

# The events that are inputs of a workflow's run: the pauses and ends of its children, its own
# `workflow.step_started`, and its own end if another service has written it.
CONCERNS: Final = (
    "lifecycle.completed.*",
    "lifecycle.failed.*",
    "lifecycle.cancelled.*",
    "lifecycle.paused.*",
    "lifecycle.resumed.*",
    "workflow.step_started.*",
)
STEP_STARTED: Final = "workflow.step_started"
_ENDED_BY_OTHERS: Final = frozenset({"lifecycle.failed", "lifecycle.cancelled"})


def input_of_command(kind: str, payload: bytes) -> Input:
    match kind:
        case "cancel":
            cancel = CancelCommand.model_validate_json(payload)
            return CancelInput(cancel.by, cancel.reason, cancel.budget)
        case "continue":
            change = ApprovalNews.model_validate_json(payload)
            items = [item.model_dump(exclude_none=True) for item in change.items or ()]
            return ApprovalInput(change.approval_id, change.news, change.event, items)
        case _:
            called = Called.model_validate_json(payload)
            return CalledInput(
                called.call_id,
                called.outcome,
                called.status,
                called.answer,
                called.error.model_dump() if called.error is not None else None,
                called.headers,
            )


def inputs_of_event(payload: bytes) -> list[tuple[str, Input]]:
    """Return the inputs of an event, each with the run that it concerns.

    An event of a child concerns its parent. The end of any run may concern this run itself, since
    the edge and the normalizer may end the run of a workflow, too.
    """
    event: dict[str, Any] = orjson.loads(payload)
    name = event["event"]
    type_, run_id = f"{name['category']}.{name['action']}", str(event["run_id"])
    if type_ == STEP_STARTED:
        child = event["data"].get("child_run_id")
        return [(run_id, StepStartedSeen(str(child)))] if child else []
    found: list[tuple[str, Input]] = []
    if event.get("workflow_depth") and event.get("parent_run_id"):
        child_input = ChildInput(run_id, type_, event["data"], int(event["sequence"]))
        found.append((str(event["parent_run_id"]), child_input))
    if type_ in _ENDED_BY_OTHERS:
        data = event["data"]
        reason = str(data.get("reason") or data.get("code") or "ended")
        found.append((run_id, CancelInput(str(data.get("by") or "penstock"), reason)))
    return found


log = logging.getLogger(__name__)

# Seconds before an input is taken again if a newer version has written the run's journal. A process
# of that version may take the input meanwhile.
NEWER_S = 5.0
MAX_UNFINISHED = 10_000
MAX_ERROR_CHARACTERS = 2000
# the first subject tokens of inputs that concern the run that the subject names
_OF_THE_RUN_ITSELF = frozenset({"command", "due"})


def _once(
    handle: Callable[[MessageHandler, Stored, bool], Awaitable[None]],
) -> Callable[[MessageHandler, Stored], Awaitable[None]]:
    """Tell a handler whether its message may have been handled in part before."""

    async def once(self: MessageHandler, stored: Stored) -> None:
        key = stored.subject, stored.sequence
        repeated = stored.delivered != 1 or key in self.unfinished
        try:
            await handle(self, stored, repeated)
        except BaseException as error:
            if len(self.unfinished) > MAX_UNFINISHED:
                self.unfinished.clear()
            self.unfinished.add(key)
            if isinstance(error, UnknownRecord):
                log.warning("%s is tried again every %g s: %s", stored.subject, NEWER_S, error)
                raise Retry(NEWER_S) from error
            raise
        self.unfinished.discard(key)

    return once


class MessageHandler:
    """Turns messages into inputs. Each method returns when its message may be acknowledged."""

    def __init__(
        self,
        bus: Bus,
        starts: Starts,
        decisions: Decisions,
        journals: Journals,
        timers: Timers,
        listens: Listens,
        starter: Starter,
    ) -> None:
        self._bus = bus
        self._starter = starter
        self._trees = RunTrees(bus)
        self._starts = starts
        self._decisions = decisions
        self._journals = journals
        self._timers = timers
        self._listens = listens
        # The messages whose handling began in this process and failed, by subject and stream
        # sequence.
        self.unfinished: set[tuple[str, int]] = set()

    async def short_timer(self, run_id: str, timer: str) -> bool:
        """Handle a timer for which this process has waited; return False if nothing was to do."""
        # A run may be woken twice. The process of the first time may have died between the record
        # of the turn and its effects, and the timer's message is removed after this call.
        return await self._decisions.take(run_id, TimerInput(timer), repeated=timer == TURN)

    async def replay(self, stored: Stored) -> None:
        """Handle a message that became a dead letter and that an operator replays."""
        self.unfinished.add((stored.subject, stored.sequence))
        match stored.subject.partition(".")[0]:
            case "command":
                await self.command(stored)
            case "due":
                await self.due(stored)
            case _:
                await self.event(stored)
                await self.awaited_event(stored)

    @_once
    async def command(self, stored: Stored, repeated: bool) -> None:
        _, _, kind, run_id = stored.subject.split(".")
        payload = await objects.unwrap(self._bus, stored.payload)
        cause: Input
        if kind == "start":
            command = StartCommand.model_validate_json(payload)
            log_fields.traced(run_id, command.traceparent)
            if not await self._may_start(run_id):
                await self._decisions.repeat(run_id)
                return
            cause = await self._starts.input_of(command)
            stopped = await self._trees.stopped_among(command.ancestors or ())
            if stopped is not None:
                cause = replace(cause, cancelled=CancelInput(stopped.by, stopped.reason))
        else:
            cause = input_of_command(kind, payload)
            if isinstance(cause, CancelInput):
                # Hundreds of inputs of the run may be handled before this one. The mark keeps them
                # from starting runs.
                await self._trees.mark_stopped(run_id, cause.by, cause.reason)
                await self._end_unstarted(run_id, repeated=repeated, cancelled=cause)
        await self._decisions.take(run_id, cause, repeated=repeated)

    async def refuse(self, stored: Stored, error: Exception) -> None:
        """End the run of a start command that was given up; do nothing to a run that has begun. If
        the run were not ended, it would stay queued for ever without a sign of the error."""
        run_id = subjects.run_id_of(stored.subject)
        message = f"the start cannot be carried out: {error}"[:MAX_ERROR_CHARACTERS]
        refused = {"code": "internal", "message": message}
        await self._end_unstarted(run_id, repeated=True, refused=refused)

    async def fail(self, stored: Stored, error: Exception) -> None:
        """Fail the run of a command, timer or event that was given up and is a dead letter.

        Otherwise the run would wait for ever, and only the dead letter would show it, which has the
        reason `error`. A run that has ended is not changed. An error that a repeated call would
        raise again is only logged.
        """
        letter = subjects.deadletter(WORKFLOWS, subjects.run_id_of(stored.subject))
        message = (
            f"the input {stored.subject} cannot be processed; the dead letter {letter} has the "
            "reason (penstock deadletters list --service workflows)"
        )
        category, action, child, *_ = stored.subject.split(".")
        has_ended = category == "lifecycle" and action in ("completed", "failed", "cancelled")
        ended = (child, f"{category}.{action}") if has_ended else None
        cause = FailInput({"code": "internal", "message": message}, ended)
        for run_id in await self._concerned(stored):
            try:
                await self._decisions.take(run_id, cause, repeated=True)
            except (Retry, BusError):
                raise
            except Exception:
                log.exception(
                    "run %s: it cannot be ended after %s was given up (%r); cancel the run",
                    run_id,
                    stored.subject,
                    error,
                )

    async def _concerned(self, stored: Stored) -> list[str]:
        """Return the runs of which the message may be an input, even if its payload is
        unreadable."""
        run_id = subjects.run_id_of(stored.subject)
        category, action, *rest = stored.subject.split(".")
        if category == "due" and rest[-1:] == [PURGE]:
            return []  # the run has ended, and its journal is being removed
        if category in _OF_THE_RUN_ITSELF or f"{category}.{action}" == STEP_STARTED:
            return [run_id]
        # `failed` and `cancelled` also concern the event's own run, because another service may
        # have ended a workflow's run. No other lifecycle event is an input of its own run.
        concerned = [run_id] if action in ("failed", "cancelled") else []
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is not None and record.workflow_depth and record.parent_run_id:
            concerned.append(record.parent_run_id)
        return concerned

    async def _end_unstarted(
        self,
        run_id: str,
        *,
        repeated: bool,
        cancelled: CancelInput | None = None,
        refused: dict[str, Any] | None = None,
    ) -> None:
        """End a run whose start command is not handled yet; do nothing to any other run.

        A cancel may be delivered before the start, since the two messages have different consumers.
        If this method did not end the run, the cancel would be lost, and the run would begin.
        """
        if await self._bus.tail(JOURNAL, subjects.journal(run_id)) is not None:
            return
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is not None and record.status == "queued" and record.target == "workflows":
            start = unstarted_input_of(record, cancelled=cancelled, refused=refused)
            await self._decisions.take(run_id, start, repeated=repeated)

    async def _may_start(self, run_id: str) -> bool:
        """Return whether a run may begin: its record must have the status `queued`.

        Otherwise a start that an operator replays after the run's journal was removed would carry
        the workflow out a second time. Raises ValueError for a run without a record.
        """
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is None:
            raise ValueError(f"the run {run_id} has no record (any more), so it is not started")
        return record.status == "queued"

    @_once
    async def event(self, stored: Stored, repeated: bool) -> None:
        opened = await objects.unwrapped(self._bus, stored)
        inputs = list(inputs_of_event(opened.payload))
        if opened.unmasked is not None:
            as_came = dict(inputs_of_event(masking.whole(opened)))
            child_id = subjects.run_id_of(stored.subject)
            inputs = [
                (run_id, as_came[run_id] if await self._may_have(run_id, child_id) else cause)
                for run_id, cause in inputs
            ]
        for run_id, cause in inputs:
            await self._decisions.take(run_id, cause, repeated=repeated)

    async def _may_have(self, run_id: str, child_id: str) -> bool:
        """Return whether a workflow's run gets what is masked in the run of its step: if its own
        redactions mask all these kinds. Otherwise everybody could read them in its own events."""
        try:
            own, others = [await self._masked_kinds(each) for each in (run_id, child_id)]
        except Problem as problem:  # the redactions of one of them are no longer stored
            text = "run %s: what is masked in the run %s is masked in it, too: %s"
            log.warning(text, run_id, child_id, problem)
            return False
        return bool(others) and others <= own

    async def _masked_kinds(self, run_id: str) -> set[str]:
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        return kinds_where(await self._starter.redactions_of(record) if record else None, "egress")

    @_once
    async def awaited_event(self, stored: Stored, repeated: bool) -> None:
        """Handle an event for which steps may listen."""
        stream = streams.events_for(subjects.run_id_of(stored.subject))
        for run_id, cause in await self._listens.inputs_of(stream, stored):
            await self._decisions.take(run_id, cause, repeated=repeated)

    @_once
    async def due(self, stored: Stored, repeated: bool) -> None:
        run_id, timer = timer_of(stored.subject)
        if timer == PURGE:
            await self._journals.purge(run_id)
        else:
            # A process that waited for the timer itself may have died between its records and their
            # effects.
            repeated = repeated or was_short(stored)
            await self._decisions.take(run_id, TimerInput(timer), repeated=repeated)
        await self._timers.delete_due(stored.sequence)
