"""Readers of an agent server's bytes that use no code of the product. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Sse:
    """One frame of `text/event-stream`."""

    id: str | None
    event: str | None
    data: str


def frames(body: bytes) -> list[Sse]:
    """Return the complete frames of a stream, without comments and without a frame that was cut."""
    found = []
    whole, _, _ = body.replace(b"\r\n", b"\n").rpartition(b"\n\n")
    for block in whole.split(b"\n\n"):
        fields: dict[str, list[str]] = {}
        for line in block.decode().split("\n"):
            name, _, value = line.partition(":")
            if name:
                fields.setdefault(name, []).append(value.removeprefix(" "))
        if "data" in fields:
            found.append(
                Sse(
                    fields.get("id", [None])[-1],
                    fields.get("event", [None])[-1],
                    "\n".join(fields["data"]),
                )
            )
    return found


@dataclass(slots=True)
class Said:
    """The content of a run, as its server or its clients have it: text, tool calls and results."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # tool and arguments, once per id
    results: int = 0  # of tools that ran
    end: str | None = None  # of the last leg, if known: completed, paused, cancelled, failed

    def call(self, tool: str, args: Any) -> None:
        self.calls.append((tool, json.dumps(args, sort_keys=True)))


def agno(legs: Sequence[Sequence[bytes]]) -> Said:
    """Read the legs of an Agno run. A leg has the body of each of its connections.

    An event is recognized by its index and is read once, even if a second connection repeats it.
    """
    said = Said()
    called: set[str] = set()
    done: set[str] = set()
    for bodies in legs:
        said.end = None
        seen: set[int] = set()
        for event in _agno_events(bodies):
            index = event.get("event_index")
            if isinstance(index, int):
                if index in seen:
                    continue
                seen.add(index)
            name = event.get("event")
            if name == "RunContent" and isinstance(event.get("content"), str):
                said.text += event["content"]
            elif name in ("ToolCallStarted", "RunPaused"):
                for tool in event.get("tools") or [event["tool"]]:
                    if tool["tool_call_id"] not in called:
                        called.add(tool["tool_call_id"])
                        said.call(tool["tool_name"], tool["tool_args"])
            elif name == "ToolCallCompleted" and event["tool"]["tool_call_id"] not in done:
                done.add(event["tool"]["tool_call_id"])
                said.results += 1
            said.end = _AGNO_ENDS.get(str(name), said.end)
    return said


def agno_indexes(body: bytes) -> list[int]:
    """Return the indexes of the complete events of an Agno 3 server in these bytes."""
    found = (event.get("event_index") for event in _agno_events([body]))
    return [index for index in found if isinstance(index, int)]


_AGNO_ENDS = {
    "RunPaused": "paused",
    "RunCompleted": "completed",
    "RunCancelled": "cancelled",
    "RunError": "failed",
}


def _agno_events(bodies: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for body in bodies:
        for frame in frames(body):
            event = json.loads(frame.data)
            if isinstance(event, dict) and event.get("event") == frame.event:
                yield event


def adk(legs: Sequence[Sequence[bytes]]) -> Said:
    """Read the legs of an ADK run.

    A piece of text comes as partial; the whole text comes once more at its end. A stream without an
    error and without a request for approval is complete: ADK sends no event for the end.
    """
    said = Said()
    called: set[str] = set()
    for bodies in legs:
        said.end = None
        for frame in (frame for body in bodies for frame in frames(body)):
            event = json.loads(frame.data)
            if "error" in event:
                said.end = "failed"
                continue
            partial = bool(event.get("partial"))
            for part in (event.get("content") or {}).get("parts") or ():
                if partial and not part.get("thought"):
                    said.text += part.get("text", "")
                call, response = part.get("functionCall"), part.get("functionResponse")
                if call and call["name"].startswith("adk_request_"):
                    said.end = "paused"
                elif call and not partial and call["id"] not in called:
                    called.add(call["id"])
                    said.call(call["name"], call["args"])
                elif response and "error" not in response["response"]:
                    said.results += 1
    return said


_DENIED = "The tool call was denied."  # pydantic-ai's result of a tool that did not run


def agui(legs: Sequence[Sequence[bytes]]) -> Said:
    """Read the legs of an AG-UI run. A call's arguments come in pieces."""
    said = Said()
    called: set[str] = set()
    done: set[str] = set()
    for bodies in legs:
        said.end = None
        names: dict[str, str] = {}
        pieces: dict[str, str] = {}
        for frame in (frame for body in bodies for frame in frames(body)):
            event = json.loads(frame.data)
            id_ = event.get("toolCallId", "")
            match event["type"]:
                case "TEXT_MESSAGE_CONTENT":
                    said.text += event["delta"]
                case "TOOL_CALL_START":
                    names[id_], pieces[id_] = event["toolCallName"], ""
                case "TOOL_CALL_ARGS":
                    pieces[id_] += event["delta"]
                case "TOOL_CALL_END" if id_ not in called:
                    called.add(id_)
                    said.call(names[id_], json.loads(pieces[id_] or "{}"))
                case "TOOL_CALL_RESULT" if id_ not in done and event["content"] != _DENIED:
                    done.add(id_)
                    said.results += 1
                case "RUN_FINISHED":
                    outcome = (event.get("outcome") or {}).get("type")
                    said.end = "paused" if outcome == "interrupt" else "completed"
                case "RUN_ERROR":
                    said.end = "failed"
    return said


READERS: dict[str, Callable[[Sequence[Sequence[bytes]]], Said]] = {
    "agno": agno,
    "adk": adk,
    "resumable": adk,
    "agui": agui,
}
# The agent servers that send an event for the run's end. ADK's streams just end.
SAY_THEIR_END = {"agno", "agui"}


def events(bodies: Sequence[dict[str, Any]]) -> Said:
    """Read the canonical events of a run."""
    said = Said()
    for body in bodies:
        name = f"{body['event']['category']}.{body['event']['action']}"
        data = body["data"]
        if name == "llm.stream":
            said.text += data["content"]
        elif name == "llm.tool_call":
            said.call(data["tool"], data["args"])
        elif name == "llm.tool_result" and data["outcome"] == "ok":
            said.results += 1
        elif name.startswith("lifecycle."):
            said.end = name.removeprefix("lifecycle.")
    return said
