"""Encodes canonical events into the stream of OpenAI's Responses API. One response is one leg.

The text of the answer is what the run's own agent says. What inner agents say and the beginnings of
steps are reasoning, so that `output_text` is the answer alone; a run without a message of its own
answers with its summary. Tools are `mcp_call` items, because the agent server runs them. A call
that waits for a decision is a request until it has run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.dialects.approvals import OpenApprovals
from penstock.dialects.base import (
    Ids,
    Json,
    JsonObject,
    append_text,
    epoch_s,
    frame,
    type_of,
    unconfirmed,
)
from penstock.dialects.json import obj
from penstock.dialects.openai import items
from penstock.events.catalogue import TERMINAL
from penstock.sse import Frame

_Key = tuple[str, str]  # the type and the id of an open item


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the items of a type are written: the field of their text, and the events of its pieces.
    Where `part` makes it, the text is the only part of a list."""

    prefix: str
    new: JsonObject
    text: str
    event: str
    part: Callable[[str], JsonObject] | None = None
    part_event: str = ""
    place: JsonObject = field(default_factory=dict)
    more: JsonObject = field(default_factory=dict)


_KINDS: Final[Mapping[str, _Kind]] = {
    "message": _Kind(
        "msg",
        {"role": "assistant", "content": []},
        "content",
        "output_text",
        items.text_part,
        "content_part",
        {"content_index": 0},
        {"logprobs": []},
    ),
    "reasoning": _Kind(
        "rs",
        {"summary": []},
        "summary",
        "reasoning_summary_text",
        items.summary_part,
        "reasoning_summary_part",
        {"summary_index": 0},
    ),
    "mcp_call": _Kind("mcp", {}, "arguments", "mcp_call_arguments"),
}


@dataclass(slots=True)
class _Open:
    """An item that has not ended. `run` is the inner run that it belongs to, and `at` has the
    fields that name the item's text in events."""

    index: int
    item: JsonObject
    run: str | None
    kind: _Kind
    pieces: list[str] = field(default_factory=list)
    at: JsonObject = field(init=False)

    def __post_init__(self) -> None:
        self.at = {"item_id": self.item["id"], "output_index": self.index, **self.kind.place}

    def so_far(self) -> JsonObject:
        text: Json = "".join(self.pieces)
        shown = [self.kind.part(text)] if self.kind.part else text
        return {**self.item, self.kind.text: shown} if text else self.item


@dataclass(slots=True)
class ResponsesEncoder:
    """Encodes the leg number `leg` of a run (see `penstock.dialects.base.Encoder`). Events of
    earlier legs have no frames; they tell which calls still wait for their results. The id of a
    frame is its `sequence_number`: 0, 1, 2 … in the response, without gaps."""

    response_id: str = ""
    leg: int = 1
    status: str = "queued"
    at_leg: int = 1  # the leg of the last event
    inputs: list[JsonObject] = field(default_factory=list)  # what the response answers
    following: str = ""  # the id of the response that follows the pause, if the edge has set it
    _frames: list[Frame] = field(default_factory=list)  # those of the present event
    _number: int = 0
    _agent: str = ""
    _has_begun: bool = False
    _created_at: int = 0
    _metadata: dict[str, str] = field(default_factory=dict)
    _error: JsonObject | None = None
    _output: list[JsonObject] = field(default_factory=list)
    _open: dict[_Key, _Open] = field(default_factory=dict)
    _ids: Ids = field(default_factory=Ids)
    _used: list[JsonObject] = field(default_factory=list)
    _has_answer: bool = False  # whether the run's own agent has said something
    _calls: dict[str, JsonObject] = field(default_factory=dict)  # calls without a result
    _asked: dict[str, str] = field(default_factory=dict)  # the request's id by the call's id
    _approvals: OpenApprovals = field(default_factory=OpenApprovals)

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        event_type, self._frames = type_of(event), []
        self.at_leg = event.get("leg") or 1
        if event_type in _REMEMBERED:
            self._remember(event_type, event["data"])
        if not self._has_begun:
            if self.at_leg < self.leg and event_type not in TERMINAL:
                return ()
            self._begin(event)
        if (handle := _HANDLERS.get(event_type)) is not None:
            handle(self, event)
        return self._frames

    @property
    def waiting(self) -> list[str]:
        """The ids of the open approvals."""
        return [str(approval_id) for approval_id in self._approvals.requests]

    def response(self) -> JsonObject:
        """Return the response as it is now, with what has come of each open item."""
        output = list(self._output)
        for each in self._open.values():
            output[each.index] = each.so_far()
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self._created_at,
            "metadata": self._metadata,
            "status": self.status,
            "background": True,  # the run goes on when its client leaves
            "model": self._agent,
            "output": output,
            "error": self._error,
            "incomplete_details": None,
            "instructions": None,
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": items.usage(self._used),
        }

    def _say(self, kind: str, body: JsonObject) -> None:
        """Write the event `response.<kind>`."""
        event, number = f"response.{kind}", self._number
        made = frame({"type": event, "sequence_number": number, **body}, event)
        made.id = f"{number}"
        self._number += 1
        self._frames.append(made)

    def _remember(self, event_type: str, data: JsonObject) -> None:
        match event_type:
            case "lifecycle.started":
                self._agent = data.get("agent", "")
                self.inputs = [items.question(data.get("message") or "")]
            case "lifecycle.paused" if not self._has_begun:
                self.inputs = []  # the leg begins after a pause
            case "approval.decided" if not self._has_begun:
                asked_for = self._approvals.requests.get(data["approval_id"], {})
                self.inputs += items.answers(asked_for, data["items"])
            case "llm.tool_call":
                self._calls[data["tool_call_id"]] = data
            case "approval.requested":
                for item in data["items"]:
                    asked = items.RequestId.of(data["approval_id"], item)
                    self._asked[item.get("tool_call_id") or ""] = str(asked)
        self._approvals.feed(event_type, data)

    # The response.

    def _begin(self, event: JsonObject) -> None:
        self._metadata |= {"run_id": event["run_id"], "session_id": event.get("session_id") or ""}
        self._has_begun, self._created_at = True, int(epoch_s(event))
        self.status = "in_progress"
        self._say("created", {"response": self.response()})
        self._say("in_progress", {"response": self.response()})

    def _end(self, status: str, kind: str) -> None:
        for key in list(self._open):
            self._close(key, "completed" if status == "completed" else "incomplete")
        self.status = status
        self._say(kind, {"response": self.response()})

    def _paused(self, event: JsonObject) -> None:
        """Ask for all open approvals, here and not at `approval.requested`: if a policy decides
        them, the run does not pause, and the client must not answer."""
        for approval, item in self._approvals.items():
            self._whole(items.request(approval, item, self._agent))
        if self.following:
            self._metadata["next_response_id"] = self.following
        self._end("completed", "completed")

    def _completed(self, event: JsonObject) -> None:
        data = event["data"]
        answer = data.get("content") or data.get("summary")
        if not self._has_answer and answer:
            self._text(("message", event["run_id"]), None, answer)
        if not self._used and (used := obj(data.get("usage"))):
            self._used.append(used)
        self._end("completed", "completed")

    def _failed(self, event: JsonObject) -> None:
        data = event["data"]
        text = f"{data.get('code', 'failed')}: {data.get('error', 'the run failed')}"
        self._error = {"code": "server_error", "message": text}
        self._end("failed", "failed")

    def _cancelled(self, event: JsonObject) -> None:
        # The grammar has no event for a cancelled response; its status says it.
        if text := unconfirmed(event["data"]):
            self._error = {"code": "server_error", "message": f"cancelled{text}"}
        self._end("cancelled", "incomplete")

    def _usage(self, event: JsonObject) -> None:
        self._used.append(event["data"])

    # Texts and thoughts.

    def _streamed(self, event: JsonObject) -> None:
        data, run = event["data"], _run_of(event)
        key = (_type_of_texts(run), data["message_id"])
        self._end_thoughts(run, key)
        self._text(key, run, data["content"])

    def _message_completed(self, event: JsonObject) -> None:
        data, run = event["data"], _run_of(event)
        key = (_type_of_texts(run), data["message_id"])
        self._end_thoughts(run, key)
        if key not in self._open and data["content"] and data.get("role") in (None, "assistant"):
            self._text(key, run, data["content"])
        self._close(key)

    def _thought(self, event: JsonObject) -> None:
        data = event["data"]
        key = ("reasoning", data["reasoning_id"])
        if data["thought"] and not data.get("debug"):
            self._text(key, _run_of(event), data["thought"])
        if data.get("final"):
            self._close(key)

    def _end_thoughts(self, run: str | None, but: _Key | None = None) -> None:
        thoughts = (key for key in self._open if key[0] == "reasoning" and key != but)
        for key in [key for key in thoughts if self._open[key].run == run]:
            self._close(key)

    def _note(self, event: JsonObject) -> None:
        key = ("reasoning", f"{event['sequence']}")
        self._text(key, _run_of(event), _NOTES[type_of(event)](event["data"]))
        self._close(key)

    def _text(self, key: _Key, run: str | None, piece: str) -> None:
        if (each := self._open.get(key)) is None:
            self._has_answer |= key[0] == "message"
            each = self._add(key, {}, run)
            if (kind := each.kind).part is not None:
                self._say(f"{kind.part_event}.added", {**each.at, "part": kind.part("")})
        self._piece(each, piece)

    def _piece(self, each: _Open, piece: str) -> None:
        append_text(each.pieces, piece)
        self._say(f"{each.kind.event}.delta", {**each.at, "delta": piece, **each.kind.more})

    # Tools and searches.

    def _tool_args(self, event: JsonObject) -> None:
        if delta := event["data"].get("delta"):
            self._piece(self._called(event), delta)

    def _tool_call(self, event: JsonObject) -> None:
        data = event["data"]
        self._end_thoughts(_run_of(event))
        # A call that waits is a request, unless pieces of its arguments were already sent.
        if not data.get("pending") or ("mcp_call", data["tool_call_id"]) in self._open:
            self._argued(self._called(event), data)

    def _tool_result(self, event: JsonObject) -> None:
        data, each = event["data"], self._called(event)
        self._argued(each, self._calls.pop(data["tool_call_id"], {}))
        each.item.update(items.result(data))
        self._say(f"mcp_call.{each.item['status']}", each.at)
        self._close(("mcp_call", data["tool_call_id"]), each.item["status"])

    def _called(self, event: JsonObject) -> _Open:
        data = event["data"]
        key = ("mcp_call", data["tool_call_id"])
        if (each := self._open.get(key)) is None:
            new = items.call(data, self._agent, self._asked.get(key[1]))
            each = self._add(key, new, _run_of(event))
            self._say("mcp_call.in_progress", each.at)
        return each

    def _argued(self, each: _Open, data: JsonObject) -> None:
        if not each.item["arguments"]:
            each.item["arguments"] = items.arguments(data)
            each.pieces.clear()
            done = {**each.at, "arguments": each.item["arguments"]}
            self._say("mcp_call_arguments.done", done)

    def _found(self, event: JsonObject) -> None:
        found = items.search(event["data"].get("documents"))
        self._whole({"id": f"fs_{event['sequence']}", **found})

    # Items.

    def _add(self, key: _Key, new: JsonObject, run: str | None) -> _Open:
        kind = _KINDS[key[0]]
        item = {"id": self._ids.unique(f"{kind.prefix}_{key[1]}"), "type": key[0]}
        item |= {**kind.new, **new, "status": "in_progress"}
        each = self._open[key] = _Open(len(self._output), item, run, kind)
        self._output.append(item)
        self._say("output_item.added", {"output_index": each.index, "item": item})
        return each

    def _whole(self, item: JsonObject) -> None:
        for kind in ("output_item.added", "output_item.done"):
            self._say(kind, {"output_index": len(self._output), "item": item})
        self._output.append(item)

    def _close(self, key: _Key, status: str = "completed") -> None:
        if (each := self._open.pop(key, None)) is None:
            return
        kind, text = each.kind, "".join(each.pieces)
        is_cut = key[0] == "mcp_call" and each.item["status"] == "in_progress"
        each.item |= each.so_far() | {"status": "incomplete" if is_cut else status}
        if kind.part is not None:
            self._say(f"{kind.event}.done", {**each.at, "text": text, **kind.more})
            self._say(f"{kind.part_event}.done", {**each.at, "part": kind.part(text)})
        self._say("output_item.done", {"output_index": each.index, "item": each.item})


@dataclass(slots=True)
class ObjectEncoder(ResponsesEncoder):
    """Reads a leg, and has no frames: `response` is what has come of the leg."""

    def _say(self, kind: str, body: JsonObject) -> None:
        pass


def _run_of(event: JsonObject) -> str | None:
    """Return the id of the inner run to which the event belongs."""
    subrun = event.get("subrun")
    run_id: str | None = subrun.get("id") if subrun else None
    return run_id


def _type_of_texts(run: str | None) -> str:
    return "reasoning" if run else "message"


_REMEMBERED: Final = frozenset(
    {"lifecycle.started", "lifecycle.paused", "llm.tool_call"}
    | {f"approval.{action}" for action in ("requested", "decided", "expired", "withdrawn")}
)
_NOTES: Final[Mapping[str, Callable[[JsonObject], str]]] = {
    "dispatch.team": "{team_name}: {task}".format_map,
    "dispatch.worker": "{worker_name}: {task}".format_map,
    "workflow.step_started": "Step: {description}".format_map,
    "workflow.step_failed": "Step {step_id} failed: {error[message]}".format_map,
}
# All other events have no item: docs/clients/openai.md says where a client sees them.
_HANDLERS: Final[Mapping[str, Callable[[ResponsesEncoder, JsonObject], None]]] = {
    "lifecycle.paused": ResponsesEncoder._paused,
    "lifecycle.completed": ResponsesEncoder._completed,
    "lifecycle.failed": ResponsesEncoder._failed,
    "lifecycle.cancelled": ResponsesEncoder._cancelled,
    "llm.stream": ResponsesEncoder._streamed,
    "llm.message_completed": ResponsesEncoder._message_completed,
    "llm.reasoning": ResponsesEncoder._thought,
    "llm.tool_args": ResponsesEncoder._tool_args,
    "llm.tool_call": ResponsesEncoder._tool_call,
    "llm.tool_result": ResponsesEncoder._tool_result,
    "llm.usage": ResponsesEncoder._usage,
    "retrieval.result": ResponsesEncoder._found,
    **dict.fromkeys(_NOTES, ResponsesEncoder._note),
}
