"""What the chat class of the AI SDK demands of a UI message stream, and the chunks of each version.

The rules are those of `processUIMessageStream` and `uiMessageChunkSchema` in the packages `ai`
5.0.277, 6.0.326 and 7.0.173; the tests of e2e/test_vercel_surface.py feed streams to these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Chunk = dict[str, Any]

# The chunks of version 7 that the schema of an older version refuses.
REFUSED: Final = {
    "5": {"tool-approval-request", "tool-approval-response", "tool-output-denied", "reset-step"},
    "6": {"tool-approval-response", "reset-step"},
    "7": set[str](),
}
_ENDS: Final = {"error", "abort", "finish"}


def faults(chunks: Sequence[Chunk], sdk: str = "6") -> list[str]:
    """Return a sentence for each chunk at which the client would fail, or show something wrong."""
    rules = _Rules(sdk)
    found = [f"{at}: {fault}" for at, chunk in enumerate(chunks) for fault in rules.check(chunk)]
    has_end = rules.is_over or (chunks and chunks[-1]["type"] == "finish")
    return found if has_end else [*found, "the stream has no end"]


@dataclass(slots=True)
class _Rules:
    """The state of a client that reads one stream."""

    sdk: str
    has_begun: bool = False
    in_step: bool = False
    is_over: bool = False
    calls: set[str] = field(default_factory=set)
    opened: dict[str, set[str]] = field(default_factory=lambda: {"text": set(), "reasoning": set()})

    def check(self, chunk: Chunk) -> Iterator[str]:
        type = chunk["type"]
        if type in REFUSED[self.sdk]:
            yield f"version {self.sdk} does not know {type}"
        if self.is_over or not (self.has_begun or type == "start"):
            yield f"{type} outside of the message"
        self.has_begun = True
        if type.partition("-")[0] in self.opened:
            yield from self._part(chunk)
        elif type.startswith("tool-"):
            yield from self._tool(chunk)
        elif type in ("start-step", "finish-step"):
            if self.in_step is (type == "start-step") or any(self.opened.values()):
                yield f"{type} in the wrong place"
            self.in_step = type == "start-step"
        if type in _ENDS:
            if self.in_step:
                yield f"{type} in a step"
            self.is_over = type != "finish" or chunk["finishReason"] == "stop"

    def _part(self, chunk: Chunk) -> Iterator[str]:
        kind, _, action = chunk["type"].partition("-")
        opened = self.opened[kind]
        if not self.in_step or (action == "start") is (chunk["id"] in opened):
            yield f"{chunk['type']} of {chunk['id']} in the wrong place"
        opened.add(chunk["id"])
        if action == "end":
            opened.discard(chunk["id"])

    def _tool(self, chunk: Chunk) -> Iterator[str]:
        if chunk["type"] in ("tool-input-start", "tool-input-available"):
            self.calls.add(chunk["toolCallId"])
            if not chunk["dynamic"]:
                yield "the client's types do not have this tool"
        elif chunk["type"] != "tool-approval-response" and chunk["toolCallId"] not in self.calls:
            yield f"{chunk['type']} of an unknown call"


def joined(chunks: Sequence[Chunk], type: str) -> str:
    """Return all deltas of this type as one text."""
    return "".join(each["delta"] for each in chunks if each["type"] == type)


def tools(chunks: Sequence[Chunk]) -> list[str]:
    """Return the name of each tool's call, in the order in which their arguments were complete."""
    calls = [each for each in chunks if each["type"] == "tool-input-available"]
    named, asked = {each["toolCallId"]: each["toolName"] for each in calls}, questions(chunks)
    return [name for call_id, name in named.items() if call_id not in asked]


def results(chunks: Sequence[Chunk]) -> int:
    """Return how many tools' calls have ended."""
    ended = [each["toolCallId"] for each in chunks if each["type"].startswith("tool-output-")]
    asked = questions(chunks)
    return sum(call_id not in asked for call_id in ended)


def questions(chunks: Sequence[Chunk]) -> set[str]:
    """Return the ids of the calls that are no tool's: items of approvals, named by themselves."""
    asked = [each.get("approvalId") or asked_by(each).get("id") for each in chunks]
    return {each for each in asked if each is not None}


def asked_by(chunk: Chunk) -> Chunk:
    """Return the question for a value that a call is; empty for any other chunk or part."""
    named = ("providerMetadata", "callProviderMetadata")
    metadata: Chunk = next((chunk[name] for name in named if chunk.get(name)), {})
    asked: Chunk = metadata.get("penstock", {}).get("asked", {})
    return asked
