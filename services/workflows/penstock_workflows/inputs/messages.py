"""Reads inputs of runs from messages. Pure."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.bus.records import ApprovalNews, CancelCommand
from penstock.runs.calls import Called
from penstock_workflows.engine.inputs import (
    ApprovalInput,
    CalledInput,
    CancelInput,
    ChildInput,
    Input,
    StepStartedSeen,
)

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
    """Return the input of a cancel, continue or called command.

    Raises:
        ValidationError: the command is malformed.
    """
    match kind:
        case "cancel":
            cancel = CancelCommand.model_validate_json(payload)
            return CancelInput(cancel.by, cancel.reason)
        case "continue":
            news = ApprovalNews.model_validate_json(payload)
            items = [item.model_dump(exclude_none=True) for item in news.items or ()]
            return ApprovalInput(news.approval_id, news.news, news.event, items)
        case _:
            called = Called.model_validate_json(payload)
            return CalledInput(
                called.call_id,
                called.outcome,
                called.status,
                called.answer,
                called.error.model_dump() if called.error is not None else None,
            )


def inputs_of_event(payload: bytes) -> list[tuple[str, Input]]:
    """Return the inputs of an event, each with the run that it concerns.

    An event of a child concerns its parent. The end of any run may concern this run itself, since
    the edge and the normalizer may end the run of a workflow, too.

    Raises:
        KeyError, TypeError, JSONDecodeError: the event is malformed.
    """
    event: dict[str, Any] = orjson.loads(payload)
    name = event["event"]
    type_, run_id = f"{name['category']}.{name['action']}", str(event["run_id"])
    if type_ == STEP_STARTED:
        child = event["data"].get("child_run_id")
        return [(run_id, StepStartedSeen(str(child)))] if child else []
    found: list[tuple[str, Input]] = []
    if event.get("workflow_depth") and event.get("parent_run_id"):
        heard = ChildInput(run_id, type_, event["data"], int(event["sequence"]))
        found.append((str(event["parent_run_id"]), heard))
    if type_ in _ENDED_BY_OTHERS:
        data = event["data"]
        reason = str(data.get("reason") or data.get("code") or "ended")
        found.append((run_id, CancelInput(str(data.get("by") or "penstock"), reason)))
    return found
