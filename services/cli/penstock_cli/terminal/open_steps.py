"""Finds the open steps of a workflow's run in its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_ENDS: Final = frozenset({"step_completed", "step_failed"})


def open_steps(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """For each step that has not ended, return the data of the step's event
    `workflow.step_started`.

    If a step was tried several times, the result has the data of the last attempt. The result
    leaves out a step that contains other open steps, such as a `for_each` with open items.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for event in events:
        name, data = event["event"], event["data"]
        action = name["action"] if name["category"] == "workflow" else ""
        if action == "step_started":
            found[data["step_id"]] = data
        elif action in _ENDS:
            found.pop(data["step_id"], None)
    containing = {each.get("parent_step_id") for each in found.values()}
    return [each for name, each in found.items() if name not in containing]


def line(step: Mapping[str, Any]) -> str:
    """Return an open step as text, such as `step_scan (step), run 0199…, attempt 2`."""
    child, attempt = step.get("child_run_id"), step.get("attempt")
    return "".join(
        (
            step["step_id"],
            f" ({step['kind']})" if step.get("kind") else "",
            f", run {child}" if child else "",
            f", attempt {attempt}" if attempt else "",
        )
    )
