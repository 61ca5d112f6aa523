"""Makes the frames of a workflow's steps, loops, conditions, routers and parallels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.dialects.agno.encode.address import Address, Step
from penstock.dialects.base import Json, JsonObject
from penstock.dialects.json import obj

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
    """Return the body of a step's frame; that of a loop's turn has the id of the loop and the
    turn's number."""
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
