"""Folds a run's events into its state after the last of them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.dialects.base import JsonObject
from penstock.dialects.patch import Document


class RunState:
    """The state of one run: its status, and all messages, tool calls, approvals and steps so far,
    each in the order in which it began."""

    def __init__(self) -> None:
        self.first = 0  # the sequence of the first event
        self.at = 0  # the sequence of the last event
        self._head: JsonObject = {"status": "queued"}
        self._parts: dict[str, dict[str, JsonObject]] = {name: {} for name in _PARTS}
        # The text of a message is kept in pieces: joining each piece would copy the text each time.
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        self._shared = Document({})
        self._usage = {"calls": 0, "input_tokens": 0, "output_tokens": 0}

    def take(self, event_type: str, event: JsonObject) -> None:
        """Take the next event."""
        self.at = event["sequence"]
        self.first = self.first or self.at
        self._head["timestamp"] = event["timestamp"]
        if (read := _READ.get(event_type)) is not None:
            read(self, event["data"])

    def shown(self) -> JsonObject:
        """Return the state as JSON."""
        messages = [
            {**message, "content": message.get("content", "".join(self._texts[key]))}
            for key, message in self._parts["messages"].items()
        ]
        lists = {name: list(found.values()) for name, found in self._parts.items()}
        return {
            "at": self.at,
            **self._head,
            **lists,
            "messages": messages,
            "state": self._shared.value,
            "usage": self._usage,
        }

    def status(self, status: str, data: JsonObject, *names: str) -> None:
        self._head = {"timestamp": self._head["timestamp"], "status": status, **_of(data, *names)}

    def part(self, kind: str, key: str, **fields: Any) -> None:
        """Set fields of the part with this key; None leaves a field as it is."""
        part = self._parts[kind].setdefault(key, {_PARTS[kind]: key})
        part.update({name: value for name, value in fields.items() if value is not None})

    def decide(self, data: JsonObject) -> None:
        """Take a decision, which may have changed the arguments of calls."""
        key, decisions = data["approval_id"], data.get("items")
        fields = _of(data, "outcome", "by", "note")
        self.part("approvals", key, status="decided", decisions=decisions, **fields)
        asked = self._parts["approvals"][key].get("items", ())
        calls = {each["item_id"]: each.get("tool_call_id") for each in asked}
        for each in decisions or ():
            if (call := calls.get(each["item_id"])) in self._parts["tool_calls"]:
                self.part("tool_calls", call, **_of(each, "args"))

    def piece(self, data: JsonObject) -> None:
        self.part("messages", data["message_id"])
        self._texts[data["message_id"]].append(data["content"])

    def share(self, data: JsonObject) -> None:
        if "delta" in data:
            self._shared.apply_each(data["delta"])
        else:
            self._shared.replace(data["snapshot"])

    def use(self, data: JsonObject) -> None:
        self._usage["calls"] += 1
        for name in ("input_tokens", "output_tokens"):
            self._usage[name] += data.get(name) or 0


# Maps each list of the state to the name of its parts' keys.
_PARTS: Final = {
    "messages": "message_id",
    "tool_calls": "tool_call_id",
    "approvals": "approval_id",
    "steps": "step_id",
}


def _of(data: JsonObject, *names: str) -> JsonObject:
    return {name: data[name] for name in names if data.get(name) is not None}


def _message(state: RunState, data: JsonObject) -> None:
    state.part("messages", data["message_id"], **_of(data, "role", "name"))


def _whole_message(state: RunState, data: JsonObject) -> None:
    fields = _of(data, "role", "value", "error")
    state.part("messages", data["message_id"], content=data.get("content") or None, **fields)


def _called(state: RunState, data: JsonObject) -> None:
    waits = "waits" if data.get("pending") else "called"
    state.part("tool_calls", data["tool_call_id"], outcome=waits, **_of(data, "tool", "args"))


def _progress(state: RunState, data: JsonObject) -> None:
    # The agent server may run the tool with other arguments than were decided.
    state.part("tool_calls", data["tool_call_id"], **_of(data, "tool", "args"))


def _result(state: RunState, data: JsonObject) -> None:
    fields = _of(data, "tool", "outcome", "result", "error")
    state.part("tool_calls", data["tool_call_id"], **fields)


def _asked(state: RunState, data: JsonObject) -> None:
    fields = _of(data, "items", "expires_at")
    state.part("approvals", data["approval_id"], status="pending", **fields)


def _settled(status: str) -> Callable[[RunState, JsonObject], None]:
    return lambda state, data: state.part("approvals", data["approval_id"], status=status)


def _step(status: str) -> Callable[[RunState, JsonObject], None]:
    names = ("child_run_id", "attempt", "iteration", "output", "error")
    return lambda state, data: state.part(
        "steps", data["step_id"], status=status, **_of(data, *names)
    )


_READ: Final[Mapping[str, Callable[[RunState, JsonObject], None]]] = {
    "lifecycle.started": lambda state, data: state.status("running", data),
    "lifecycle.paused": lambda state, data: state.status("paused", data, "approval_id"),
    "lifecycle.resumed": lambda state, data: state.status("running", data),
    "lifecycle.completed": lambda state, data: state.status("completed", data, "summary"),
    "lifecycle.failed": lambda state, data: state.status("failed", data, "code", "error"),
    "lifecycle.cancelled": lambda state, data: state.status("cancelled", data, "reason"),
    "llm.message_started": _message,
    "llm.stream": RunState.piece,
    "llm.message_completed": _whole_message,
    "llm.tool_call": _called,
    "llm.tool_progress": _progress,
    "llm.tool_result": _result,
    "llm.usage": RunState.use,
    "approval.requested": _asked,
    "approval.decided": RunState.decide,
    "approval.expired": _settled("expired"),
    "approval.withdrawn": _settled("withdrawn"),
    "workflow.step_started": _step("running"),
    "workflow.step_completed": _step("completed"),
    "workflow.step_failed": _step("failed"),
    "state.snapshot": RunState.share,
    "state.delta": RunState.share,
}
