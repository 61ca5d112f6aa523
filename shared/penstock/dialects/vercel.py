"""Encodes canonical events into the UI message stream of the Vercel AI SDK, version 1.

A run is one assistant message, whose id is the run's id. A leg is one step of this message. A frame
is one chunk. An item of an approval is a call. A yes or no is asked for by `tool-approval-request`,
whose `approvalDescriptor` has the digest; a value is asked for as the call's output, and the id and
the digest are in the call's `providerMetadata`. The client sends both back unchanged, and only an
answer with the digest decides.

What the protocol lacks are data parts. Those of `_KEPT` stay in the message, and the client
replaces one by a later one with the same id. All other events are the transient part
`data-penstock`, which the client's `onData` gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.dialects.approvals import CONFIRMATIONS, OpenApprovals, question_id
from penstock.dialects.base import ClientDialect, Json, JsonObject, frame, type_of, unconfirmed
from penstock.dialects.json import obj, objects, string, without_none
from penstock.events.catalogue import TERMINAL
from penstock.sse import Frame

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
DONE: Final = b"[DONE]"
# The major versions of the package `ai`. A client fails at a chunk that its version does not know.
SDKS: Final = ("5", "6", "7")
DEFAULT_SDK: Final = "6"
_ASKS: Final = ("6", "7")  # tool-approval-request, tool-output-denied
_TELLS_ANSWERS: Final = ("7",)  # tool-approval-response

_SETTLED: Final = ("approval.decided", "approval.expired", "approval.withdrawn")
_ENDS_A_WAIT: Final = TERMINAL | {"lifecycle.resumed"}
# Maps a type to a kind of data part, the field with the part's id, and a status. A warning is a
# part of its own, and the end of a sub-agent has a status.
_KEPT: Final[Mapping[str, tuple[str, str, str | None]]] = {
    "dispatch.team": ("agent", "subrun_id", "running"),
    "dispatch.worker": ("agent", "subrun_id", "running"),
    "dispatch.finished": ("agent", "subrun_id", None),
    "workflow.step_started": ("step", "step_id", "running"),
    "workflow.step_completed": ("step", "step_id", "completed"),
    "workflow.step_failed": ("step", "step_id", "failed"),
    "system.warning": ("warning", "", None),
    "system.error": ("warning", "", None),
}

Chunks = Iterator[JsonObject]
Open = dict[str, str | None]  # maps the ids of open parts to their subruns


@dataclass(slots=True)
class VercelEncoder:
    """Encodes the events of one run (see `penstock.dialects.base.Encoder`)."""

    sdk: str = DEFAULT_SDK
    _is_new: bool = True  # whether no event has come
    _in_step: bool = False
    _is_over: bool = False
    _is_workflow: bool = False
    _last: str = ""  # the text of the last complete message
    _texts: Open = field(default_factory=dict)
    _thoughts: Open = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)  # ids of messages of which a piece was sent
    # Maps the ids of calls that were sent to whether their arguments are complete.
    _calls: dict[str, bool] = field(default_factory=dict)
    # Maps kinds and ids of data parts to their data.
    _parts: dict[tuple[str, str], JsonObject] = field(default_factory=dict)
    _approvals: OpenApprovals = field(default_factory=OpenApprovals)
    # Maps the ids of approvals that were sent to their items, by the items' ids.
    _asked: dict[str, dict[str, JsonObject]] = field(default_factory=dict)
    # The outcomes of items that are no tool's calls, for the next step: no result follows.
    _outcomes: list[JsonObject] = field(default_factory=list)

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        """Frames have no event name."""
        if self._is_over:
            return ()
        event_type, category = type_of(event), event["event"]["category"]
        if category == "approval":
            self._approvals.feed(event_type, event["data"])
        chunks: list[JsonObject] = []
        # What comes while the run waits begins no step.
        if not self._in_step and (self._is_new or category == "llm" or event_type in _ENDS_A_WAIT):
            chunks += self._begin(event)
        chunks += _HANDLERS.get(event_type, VercelEncoder._other)(self, event)
        self._is_over = event_type in TERMINAL
        return [frame(chunk) for chunk in chunks]

    def _begin(self, event: JsonObject) -> Chunks:
        """Begin the message, or go on with it after a pause."""
        if self._is_new:
            self._is_workflow = bool(event["data"].get("workflow"))
        self._is_new, self._in_step = False, True
        run_id = event["run_id"]
        metadata = without_none({"runId": run_id, "sessionId": event.get("session_id")})
        yield {"type": "start", "messageId": run_id, "messageMetadata": metadata}
        yield {"type": "start-step"}
        for outcome in self._outcomes:
            yield self._ended(outcome)
        self._outcomes.clear()

    # Text and thoughts.

    def _streamed(self, event: JsonObject) -> Chunks:
        if self._thoughts:
            yield from self._end_thoughts(event)
        data = event["data"]
        self._said.add(data["message_id"])
        yield from _piece("text", self._texts, data["message_id"], data["content"], event)

    def _message_completed(self, event: JsonObject) -> Chunks:
        """If no piece of the content was sent, as with structured output, it becomes one delta."""
        yield from self._end_thoughts(event)
        data = event["data"]
        message_id, self._last = data["message_id"], data.get("content") or ""
        if message_id not in self._said:
            yield from _piece("text", self._texts, message_id, self._last, event)
        yield from _end("text", self._texts, message_id)
        for part in objects(data.get("parts")):
            yield from _file(part)
        for cited in objects(obj(data.get("citations")).get("urls")):
            yield from _source(cited)

    def _thought(self, event: JsonObject) -> Chunks:
        data = event["data"]
        reasoning_id = data["reasoning_id"]
        yield from _piece("reasoning", self._thoughts, reasoning_id, data["thought"], event)
        if data.get("final"):
            yield from _end("reasoning", self._thoughts, reasoning_id)

    def _end_thoughts(self, event: JsonObject) -> Chunks:
        """When an agent sends text or calls a tool, clients would still show its open thoughts."""
        subrun = obj(event.get("subrun")).get("id")
        for part_id in [each for each, of in self._thoughts.items() if of == subrun]:
            yield from _end("reasoning", self._thoughts, part_id)

    def _close(self) -> Chunks:
        """End the step with its open parts. A message that goes on after a pause is a new part."""
        for kind, open_ in (("reasoning", self._thoughts), ("text", self._texts)):
            for part_id in list(open_):
                yield from _end(kind, open_, part_id)
        self._in_step = False
        yield {"type": "finish-step"}

    # Tools.

    def _tool_args(self, event: JsonObject) -> Chunks:
        """Leave out a value at a path, which comes with the whole arguments."""
        data = event["data"]
        call_id, delta = data["tool_call_id"], data.get("delta")
        if not delta or self._calls.get(call_id):
            return
        yield from self._end_thoughts(event)
        if call_id not in self._calls:
            self._calls[call_id] = False
            yield _call("start", event, data)
        yield {"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": delta}

    def _tool_call(self, event: JsonObject) -> Chunks:
        yield from self._end_thoughts(event)
        text = event["data"].get("args_text")
        yield from self._called(
            event, event["data"], event["data"]["args"] if text is None else text
        )

    def _called(self, event: JsonObject, data: JsonObject, args: Json) -> Chunks:
        """Send the call of a tool, of an item or of a result, if it was not sent. The client runs
        no call that is `providerExecuted`, and does not wait for its output."""
        if not self._calls.get(data["tool_call_id"]):
            self._calls[data["tool_call_id"]] = True
            yield {**_call("available", event, data), "providerExecuted": True, "input": args}

    def _tool_result(self, event: JsonObject) -> Chunks:
        data = event["data"]
        yield from self._end_thoughts(event)
        yield from self._called(event, data, {})
        yield self._ended(data)

    def _ended(self, data: JsonObject) -> JsonObject:
        call = {"toolCallId": data["tool_call_id"], "dynamic": True}
        outcome = data.get("outcome") or "ok"
        if outcome in ("ok", "partial"):
            return {"type": "tool-output-available", **call, "output": data.get("result")}
        if outcome == "rejected" and self.sdk in _ASKS:
            return {"type": "tool-output-denied", **call}
        text = string(data.get("error")) or outcome
        return {"type": "tool-output-error", **call, "errorText": text}

    # Pauses.

    def _paused(self, event: JsonObject) -> Chunks:
        if not self._in_step:
            return
        for request in self._approvals.requests.values():
            if request["approval_id"] not in self._asked:
                yield from self._ask(event, request)
        yield from self._close()
        yield _finish("tool-calls", status="waiting")

    def _ask(self, event: JsonObject, request: JsonObject) -> Chunks:
        asked = self._asked[request["approval_id"]] = {}
        for item in objects(request.get("items")):
            asked[item["item_id"]] = item
            question, digest = _question(request, item), request.get("digest")
            call, args = _call_of(item, question)
            if item["kind"] in CONFIRMATIONS and self.sdk in _ASKS:
                yield from self._called(event, call, args)
                asks: JsonObject = {"type": "tool-approval-request", "approvalId": question}
                asks |= {
                    "toolCallId": call["tool_call_id"],
                    "approvalDescriptor": {"digest": digest},
                }
                yield without_none({**asks, "reason": string(item.get("description"))})
            else:
                self._calls[call["tool_call_id"]] = True
                asks = {"id": question, "digest": digest, **_shown(item)}
                metadata = {"providerMetadata": {"penstock": {"asked": asks}}}
                chunk = {**_call("available", event, call), **metadata, "input": args}
                yield {**chunk, "providerExecuted": False}  # so the client is to send its output

    def _settled(self, event: JsonObject) -> Chunks:
        data = event["data"]
        answers = {each.get("item_id"): each for each in objects(data.get("items"))}
        for item_id, item in self._asked.get(data["approval_id"], {}).items():
            answer, question = answers.get(item_id, {}), _question(data, item)
            approved, value = answer.get("decision") == "approve", answer.get("value")
            note = string(answer.get("note")) or string(data.get("note"))
            if answer and self.sdk in _TELLS_ANSWERS and item["kind"] in CONFIRMATIONS:
                said = {"type": "tool-approval-response", "approvalId": question}
                yield without_none({**said, "approved": approved, "reason": note})
            if not item.get("tool_call_id"):
                outcome = "ok" if approved else "rejected" if answer else event["event"]["action"]
                result = {"tool_call_id": question, "outcome": outcome, "error": note}
                self._outcomes.append({**result, "result": "approved" if value is None else value})
        yield from self._other(event)

    # Data parts.

    def _kept(self, event: JsonObject) -> Chunks:
        """Add to the data of an earlier part with this id, which the client replaces."""
        kind, key, status = _KEPT[type_of(event)]
        part_id = event["data"].get(key) if key else f"{event['sequence']}"
        if part_id is None:  # a team that is no inner run
            yield from self._other(event)
            return
        known = {**self._parts.get((kind, part_id), {}), **without_none(event["data"])}
        known |= {} if status is None else {"status": status}
        self._parts[kind, part_id] = known
        yield {"type": f"data-penstock-{kind}", "id": part_id, "data": known}

    def _artifact(self, event: JsonObject) -> Chunks:
        yield from _file(event["data"])
        yield from self._other(event)

    def _other(self, event: JsonObject) -> Chunks:
        agent = obj(event.get("source")).get("agent_name")
        shown = {"event": type_of(event), "sequence": event.get("sequence"), "agent": agent}
        data = {**without_none(shown), "data": event["data"]}
        yield {"type": "data-penstock", "data": data, "transient": True}

    # Ends. The metadata says how the run ended, for clients that keep nothing of an end.

    def _completed(self, event: JsonObject) -> Chunks:
        """Say the output of a workflow, too: the value of an expression, which no agent said."""
        data = event["data"]
        answer = data.get("summary")
        if self._is_workflow and answer and answer != self._last:
            yield from _piece("text", self._texts, "answer", answer, {})
        yield from self._close()
        metadata = without_none({"usage": data.get("usage"), "value": data.get("value")})
        yield _finish("stop", status="completed", **metadata)

    def _failed(self, event: JsonObject) -> Chunks:
        data = event["data"]
        yield from self._close()
        metadata = {"status": "failed", "error": {"code": data.get("code") or "internal"}}
        yield {"type": "message-metadata", "messageMetadata": metadata}
        yield {"type": "error", "errorText": data.get("error") or "The run failed"}

    def _cancelled(self, event: JsonObject) -> Chunks:
        data = event["data"]
        yield from self._close()
        yield {"type": "message-metadata", "messageMetadata": {"status": "cancelled"}}
        yield {"type": "abort", "reason": f"{data.get('reason') or 'user_stop'}{unconfirmed(data)}"}


def _finish(reason: str, **metadata: Json) -> JsonObject:
    return {"type": "finish", "finishReason": reason, "messageMetadata": metadata}


def _piece(kind: str, open_: Open, part_id: str, piece: str, event: JsonObject) -> Chunks:
    if not piece:
        return
    if part_id not in open_:
        open_[part_id] = obj(event.get("subrun")).get("id")
        yield {"type": f"{kind}-start", "id": part_id, **_spoken_by(event)}
    yield {"type": f"{kind}-delta", "id": part_id, "delta": piece}


def _end(kind: str, open_: Open, part_id: str) -> Chunks:
    if part_id in open_:
        del open_[part_id]
        yield {"type": f"{kind}-end", "id": part_id}


def _spoken_by(event: JsonObject) -> JsonObject:
    """Return the field that names a sub-agent; the run's own agent has none."""
    subrun = event.get("subrun")
    if not subrun:
        return {}
    named = {"agent": obj(event.get("source")).get("agent_name"), "subrun": subrun.get("id")}
    return {"providerMetadata": {"penstock": without_none(named)}}


def _call(action: str, event: JsonObject, data: JsonObject) -> JsonObject:
    """Return a dynamic call, because the client's types do not have the tools of an agent."""
    named = {"toolCallId": data["tool_call_id"], "toolName": data.get("tool") or ""}
    return {"type": f"tool-input-{action}", **named, "dynamic": True, **_spoken_by(event)}


def _question(approval: JsonObject, item: JsonObject) -> str:
    return question_id(approval["approval_id"], item["item_id"])


def _call_of(item: JsonObject, question: str) -> tuple[JsonObject, JsonObject]:
    """Return the call that an item is, and its arguments. Without a tool, the call is named as the
    item's kind, and its arguments have what is asked."""
    call_id, args = item.get("tool_call_id"), item.get("args") or {}
    call = {"tool": item.get("tool") or item["kind"], "tool_call_id": call_id or question}
    return call, args if call_id else {**_shown(item), **args}


def _shown(item: JsonObject) -> JsonObject:
    shown = {name: item.get(name) for name in ("kind", "description", "input_schema", "options")}
    return without_none(shown)


def _file(file: JsonObject) -> Chunks:
    media_type, url = file.get("media_type") or "application/octet-stream", file.get("uri")
    if file.get("type") == "data":
        url = f"data:{media_type};base64,{file.get('data') or ''}"
    if string(url):
        yield {"type": "file", "url": url, "mediaType": media_type}


def _source(document: JsonObject) -> Chunks:
    url, title = string(document.get("url")), string(document.get("title"))
    source_id = string(document.get("id")) or url
    if url:
        source = {"type": "source-url", "sourceId": source_id, "url": url, "title": title}
        yield without_none(source)
    elif source_id:
        source = {"type": "source-document", "sourceId": source_id, "title": title or source_id}
        yield {**source, "mediaType": "text/plain"}


def _retrieved(_encoder: VercelEncoder, event: JsonObject) -> Chunks:
    for document in objects(event["data"].get("documents")):
        yield from _source(document)


def _nothing(_encoder: VercelEncoder, _event: JsonObject) -> Chunks:
    yield from ()


_BEGINNINGS: Final = ("lifecycle.started", "lifecycle.resumed", "llm.message_started")
# Maps a type to its handler. Any other type becomes the transient part `data-penstock`. A policy
# may decide a request without a pause, so a request is shown when the run pauses.
_HANDLERS: Final[Mapping[str, Callable[[VercelEncoder, JsonObject], Chunks]]] = {
    **dict.fromkeys(_KEPT, VercelEncoder._kept),
    **dict.fromkeys((*_BEGINNINGS, "approval.requested"), _nothing),
    **dict.fromkeys(_SETTLED, VercelEncoder._settled),
    "lifecycle.paused": VercelEncoder._paused,
    "lifecycle.completed": VercelEncoder._completed,
    "lifecycle.failed": VercelEncoder._failed,
    "lifecycle.cancelled": VercelEncoder._cancelled,
    "llm.stream": VercelEncoder._streamed,
    "llm.message_completed": VercelEncoder._message_completed,
    "llm.reasoning": VercelEncoder._thought,
    "llm.tool_args": VercelEncoder._tool_args,
    "llm.tool_call": VercelEncoder._tool_call,
    "llm.tool_result": VercelEncoder._tool_result,
    "retrieval.result": _retrieved,
    "artifact.updated": VercelEncoder._artifact,
}

DIALECT: Final = ClientDialect(VercelEncoder, stateful=True, headers=HEADERS, last=DONE)
