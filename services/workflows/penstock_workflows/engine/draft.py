"""Collects a decision while it is made: its records, and the state after these records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock.expressions import (
    MAX_STEPS,
    Budget,
    ExpressionError,
    MissingField,
    ValueExpression,
)
from penstock_workflows.definition import Step
from penstock_workflows.definition.model import LAST
from penstock_workflows.engine import limits
from penstock_workflows.engine.effecting import effects_of
from penstock_workflows.engine.effects import Effect, Frame
from penstock_workflows.engine.plan import Plan
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import Json, JsonObject, Record
from penstock_workflows.engine.state import Key, State, fold
from penstock_workflows.engine.values import Stored, divided


class SliceUsed(Exception):
    """The decision takes more steps than its slice. Decide again, in a thread and without one."""


class StepError(Exception):
    """An expression of a step cannot be evaluated. `error` has the code and the message."""

    def __init__(self, what: str, expression: ValueExpression, cause: ExpressionError) -> None:
        message = f"{what} cannot be evaluated: {cause.reason} (in {expression.text!r})"
        super().__init__(message)
        self.error: JsonObject = {"code": "expression_error", "message": message}
        self.is_missing_field = isinstance(cause, MissingField)


class RunStepsUsed(StepError):
    """The decisions about the run have taken all its steps."""

    def __init__(self, what: str, expression: ValueExpression, run_steps: int) -> None:
        reason = f"the decisions about the run have taken {run_steps} steps, and may take no more"
        super().__init__(what, expression, ExpressionError(reason))
        self.error["code"] = "limit_exceeded"


@dataclass(slots=True)
class Draft:
    """A copy of the state, on which the records of one decision are folded while the decision is
    made.

    `now_ms` is the time of the decision, `new_id` makes ids for children, and `values` maps digests
    to outputs that were stored by reference. `slice_steps` and `run_steps` are explained at
    `decide`.
    """

    state: State
    now_ms: int
    new_id: Callable[[], str]
    values: dict[str, Json]
    slice_steps: int | None
    run_steps: int
    records: list[Record] = field(default_factory=list)
    steps: int = 0  # the steps that the decision has taken
    output_bytes: int = 0
    is_partial: bool = False
    effects: list[Effect] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)

    @property
    def at(self) -> int:
        """The time of the next record (ms since 1970). Times never decrease in a journal."""
        return max(self.now_ms, self.state.at)

    @property
    def plan(self) -> Plan:
        assert self.state.plan is not None, "a run without a definition takes no further input"
        return self.state.plan

    @property
    def is_over(self) -> bool:
        """Whether the run stops or has ended, so that only `always` steps may begin or end."""
        return self.state.stop is not None or self.state.end is not None

    @property
    def may_begin(self) -> bool:
        """Whether the steps in `state.ready` may begin. Those of a stopped run wait for the ends of
        its cancelled children, but not beyond its grace time."""
        stop = self.state.stop
        if stop is None or self.state.end is not None:
            return self.state.end is None and not self.state.waits_for_turn
        return not self.state.abandoned_children or self.at >= stop.due

    @property
    def is_used_up(self) -> bool:
        """Whether this decision may begin nothing more, so that a further decision begins it."""
        return (
            self.steps >= limits.DECISION_STEPS or self.output_bytes >= limits.DECISION_BYTES
        ) and self.slice_steps is None

    @property
    def is_exhausted(self) -> bool:
        return self.state.steps + self.steps > self.run_steps

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.slice_steps is not None and self.steps > self.slice_steps:
            raise SliceUsed

    def write(self, record: Record) -> None:
        self.spend(limits.RECORD_STEPS)
        self.effects.extend(effects_of(self.state, record))
        self.frames.extend(projection(self.state, record, self.values))
        self.records.append(record)
        fold(self.state, record)

    def stored_output(self, output: Json) -> tuple[Json, JsonObject | None, int]:
        """Return what a record has of an output: the output, None, and its size in bytes.

        A large output is added to `stored`, and the result is None, its reference, and 0. Raises
        NotStorable.
        """
        inline, ref, size, stored = divided(output, self.state.inline_bytes)
        self.output_bytes += size if stored is None else len(stored.payload)
        if stored is not None:
            self.stored.append(stored)
            self.values[stored.digest] = output
        return inline, ref, size

    # expressions

    def evaluate(
        self, what: str, expression: ValueExpression, names: Collection[str], **extra: Json
    ) -> Any:
        """Return the value of an expression, which can use the outputs of the steps in `names` and
        the values in `extra`.

        Raises:
            StepError: the expression cannot be evaluated.
            SliceUsed: the decision has taken more steps than its slice.
            ValuesNeeded: the expression names a step whose output is stored by reference.
        """
        state, scope = self.state, dict[str, Json]()
        used = self.plan.names_in(expression)
        for name in used:
            if name in extra:
                scope[name] = extra[name]
            elif name == "input":
                scope[name] = state.started.input or {}
            elif name == "now":
                scope[name] = datetime.fromtimestamp(self.at / 1000, UTC)
            elif name in names and name in state.results:
                result = state.results[name]
                scope[name] = {
                    "output": result.value(self.values),
                    "error": result.error,
                    "status": result.outcome,
                }
            elif name in names and state.stop is not None:
                scope[name] = {"output": None, "error": None, "status": "cancelled"}
        of_run = self.run_steps - state.steps - self.steps
        of_slice = MAX_STEPS if self.slice_steps is None else self.slice_steps - self.steps
        allowed = max(min(MAX_STEPS, of_run, of_slice), 0)
        budget = Budget(allowed)
        try:
            return expression.evaluate(scope, budget)
        except ExpressionError as error:
            if budget.steps < 0 and allowed == of_slice < MAX_STEPS:
                raise SliceUsed from None
            if budget.steps < 0 and allowed < MAX_STEPS:
                raise RunStepsUsed(what, expression, self.run_steps) from None
            raise StepError(what, expression, error) from None
        finally:
            self.steps += allowed - budget.steps

    def output_before(self, step: str, index: int) -> Json:
        """Return the output of the round before the one with this index; None for the first.
        Raises ValuesNeeded."""
        result = self.state.loops[step].results[index - 1] if index else None
        return None if result is None else result.value(self.values)

    def of_step(
        self,
        field_: str,
        expression: ValueExpression,
        step: Step,
        index: int | None = None,
        **extra: Json,
    ) -> Any:
        if index is not None and step.for_each is not None:
            extra[step.for_each.as_] = self.state.loops[step.name].items[index]
            reads_last = step.for_each.until is not None and LAST in self.plan.names_in(expression)
            if reads_last and LAST not in extra:
                extra[LAST] = self.output_before(step.name, index)
        where = step.name if index is None else f"{step.name}.{index}"
        return self.evaluate(f"{field_} of the step {where}", expression, step.ancestors, **extra)


def name_of(key: Key) -> str:
    step, index = key
    return step if index is None else f"{step}.{index}"
