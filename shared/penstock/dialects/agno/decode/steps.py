"""Decodes the steps of Agno workflows and gives them ids that are unique in the run.

A loop runs the same step several times under the same upstream id. The second time, the step's id
becomes `<id>#2`. Each turn of a loop is also a step, with the id `<loop>/<iteration>`. This step
contains the steps of the turn.

A transition is emitted when a step begins, and `to_step` is the id of this step. If a router chose
the step, `from_step` is the router and the reason is `selected`. If the step follows a step that
ended, `from_step` is the ended step and the reason is `sequence`. The steps inside a `Parallel` run
at the same time and have no transitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.dialects.agno.decode.frames import AgnoFrame, StepResult
from penstock.dialects.base import MAX_ITEMS, Json, JsonObject, LimitReached, short
from penstock.dialects.json import OBJECT, obj, objects, string, text, without_none
from penstock.dialects.snapshots import DICT, LIST, SET, Snapshots, Table, values

# The type and the data of an event, and the id of its step.
StepEvent = tuple[str, JsonObject, str]


@dataclass(slots=True)
class Steps(Snapshots):
    """Decodes the events of steps, and keeps the open steps by the upstream's id."""

    STORED: ClassVar[Table] = {
        "open": ("open", DICT),
        "names": ("names", DICT),
        "used": ("used", DICT),
        "turns": ("turns", DICT),
        "last": ("last", DICT),
        "chosen": ("chosen", values(LIST)),
        "parallel": ("parallel", SET),
    }

    open: dict[str, str] = field(default_factory=dict)
    # maps a canonical step id to the step's name
    names: dict[str, str] = field(default_factory=dict)
    # maps an upstream id to the number of times the step began
    used: dict[str, int] = field(default_factory=dict)
    # maps a loop's upstream id to the current turn
    turns: dict[str, int] = field(default_factory=dict)
    # maps a step to the inner step that ended last
    last: dict[str, str] = field(default_factory=dict)
    # maps a router to the names of the chosen steps that have not begun
    chosen: dict[str, list[str]] = field(default_factory=dict)
    # the canonical ids of the open `Parallel` steps
    parallel: set[str] = field(default_factory=set)

    def id_of(self, upstream_id: str) -> str:
        """Return the id of the turn for a loop with an open one."""
        ours = self.open.get(upstream_id) or short(upstream_id)
        turn = self.turns.get(upstream_id)
        return ours if turn is None else f"{ours}/{turn}"

    def feed(self, name: str, run_id: str, body: AgnoFrame) -> list[StepEvent]:
        handle, kind = EVENTS[name]
        return handle(self, run_id, body, kind)

    def failures(self, run_id: str, results: Json) -> list[StepEvent]:
        """If all attempts of a step have failed, Agno 3.1 skips the step without an event, and the
        workflow, whose results report the failure, completes."""
        errors = {
            name: string(result.get("error")) or "the step failed"
            for result in _flat(results)
            if result.get("success") is False and (name := string(result.get("step_name")))
        }
        return [
            _failed(run_id, ours, errors[name])
            for upstream_id, ours in list(self.open.items())
            if (name := self.names.get(ours, "")) in errors and self._close(upstream_id)
        ]

    def _begin(self, run_id: str, body: AgnoFrame, kind: str) -> list[StepEvent]:
        upstream_id = _step_id(body)
        times = self.used[upstream_id] = self.used.get(upstream_id, 0) + 1
        step_id = short(upstream_id) if times == 1 else f"{short(upstream_id)}#{times}"
        self.open[upstream_id] = step_id
        name = self.names[step_id] = string(body.get("step_name")) or upstream_id
        parent = string(body.get("parent_step_id"))
        data = {
            "run_id": run_id,
            "step_id": step_id,
            "description": name,
            "kind": kind,
            "iteration": self.turns.get(parent) if parent else None,
            "branch": _branch(body) if kind == "condition" else None,
            "parent_step_id": self.id_of(parent) if parent else None,
        }
        if kind == "router":
            names = body.get("selected_steps")
            names = names if isinstance(names, list) else []
            chosen = [each for each in names if isinstance(each, str)]
            LimitReached.check(len(chosen), MAX_ITEMS, "chosen steps")
            self.chosen[step_id] = chosen
        elif kind == "parallel":
            self.parallel.add(step_id)
        around = str(data["parent_step_id"] or "")
        transition = self._transition(run_id, around, name, step_id)
        return [*transition, ("workflow.step_started", without_none(data), step_id)]

    def _transition(self, run_id: str, around: str, name: str, step_id: str) -> list[StepEvent]:
        before = self.last.pop(around, None)
        if name in self.chosen.get(around, ()):
            self.chosen[around].remove(name)
            from_step, reason = around, "selected"
        elif before is not None and around not in self.parallel:
            from_step, reason = before, "sequence"
        else:
            return []
        ends = {"from_step": from_step, "to_step": step_id}
        return [("workflow.transition", {"run_id": run_id, **ends, "reason": reason}, from_step)]

    def _complete(self, run_id: str, body: AgnoFrame, kind: str) -> list[StepEvent]:
        upstream_id = _step_id(body)
        step_id = self._close(upstream_id) or upstream_id
        parent = string(body.get("parent_step_id"))
        self.last[self.id_of(parent) if parent else ""] = step_id
        response: StepResult = obj(body.get("step_response"))
        if response.get("success") is False:
            return [_failed(run_id, step_id, string(response.get("error")) or "the step failed")]
        output = body.get("content") if kind == "step" else _outputs(body)
        return [_completed(run_id, step_id, output)]

    def _fail(self, run_id: str, body: AgnoFrame, _kind: str) -> list[StepEvent]:
        upstream_id = _step_id(body)
        step_id = self._close(upstream_id) or upstream_id
        return [_failed(run_id, step_id, text(body.get("error")) or "the step failed")]

    def _progress(self, _run_id: str, body: AgnoFrame, _kind: str) -> list[StepEvent]:
        step_id = self.id_of(_step_id(body))
        data = {"step_id": step_id, "message": text(body.get("content") or body.get("data"))}
        return [("workflow.step_progress", data, step_id)]

    def _begin_turn(self, run_id: str, body: AgnoFrame, kind: str) -> list[StepEvent]:
        loop = _step_id(body)
        turn = self.turns[loop] = _turn(body)
        step_id = self.id_of(loop)
        data = {
            "run_id": run_id,
            "step_id": step_id,
            "description": string(body.get("step_name")) or loop,
            "kind": kind,
            "iteration": turn,
            "parent_step_id": self.open.get(loop, loop),
        }
        return [("workflow.step_started", data, step_id)]

    def _complete_turn(self, run_id: str, body: AgnoFrame, _kind: str) -> list[StepEvent]:
        loop = _step_id(body)
        self.turns.setdefault(loop, _turn(body))
        step_id = self.id_of(loop)
        del self.turns[loop]
        return [_completed(run_id, step_id, _results(body.get("iteration_results")))]

    def _close(self, upstream_id: str) -> str | None:
        self.turns.pop(upstream_id, None)
        step_id = self.open.pop(upstream_id, None)
        if step_id is not None:
            self.names.pop(step_id, None)
            self.last.pop(step_id, None)
            self.chosen.pop(step_id, None)
            self.parallel.discard(step_id)
        return step_id


Handler = Callable[[Steps, str, AgnoFrame, str], list[StepEvent]]

EVENTS: dict[str, tuple[Handler, str]] = {
    "StepProgress": (Steps._progress, "step"),
    "StepError": (Steps._fail, "step"),
    "LoopIterationStarted": (Steps._begin_turn, "iteration"),
    "LoopIterationCompleted": (Steps._complete_turn, "iteration"),
    **{
        f"{name}{end}": (handle, kind)
        for name, kind in (
            ("Step", "step"),
            ("StepsExecution", "steps"),
            ("LoopExecution", "loop"),
            ("ParallelExecution", "parallel"),
            ("ConditionExecution", "condition"),
            ("RouterExecution", "router"),
        )
        for end, handle in (("Started", Steps._begin), ("Completed", Steps._complete))
    },
}


def _completed(run_id: str, step_id: str, output: Json) -> StepEvent:
    data = {"run_id": run_id, "step_id": step_id, "output": output}
    return "workflow.step_completed", data, step_id


def _failed(run_id: str, step_id: str, message: str) -> StepEvent:
    error = {"code": "upstream_error", "message": message}
    return "workflow.step_failed", {"run_id": run_id, "step_id": step_id, "error": error}, step_id


def _branch(body: AgnoFrame) -> str | None:
    result = body.get("condition_result")
    return ("if" if result else "else") if isinstance(result, bool) else None


def _outputs(body: AgnoFrame) -> Json:
    return _results(body.get("step_results") or body.get("all_results"))


def _results(results: Json) -> Json:
    if isinstance(results, list):
        return [_results(result) for result in results]
    if isinstance(results, dict):
        keys = ("step_name", "content", "success", "error")
        return without_none({key: results.get(key) for key in keys})
    return results


def _flat(results: Json) -> list[StepResult]:
    # The agent server decides how deeply results are nested, and a recursion could exceed Python's
    # limit.
    flat: list[StepResult] = []
    queue = [results]
    while queue:
        item = queue.pop()
        if isinstance(item, list):
            queue += item
        elif isinstance(item, OBJECT):
            flat.append(item)
            queue.append(objects(item.get("steps")))
    return flat


def _step_id(body: AgnoFrame) -> str:
    return string(body.get("step_id")) or string(body.get("step_name")) or "step"


def _turn(body: AgnoFrame) -> int:
    iteration = body.get("iteration")
    return iteration if type(iteration) is int else 1
