"""The rules of the real AG-UI clients as a Python checker, fast enough for every stream. Pure.

It has the rules of client 1.0.0 and the additional rules of 0.0.59. A test compares it with the
verdicts of the real clients on 145 streams. It does not read chunk events, so `faults` finds a
fault in each of them, and `shape_faults` and `order_faults` pass over them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
Check = Callable[[Any], bool]
Shape = tuple[dict[str, Check], dict[str, Check]]  # required, optional

_POINTER = re.compile(r"(/([^/~]|~[01])*)*")
_OPERATIONS = {"add", "remove", "replace", "move", "copy", "test"}


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _any(value: Any) -> bool:
    return True


def _one_of(*words: str) -> Check:
    return lambda value: value in words


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _operation(value: Any) -> bool:
    """Return whether the client accepts a patch operation.

    The client drops an unknown operation with a warning, and rejects an invalid pointer.
    """
    if not isinstance(value, dict):
        return False
    if value.get("op") not in _OPERATIONS:
        return True
    pointers = [value.get("path")] + (
        [value.get("from")] if value["op"] in ("move", "copy") else []
    )
    return all(isinstance(each, str) and _POINTER.fullmatch(each) for each in pointers)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def _count(value: Any) -> bool:
    return _integer(value) and value >= 0


def _content(value: Any) -> bool:
    return isinstance(value, (str, list))


def _interrupt(value: Any) -> bool:
    return _fits(value, _INTERRUPT)


def _outcome(value: Any) -> bool:
    if value is None:  # accepted with a warning: see `remarks`
        return True
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    if value["type"] == "interrupt":
        return bool(value.get("interrupts")) and _list_of(_interrupt)(value["interrupts"])
    return "pendingToolCallIds" not in value or _list_of(_text)(value["pendingToolCallIds"])


def _fits(value: Any, shape: Shape) -> bool:
    required, optional = shape
    if not isinstance(value, dict) or not required.keys() <= value.keys():
        return False
    checks = {**required, **optional}
    return all(checks[name](item) for name, item in value.items() if name in checks)


_INTERRUPT: Shape = (
    {"id": _text, "reason": _text},
    {
        "message": _text,
        "toolCallId": _text,
        "responseSchema": _object,
        "expiresAt": _text,
        "metadata": _object,
        "subagentRunId": _text,
    },
)
_USAGE: Shape = (
    {},
    {
        "provider": _text,
        "model": _text,
        "inputTokens": _count,
        "outputTokens": _count,
        "totalTokens": _count,
        "reasoningTokens": _count,
        "cachedInputTokens": _count,
    },
)
_MESSAGE: Shape = ({"id": _text, "role": _text}, {"metadata": _object, "subagentRunId": _text})
_USAGES: Check = _list_of(lambda value: _fits(value, _USAGE))
_ID: dict[str, Check] = {"messageId": _text}
_CALL: dict[str, Check] = {"toolCallId": _text}
_RUN: dict[str, Check] = {"threadId": _text, "runId": _text}
_COMMON: dict[str, Check] = {"timestamp": _integer, "metadata": _object, "subagentRunId": _text}
_COMMON["rawEvent"] = _any

SHAPES: Mapping[str, Shape] = {
    "RUN_STARTED": (_RUN, {"protocolVersion": _text, "parentRunId": _text, "input": _object}),
    "RUN_FINISHED": (_RUN, {"result": _any, "outcome": _outcome, "usage": _USAGES}),
    "RUN_ERROR": ({"message": _text}, {"code": _text, "usage": _USAGES}),
    "STEP_STARTED": ({"stepName": _text}, {}),
    "STEP_FINISHED": ({"stepName": _text}, {}),
    "TEXT_MESSAGE_START": (
        _ID,
        {"role": _one_of("developer", "system", "assistant", "user"), "name": _text},
    ),
    "TEXT_MESSAGE_CONTENT": (_ID | {"delta": _text}, {}),
    "TEXT_MESSAGE_END": (_ID, {}),
    "TOOL_CALL_START": (
        _CALL | {"toolCallName": _text},
        {"parentMessageId": lambda value: value is None or _text(value)},
    ),
    "TOOL_CALL_ARGS": (_CALL | {"delta": _text}, {}),
    "TOOL_CALL_END": (_CALL, {}),
    "TOOL_CALL_RESULT": (_CALL | _ID | {"content": _content}, {"role": _one_of("tool")}),
    "STATE_SNAPSHOT": ({"snapshot": _any}, {}),
    "STATE_DELTA": ({"delta": _list_of(_operation)}, {}),
    "MESSAGES_SNAPSHOT": ({"messages": _list_of(lambda value: _fits(value, _MESSAGE))}, {}),
    "ACTIVITY_SNAPSHOT": (
        _ID | {"activityType": _text, "content": _object},
        {"replace": lambda value: isinstance(value, bool)},
    ),
    "ACTIVITY_DELTA": (_ID | {"activityType": _text, "patch": _list_of(_operation)}, {}),
    "REASONING_START": (_ID, {}),
    "REASONING_MESSAGE_START": (_ID | {"role": _one_of("reasoning")}, {}),
    "REASONING_MESSAGE_CONTENT": (_ID | {"delta": _text}, {}),
    "REASONING_MESSAGE_END": (_ID, {}),
    "REASONING_END": (_ID, {}),
    "REASONING_ENCRYPTED_VALUE": (
        {"subtype": _one_of("tool-call", "message"), "entityId": _text, "encryptedValue": _text},
        {},
    ),
    "SUBAGENT_STARTED": (
        {"subagentRunId": _text, "name": _text},
        {"description": _text, "parentSubagentRunId": _text, "parentToolCallId": _text},
    ),
    "SUBAGENT_FINISHED": ({"subagentRunId": _text}, {"outcome": _object, "result": _any}),
    "SUBAGENT_ERROR": ({"subagentRunId": _text, "message": _text}, {"code": _text}),
    "RAW": ({"event": _any}, {"source": _text}),
    "CUSTOM": ({"name": _text, "value": _any}, {}),
}

# Spans of events: the opening event, the closing event, the events between, and the id's field.
_SPANS = [
    ("TEXT_MESSAGE_START", "TEXT_MESSAGE_END", ("TEXT_MESSAGE_CONTENT",), "messageId"),
    ("TOOL_CALL_START", "TOOL_CALL_END", ("TOOL_CALL_ARGS",), "toolCallId"),
    ("REASONING_START", "REASONING_END", (), "messageId"),
    (
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_END",
        ("REASONING_MESSAGE_CONTENT",),
        "messageId",
    ),
    ("STEP_STARTED", "STEP_FINISHED", (), "stepName"),
    ("SUBAGENT_STARTED", "SUBAGENT_FINISHED", (), "subagentRunId"),
]
_OPENS = {span[0]: span for span in _SPANS}
_CLOSES = {span[1]: span for span in _SPANS} | {"SUBAGENT_ERROR": _SPANS[-1]}
_CONTINUES = {name: span for span in _SPANS for name in span[2]}
_OWNED = {"TEXT_MESSAGE_START", "TOOL_CALL_START", "REASONING_START", "REASONING_MESSAGE_START"}


@dataclass
class _Run:
    state: str = "none"  # none, open, finished, error
    open: dict[tuple[str, Any], None] = field(default_factory=dict)
    owners: dict[tuple[str, str], str | None] = field(default_factory=dict)
    subagents: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Begin a new run; no state of the last run counts."""
        self.state = "open"
        for known in (self.open, self.owners, self.subagents):
            known.clear()


def faults(events: Iterable[Any], *, old: bool = False) -> list[str]:
    """Return why client 1.0.0 rejects the stream, in order; empty if the client accepts it.

    With `old`, also return the reasons of client 0.0.59.
    """
    run = _Run()
    found = []
    for number, event in enumerate(events):
        for fault in _faults(run, event, old):
            found.append(
                f"{number}: {event.get('type') if isinstance(event, dict) else event}: {fault}"
            )
    return found


def shape_faults(events: Iterable[Any]) -> list[str]:
    """Return which events have no type, or wrong fields."""
    return [
        f"{number}: {json.dumps(event)[:200]}"
        for number, event in enumerate(events)
        if not _is_event(event) or not _has_its_fields(event)
    ]


def order_faults(events: Iterable[Any]) -> list[str]:
    """Return which events come where they must not, among those with the right fields."""
    run = _Run()
    return [
        f"{number}: {event['type']}: {fault}"
        for number, event in enumerate(events)
        if _is_event(event) and event["type"] in SHAPES and _has_its_fields(event)
        for fault in (*_run_faults(run, event["type"]), *_span_faults(run, event["type"], event))
    ]


def _is_event(event: Any) -> bool:
    return isinstance(event, dict) and isinstance(event.get("type"), str)


def _has_its_fields(event: Event) -> bool:
    required, optional = SHAPES.get(event["type"], ({}, {}))
    return _fits(event, (required, optional | _COMMON))


def remarks(events: Iterable[Event]) -> list[str]:
    """Return the warnings of 1.0.0 about accepted events: unknown fields and types, and nulls."""
    found = []
    for event in events:
        required, optional = SHAPES.get(event["type"], ({}, {}))
        unknown = event.keys() - {"type"} - required.keys() - optional.keys() - _COMMON.keys()
        found += [f"{event['type']}: unknown field {name}" for name in sorted(unknown)]
        nulls = [name for name in ("rawEvent", "result", "outcome") if event.get(name, 0) is None]
        found += [f"{event['type']}: {name} is null" for name in nulls]
    return found


def wire_faults(body: bytes) -> list[str]:
    """Return why the bytes of a stream are rejected, whatever its events are."""
    if b"\r" in body:
        return ["a carriage return: the whole body becomes one frame"]
    found = []
    for block in body.decode("utf-8-sig").split("\n\n"):
        data = [line[5:] for line in block.split("\n") if line.startswith("data:")]
        if data:
            try:
                event = json.loads("\n".join(line.removeprefix(" ") for line in data))
            except ValueError:
                found.append(f"not JSON: {data}")
                continue
            if not isinstance(event, dict) or not isinstance(event.get("type"), str):
                found.append(f"no event: {event}")
    return found


def _faults(run: _Run, event: Any, old: bool) -> Iterable[str]:
    type = event.get("type") if isinstance(event, dict) else None
    if not isinstance(type, str):
        yield "no type"
        return
    if type not in SHAPES:
        if type.endswith("_CHUNK") or old:
            yield "a type that is not for us"
        return
    if not _has_its_fields(event):
        yield f"fields {event}"
        return
    if old:
        yield from _old_faults(type, event)
    yield from _run_faults(run, type)
    yield from _span_faults(run, type, event)


def _run_faults(run: _Run, type: str) -> Iterable[str]:
    if type == "RUN_STARTED":
        if run.state == "open":
            yield "a run is open"
        run.begin()
    elif type == "RUN_ERROR":
        if run.state == "error":
            yield "the run has failed"
        run.state = "error"
    elif run.state != "open":
        yield f"the run is {run.state}"
    elif type == "RUN_FINISHED":
        run.state = "finished"
        if run.open:
            yield f"still open: {list(run.open)}"


def _span_faults(run: _Run, type: str, event: Event) -> Iterable[str]:
    owner = event.get("subagentRunId")
    if type in {"REASONING_ENCRYPTED_VALUE", "TOOL_CALL_RESULT"}:
        name = event["entityId"] if "entityId" in event else event["toolCallId"]
        yield from _owner_faults(run, "TOOL_CALL_START", name, owner)
        return
    span = _OPENS.get(type) or _CLOSES.get(type) or _CONTINUES.get(type)
    if span is None:
        return
    opener, _, _, key = span
    id = event[key]
    place: tuple[str, Any] = (opener, (owner, id) if opener == "STEP_STARTED" else id)
    if type == opener:
        if place in run.open:
            yield "is open already"
        if opener == "SUBAGENT_STARTED":
            if id in run.subagents:
                yield "a subagent's id comes again"
            if event.get("parentSubagentRunId", id) not in run.subagents | {id}:
                yield "an unknown parent"
            run.subagents.add(id)
        run.open[place] = None
    elif place not in run.open:
        yield "is not open"
    elif type in _CLOSES:
        del run.open[place]
    if opener in _OWNED:
        yield from _owner_faults(run, opener, id, owner, opens=type == opener)


def _owner_faults(
    run: _Run, opener: str, id: str, owner: str | None, *, opens: bool = False
) -> Iterable[str]:
    kind = opener.replace("_MESSAGE", "") if opener.startswith("REASONING") else opener
    if opens:
        run.owners.setdefault((kind, id), owner)
    if owner is not None and run.owners.get((kind, id), owner) != owner:
        yield f"belongs to {run.owners[kind, id]}"


def _old_faults(type: str, event: Event) -> Iterable[str]:
    outcome = event.get("outcome")
    if type == "RUN_FINISHED" and isinstance(outcome, dict):
        if outcome["type"] not in ("success", "interrupt"):
            yield "an outcome of 1.0"
        if "pendingToolCallIds" in outcome:
            yield "pendingToolCallIds"
    if type == "TOOL_CALL_RESULT" and not isinstance(event["content"], str):
        yield "content parts"
    if type == "MESSAGES_SNAPSHOT":
        roles = {message["role"] for message in event["messages"]}
        known = {"developer", "system", "user", "assistant", "tool", "activity", "reasoning"}
        if roles - known:
            yield f"roles {roles - known}"
    if (
        type == "RUN_STARTED"
        and not {"tools", "context"} <= event.get("input", {"tools": 1, "context": 1}).keys()
    ):
        yield "an input without tools and context"
