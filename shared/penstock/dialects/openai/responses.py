"""Encodes canonical events into the stream of OpenAI's Responses API. One response is one leg.

The text of the answer is what the run's own agent says. What inner agents say and the beginnings of
steps are reasoning, so that `output_text` is the answer alone; a run without a message of its own
answers with its summary. Tools are `mcp_call` items, because the agent server runs them. A call
that waits for a decision is a request until it has run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.dialects.approvals import OpenApprovals
from penstock.dialects.base import (
    Ids,
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


class Part(NamedTuple):
    """An event of the stream, `response.<kind>`, without its number."""

    kind: str
    body: JsonObject


Parts = Iterator[Part]
Opening = Generator[Part, None, "_Open"]
_Key = tuple[str, str]  # the type and the id of an open item


@dataclass(slots=True)
class _Open:
    """An item that has not ended. `place` is the inner run that it belongs to."""

    index: int
    item: JsonObject
    place: str | None
    pieces: list[str] = field(default_factory=list)

    @property
    def at(self) -> JsonObject:
        return {"item_id": self.item["id"], "output_index": self.index}

    def so_far(self) -> JsonObject:
        text = "".join(self.pieces)
        return {**self.item, **(_TEXTS[self.item["type"]].fields(text) if text else {})}


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
    _number: int = 0
    _agent: str = ""
    _begun: JsonObject | None = None  # the fields that a response has from its beginning on
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
        return [self._frame(part) for part in self.parts(event)]

    def parts(self, event: JsonObject) -> Parts:
        event_type = type_of(event)
        self.at_leg = event.get("leg") or 1
        self._remember(event_type, event["data"])
        if self._begun is None:
            if self.at_leg < self.leg and event_type not in TERMINAL:
                return
            yield from self._begin(event)
        if (handle := _HANDLERS.get(event_type)) is not None:
            yield from handle(self, event)

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
            **(self._begun or {"created_at": 0, "metadata": {}}),
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

    def _frame(self, part: Part) -> Frame:
        kind, number = f"response.{part.kind}", self._number
        made = frame({"type": kind, "sequence_number": number, **part.body}, kind)
        made.id = f"{number}"
        self._number += 1
        return made

    def _remember(self, event_type: str, data: JsonObject) -> None:
        match event_type:
            case "lifecycle.started":
                self._agent = data.get("agent", "")
                self.inputs = [items.question(data.get("message") or "")]
            case "lifecycle.paused" if self._begun is None:
                self.inputs = []  # the leg begins after a pause
            case "approval.decided" if self._begun is None:
                asked_for = self._approvals.requests.get(data["approval_id"], {})
                self.inputs += items.answers(asked_for, data["items"])
            case "llm.tool_call":
                self._calls[data["tool_call_id"]] = data
            case "approval.requested":
                for item in data["items"]:
                    asked = items.Asked.of(data["approval_id"], item)
                    self._asked[item.get("tool_call_id") or ""] = str(asked)
        if event_type.startswith("approval."):
            self._approvals.feed(event_type, data)

    # The response.

    def _begin(self, event: JsonObject) -> Parts:
        metadata = {"run_id": event["run_id"], "session_id": event.get("session_id") or ""}
        self._begun = {"created_at": int(epoch_s(event)), "metadata": metadata}
        self.status = "in_progress"
        yield Part("created", {"response": self.response()})
        yield Part("in_progress", {"response": self.response()})

    def _end(self, status: str, kind: str) -> Parts:
        for key in list(self._open):
            yield from self._close(key, "completed" if status == "completed" else "incomplete")
        self.status = status
        yield Part(kind, {"response": self.response()})

    def _paused(self, event: JsonObject) -> Parts:
        """Ask for all open approvals, here and not at `approval.requested`: if a policy decides
        them, the run does not pause, and the client must not answer."""
        for approval, item in self._approvals.items():
            yield from self._whole(items.request(approval, item, self._agent))
        yield from self._end("completed", "completed")

    def _completed(self, event: JsonObject) -> Parts:
        data = event["data"]
        answer = data.get("content") or data.get("summary")
        if not self._has_answer and answer:
            yield from self._text("message", event["run_id"], None, answer)
        if not self._used and (used := obj(data.get("usage"))):
            self._used.append(used)
        yield from self._end("completed", "completed")

    def _failed(self, event: JsonObject) -> Parts:
        data = event["data"]
        text = f"{data.get('code', 'failed')}: {data.get('error', 'the run failed')}"
        self._error = {"code": "server_error", "message": text}
        yield from self._end("failed", "failed")

    def _cancelled(self, event: JsonObject) -> Parts:
        # The grammar has no event for a cancelled response; its status says it.
        if text := unconfirmed(event["data"]):
            self._error = {"code": "server_error", "message": f"cancelled{text}"}
        yield from self._end("cancelled", "incomplete")

    def _usage(self, event: JsonObject) -> Parts:
        self._used.append(event["data"])
        yield from ()

    # Texts and thoughts.

    def _streamed(self, event: JsonObject) -> Parts:
        place, key = _place(event), _key_of(event)
        yield from self._end_thoughts(place, key)
        yield from self._text(*key, place, event["data"]["content"])

    def _message_completed(self, event: JsonObject) -> Parts:
        data, key = event["data"], _key_of(event)
        yield from self._end_thoughts(_place(event), key)
        if key not in self._open and data["content"] and data.get("role") in (None, "assistant"):
            yield from self._text(*key, _place(event), data["content"])
        yield from self._close(key)

    def _thought(self, event: JsonObject) -> Parts:
        data = event["data"]
        key = ("reasoning", data["reasoning_id"])
        if data["thought"] and not data.get("debug"):
            yield from self._text(*key, _place(event), data["thought"])
        if data.get("final"):
            yield from self._close(key)

    def _end_thoughts(self, place: str | None, but: _Key | None = None) -> Parts:
        for key, each in list(self._open.items()):
            if key[0] == "reasoning" and each.place == place and key != but:
                yield from self._close(key)

    def _note(self, event: JsonObject) -> Parts:
        key = ("reasoning", f"{event['sequence']}")
        yield from self._text(*key, _place(event), _NOTES[type_of(event)](event["data"]))
        yield from self._close(key)

    def _text(self, kind: str, text_id: str, place: str | None, piece: str) -> Parts:
        texts, each = _TEXTS[kind], self._open.get((kind, text_id))
        if each is None:
            self._has_answer |= kind == "message"
            each = yield from self._add((kind, text_id), texts.new, place)
            part = {"part": texts.part(""), texts.place: 0}
            yield Part(f"{texts.part_event}.added", {**each.at, **part})
        append_text(each.pieces, piece)
        yield Part(
            f"{texts.event}.delta", {**each.at, texts.place: 0, "delta": piece, **texts.more}
        )

    # Tools and searches.

    def _tool_args(self, event: JsonObject) -> Parts:
        data = event["data"]
        if delta := data.get("delta"):
            each = yield from self._called(event)
            append_text(each.pieces, delta)
            yield Part("mcp_call_arguments.delta", {**each.at, "delta": delta})

    def _tool_call(self, event: JsonObject) -> Parts:
        data = event["data"]
        yield from self._end_thoughts(_place(event))
        # A call that waits is a request, unless pieces of its arguments were already sent.
        if not data.get("pending") or ("mcp_call", data["tool_call_id"]) in self._open:
            yield from self._argued((yield from self._called(event)), data)

    def _tool_result(self, event: JsonObject) -> Parts:
        data = event["data"]
        each = yield from self._called(event)
        yield from self._argued(each, self._calls.pop(data["tool_call_id"], {}))
        each.item.update(items.result(data))
        yield Part(f"mcp_call.{each.item['status']}", each.at)
        yield from self._close(("mcp_call", data["tool_call_id"]), each.item["status"])

    def _called(self, event: JsonObject) -> Opening:
        data = event["data"]
        key = ("mcp_call", data["tool_call_id"])
        if key in self._open:
            return self._open[key]
        new = items.call(data, self._agent, self._asked.get(key[1]))
        each = yield from self._add(key, new, _place(event))
        yield Part("mcp_call.in_progress", each.at)
        return each

    def _argued(self, each: _Open, data: JsonObject) -> Parts:
        if not each.item["arguments"]:
            each.item["arguments"] = items.arguments(data)
            each.pieces.clear()
            done = {**each.at, "arguments": each.item["arguments"]}
            yield Part("mcp_call_arguments.done", done)

    def _found(self, event: JsonObject) -> Parts:
        found = items.search(event["data"].get("documents"))
        yield from self._whole({"id": f"fs_{event['sequence']}", **found})

    # Items.

    def _add(self, key: _Key, new: JsonObject, place: str | None) -> Opening:
        item_id = self._ids.unique(f"{_TEXTS[key[0]].prefix}_{key[1]}")
        item = {"id": item_id, **new, "status": "in_progress"}
        each = self._open[key] = _Open(len(self._output), item, place)
        self._output.append(item)
        yield Part("output_item.added", {"output_index": each.index, "item": item})
        return each

    def _whole(self, item: JsonObject) -> Parts:
        for kind in ("output_item.added", "output_item.done"):
            yield Part(kind, {"output_index": len(self._output), "item": item})
        self._output.append(item)

    def _close(self, key: _Key, status: str = "completed") -> Parts:
        each = self._open.pop(key, None)
        if each is None:
            return
        texts, text = _TEXTS[key[0]], "".join(each.pieces)
        is_cut = key[0] == "mcp_call" and each.item["status"] == "in_progress"
        each.item |= each.so_far() | {"status": "incomplete" if is_cut else status}
        if texts.event:
            at = {**each.at, texts.place: 0}
            yield Part(f"{texts.event}.done", {**at, "text": text, **texts.more})
            yield Part(f"{texts.part_event}.done", {**at, "part": texts.part(text)})
        yield Part("output_item.done", {"output_index": each.index, "item": each.item})


@dataclass(frozen=True, slots=True)
class _Texts:
    """How an item's text is written: the events of its pieces and of its only part."""

    prefix: str
    fields: Callable[[str], JsonObject]
    new: JsonObject = field(default_factory=dict)
    event: str = ""
    part_event: str = ""
    place: str = ""
    part: Callable[[str], JsonObject] = items.text_part
    more: JsonObject = field(default_factory=dict)


_TEXTS: Final[Mapping[str, _Texts]] = {
    "message": _Texts(
        "msg",
        lambda text: {"content": [items.text_part(text)]},
        {"type": "message", "role": "assistant", "content": []},
        "output_text",
        "content_part",
        "content_index",
        more={"logprobs": []},
    ),
    "reasoning": _Texts(
        "rs",
        lambda text: {"summary": [items.summary_part(text)]},
        {"type": "reasoning", "summary": []},
        "reasoning_summary_text",
        "reasoning_summary_part",
        "summary_index",
        items.summary_part,
    ),
    "mcp_call": _Texts("mcp", lambda text: {"arguments": text}),
}


def _place(event: JsonObject) -> str | None:
    subrun: str | None = obj(event.get("subrun")).get("id")
    return subrun


def _key_of(event: JsonObject) -> _Key:
    return ("reasoning" if _place(event) else "message", event["data"]["message_id"])


_NOTES: Final[Mapping[str, Callable[[JsonObject], str]]] = {
    "dispatch.team": "{team_name}: {task}".format_map,
    "dispatch.worker": "{worker_name}: {task}".format_map,
    "workflow.step_started": "Step: {description}".format_map,
    "workflow.step_failed": "Step {step_id} failed: {error[message]}".format_map,
}
# All other events have no item: docs/clients/openai.md says where a client sees them.
_HANDLERS: Final[Mapping[str, Callable[[ResponsesEncoder, JsonObject], Parts]]] = {
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
