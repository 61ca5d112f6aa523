"""Makes the keys that name the sender of a frame, and the frames of a workflow's steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.dialects.base import Json, JsonObject, epoch_s
from penstock.dialects.json import obj

# Maps the name of an agent's event to the name of the same event of a workflow, where the two
# differ. The events of a team have the names of an agent's events, with a prefix.
_WORKFLOW_NAMES: Final = {
    "RunStarted": "WorkflowStarted",
    "RunContinued": "StepContinued",
    "RunPaused": "WorkflowPaused",
    "RunCompleted": "WorkflowCompleted",
    "RunError": "WorkflowError",
    "RunCancelled": "WorkflowCancelled",
}


@dataclass(slots=True)
class Step:
    """A step that has begun, with its index and the data of its `workflow.step_started`."""

    index: int
    data: JsonObject


@dataclass(slots=True)
class Address:
    """Makes frames with the keys that name the sender. `kind` is agent, team or workflow."""

    kind: str
    name: str
    agent_id: str = ""
    steps: dict[str, Step] = field(default_factory=dict)  # maps a canonical step id to the step

    def frame(self, event: JsonObject, name: str, **fields: Json) -> JsonObject:
        """`name` is the event's name in the stream of an agent."""
        return {
            "event": name if event.get("subrun") else self._name(name),
            **self._sender(event),
            "session_id": event.get("session_id", ""),
            "created_at": int(epoch_s(event)),
            **fields,
        }

    def awaits_start(self, dispatch: JsonObject) -> bool:
        """In Penstock's workflows, a step names the run that does its work, and is dispatched
        before it starts. In an agent server's workflow, a step starts before its inner run."""
        step_id = dispatch.get("step_id")
        if not step_id:
            return False
        step = self.steps.get(step_id)
        child = dispatch["data"]["subrun_id"]
        return step is None or step.data.get("child_run_id") not in (None, child)

    def _name(self, name: str) -> str:
        if self.kind == "workflow":
            return _WORKFLOW_NAMES.get(name, name)
        return f"Team{name}" if self.kind == "team" else name

    def _sender(self, event: JsonObject) -> JsonObject:
        source, subrun = event.get("source"), event.get("subrun")
        run_id = event["run_id"]
        outer = {f"{self.kind}_id": self.agent_id, f"{self.kind}_name": self.name or self.agent_id}
        if not source or (source["agent_type"] != "worker" and not subrun):
            return {**outer, "run_id": run_id}
        agent = {"agent_id": source["agent_id"], "agent_name": source["agent_name"]}
        if not subrun:  # a worker sends events in the outer run itself
            return {**outer, **agent, "run_id": run_id}
        inner = {**agent, "run_id": subrun["id"]}
        if self.kind != "workflow" or subrun.get("parent_id"):
            return {**inner, "parent_run_id": subrun.get("parent_id") or run_id}
        within = {"workflow_id": self.agent_id, "workflow_run_id": run_id}
        return {**inner, **within, **self._step(event.get("step_id"))}

    def _step(self, step_id: Json) -> JsonObject:
        step = self.steps.get(step_id) if step_id else None
        if step is None:
            return {"step_id": step_id} if step_id else {}
        name = step.data.get("description")
        return {"step_id": step_id, "step_name": name, "step_index": step.index}


# Maps the kind of a step to the prefix of its events' names. For all other kinds, the prefix is
# "Step".
_NAMES: Final = {
    "steps": "StepsExecution",
    "loop": "LoopExecution",
    "iteration": "LoopIteration",
    "parallel": "ParallelExecution",
    "condition": "ConditionExecution",
    "router": "RouterExecution",
}


def _started(address: Address, event: JsonObject) -> JsonObject:
    data = event["data"]
    known = address.steps.get(data["step_id"])  # known only if the step is tried again
    address.steps[data["step_id"]] = Step(known.index if known else len(address.steps), data)
    chosen: JsonObject = {}
    if data.get("kind") == "condition":
        chosen["condition_result"] = data.get("branch") == "if"
    return _frame(address, event, f"{_name(data)}Started", **chosen)


def _completed(address: Address, event: JsonObject) -> JsonObject:
    output = event["data"].get("output")
    response = {"content": output, "success": True}
    name = f"{_name(_step(address, event).data)}Completed"
    return _frame(address, event, name, content=output, step_response=response)


def _failed(address: Address, event: JsonObject) -> JsonObject:
    message = obj(event["data"].get("error")).get("message", "")
    return _frame(address, event, "StepError", error=message)


def _progressed(address: Address, event: JsonObject) -> JsonObject:
    return _frame(address, event, "StepProgress", content=event["data"].get("message"))


# Maps an action of the category `workflow` to the function that makes its frame.
STEP_FRAMES: Final[Mapping[str, Callable[[Address, JsonObject], JsonObject]]] = {
    "step_started": _started,
    "step_progress": _progressed,
    "step_completed": _completed,
    "step_failed": _failed,
}


def _name(begun: JsonObject) -> str:
    return _NAMES.get(begun.get("kind", ""), "Step")


def _step(address: Address, event: JsonObject) -> Step:
    return address.steps.get(event["data"]["step_id"]) or Step(0, {})


def _frame(address: Address, event: JsonObject, name: str, **fields: Json) -> JsonObject:
    # The frame of a loop's turn has the id of the loop and the turn's number.
    step_id, step = event["data"]["step_id"], _step(address, event)
    begun, parent = step.data, step.data.get("parent_step_id")
    where: JsonObject = {
        "step_id": step_id,
        "step_name": begun.get("description", step_id),
        "step_index": step.index,
    }
    if begun.get("kind") == "iteration":
        where |= {"step_id": parent or step_id, "iteration": begun.get("iteration", 1)}
    elif parent:
        # The canonical parent of a step in a loop is a turn (`<loop>/<n>`). In Agno, the parent is
        # the loop itself, so the number of the turn is removed.
        where["parent_step_id"] = parent.removesuffix(f"/{begun.get('iteration')}")
    return address.frame({**event, "source": None, "subrun": None}, name, **where, **fields)
