"""Compares the events of workflows' runs with golden files that have no ids and no times.

Steps that are carried out at the same time have no fixed order. So a golden file has the events of
the run itself first, then those of each step, each in the order of the stream. `misplaced` checks
the order between the steps.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Event = dict[str, Any]

_OF_THE_RUN = ""
# Fields whose values differ from run to run.
_VARIABLE = frozenset(
    {
        *("digest", "expires_at", "usage", "usageMetadata", "duration_s", "metrics", "timestamp"),
        "time_to_first_token_s",
        *("created_at", "event_id", "id", "session_id", "sessionId", "threadId"),
    }
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ENDS = frozenset({"workflow.step_completed", "workflow.step_failed"})


def type_of(event: Event) -> str:
    """Return `category.action` of an envelope."""
    return f"{event['event']['category']}.{event['event']['action']}"


def golden_lines(events: Sequence[Event]) -> list[str]:
    """Return a line for each event of a workflow's run: its step, its type and its data."""
    names = Names(events)
    lines: dict[str, list[str]] = {}
    for event in events:
        step = step_of(event)
        data = json.dumps(names.shown(event["data"]), ensure_ascii=False)
        lines.setdefault(step, []).append(f"{step or 'run':<18} {type_of(event)} {data}")
    return [line for step in sorted(lines) for line in lines[step]]


def step_of(event: Event) -> str:
    """Return the id of the step that an event is about; "" for an event of the run itself."""
    data = event["data"]
    given = data.get("step_id") or event.get("step_id")
    if given is None and (name := data.get("to_step")) is not None:
        return f"step_{name}"
    if given is None and type_of(event) == "lifecycle.retrying":
        return f"step_{data['step']}"
    return given or _OF_THE_RUN


class Names:
    """Names for ids: of the run, of children and of approvals; a number for any other UUID."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._names: dict[str, str] = {}
        self._others: dict[str, str] = {}
        attempts: Counter[str] = Counter()
        for event in events:
            data, run_id = event["data"], event["run_id"]
            if run_id not in self._names:
                # The ids of AG-UI begin with the end of the run's id.
                self._names |= {run_id: "<run>", run_id.rpartition("-")[2]: "<end of run>"}
            if (child := data.get("child_run_id")) and child not in self._names:
                step = self.shown(data["step_id"])
                attempts[step] += 1
                self._names[child] = f"<child {attempts[step]} of {step}>"
            if type_of(event) == "approval.requested":
                self._names[data["approval_id"]] = f"<approval {data['items'][0].get('tool')}>"

    def shown(self, value: Any) -> Any:
        """Return the value with names in place of ids, without what differs from run to run."""
        match value:
            case {"protocol": protocol, "name": name, "value": _}:  # what a server says of itself
                return {"protocol": protocol, "name": name, "value": "…"}
            case dict():
                return {
                    key: "…" if key in _VARIABLE else self.shown(item)
                    for key, item in value.items()
                }
            case list():
                return [self.shown(item) for item in value]
            case str():
                for id, name in self._names.items():
                    value = value.replace(id, name)
                value = _UUID.sub(self._other, value)
                return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", value)
            case _:
                return value

    def _other(self, found: re.Match[str]) -> str:
        return self._others.setdefault(found[0], f"<id {len(self._others) + 1}>")


def misplaced(events: Sequence[Event], definition: Mapping[str, Any]) -> list[str]:
    """Return the steps that began before the steps that they need had ended; empty if all is well.

    Also returns children that began without a dispatch, and numbers that are not 1, 2, 3 …
    """
    found = []
    ended: set[str] = set()
    dispatched: set[str] = set()
    steps = definition["steps"]
    begun = {step_of(event) for event in events if type_of(event) == "workflow.step_started"}
    for number, event in enumerate(events, 1):
        data, type = event["data"], type_of(event)
        if event["sequence"] != number:
            found.append(f"event {number} has the sequence {event['sequence']}")
        if type.startswith("dispatch.") and "subrun_id" in data:
            dispatched.add(data["subrun_id"])
        if type in _ENDS:
            ended.add(data["step_id"])
        if type != "workflow.step_started":
            continue
        if (child := data.get("child_run_id")) and child not in dispatched:
            found.append(f"{data['step_id']} has a child that was not dispatched")
        name = data["step_id"].removeprefix("step_").partition(".")[0]
        for needed in steps[name].get("needs", ()):
            if f"step_{needed}" in begun and f"step_{needed}" not in ended:
                found.append(f"{name} began before {needed} had ended")
    return found
