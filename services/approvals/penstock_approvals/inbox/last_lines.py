"""Reads a run's last lines, which help a person to decide the run's approval.

The lines are the run's first message, and the last message, tool call, tool result, warning and
error. A person who may see an approval may see these lines, but not the whole run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock.bus import Bus, ObjectGone
from penstock.bus.read import direct
from penstock.bus.streams import events_for
from penstock.bus.subjects import event
from penstock.bus.write import objects

MAX_CHARS: Final = 1000


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a run. `what` introduces it, such as `said`. A long `text` ends with "…"."""

    type: str
    what: str
    at: str
    text: str


def _json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


# For each type of event: the word that introduces the line, and the function that makes its text.
_TYPES: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]]] = {
    "lifecycle.started": ("asked", lambda data: str(data.get("message") or "")),
    "llm.message_completed": ("said", lambda data: str(data.get("content") or "")),
    "llm.tool_call": ("called", lambda data: f"{data.get('tool')} {_json(data.get('args'))}"),
    "llm.tool_result": ("got", lambda data: f"{data.get('tool')} {_json(data.get('result'))}"),
    "system.warning": ("warning", lambda data: str(data.get("message") or "")),
    "system.error": ("error", lambda data: str(data.get("message") or "")),
}


async def last_lines(bus: Bus, run_id: str) -> list[Line]:
    """Return the run's last lines, the oldest first; none of a run whose content was erased. Raises
    BusError."""
    erased = event("system.erased", run_id)
    subjects = [erased, *(event(type_, run_id) for type_ in _TYPES)]
    lines: list[Line] = []
    found = await direct.last_of_each(bus, events_for(run_id), subjects)
    if any(stored.subject == erased for stored in found):
        return lines
    for stored in found:
        with contextlib.suppress(ObjectGone):
            body = orjson.loads(await objects.unwrap(bus, stored.payload))
            lines.append(_line_of(body))
    return [line for line in lines if line.text]


def _line_of(body: Mapping[str, Any]) -> Line:
    type_ = f"{body['event']['category']}.{body['event']['action']}"
    what, read = _TYPES[type_]
    text = read(body["data"])
    if len(text) > MAX_CHARS:
        text = f"{text[:MAX_CHARS]}…"
    return Line(type_, what, str(body.get("timestamp", "")), text)
