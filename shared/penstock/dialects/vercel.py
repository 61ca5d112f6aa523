"""Encodes canonical events into the UI message stream of the Vercel AI SDK, version 1.

A run is one assistant message, whose id is the run's id. A leg is one step of this message. A frame
is one chunk. An approval's item is a `tool-approval-request`, whose `approvalDescriptor` has the
digest: the client sends it back unchanged, and only an answer with it decides.

What the protocol lacks are data parts. The parts `data-penstock-approval`, `-agent`, `-step` and
`-warning` stay in the message, and a later one with the same id replaces an earlier one. All other
events are the transient part `data-penstock`, which the client's `onData` gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.dialects.approvals import OpenApprovals, question_id
from penstock.dialects.base import (
    ClientDialect,
    Json,
    JsonObject,
    frame,
    type_of,
    unconfirmed,
)
from penstock.dialects.json import obj, objects, string, without_none
from penstock.events.catalogue import TERMINAL
from penstock.sse import Frame

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
DONE: Final = b"[DONE]"

# The kinds of items that a client answers with yes or no. An item of another kind needs a value,
# which an approval response of the SDK cannot carry.
CONFIRMATIONS: Final = frozenset({"confirmation", "review", "budget"})
_SETTLED: Final = {
    "approval.decided": "decided",
    "approval.expired": "expired",
    "approval.withdrawn": "withdrawn",
}


_ENDS_A_WAIT: Final = TERMINAL | {"lifecycle.resumed"}


@dataclass(frozen=True, slots=True)
class Sdk:
    """The chunks that a major version of the package `ai` knows besides those of version 5. A
    client fails at a chunk that it does not know."""

    asks: bool = True  # tool-approval-request, tool-output-denied
    tells_answers: bool = False  # tool-approval-response


SDKS: Final[Mapping[str, Sdk]] = {
    "5": Sdk(asks=False),
    "6": Sdk(),
    "7": Sdk(tells_answers=True),
}
DEFAULT_SDK: Final = "6"


@dataclass(slots=True)
class VercelEncoder:
    """Encodes the events of one run (see `penstock.dialects.base.Encoder`)."""

    sdk: Sdk = SDKS[DEFAULT_SDK]
    _run_id: str = ""
    _has_begun: bool = False  # whether the message has begun in this leg
    _is_over: bool = False
    _is_workflow: bool = False
    _last: str = ""  # the text of the last complete message
    # Map the ids of open messages and thoughts to their subruns.
    _texts: dict[str, str | None] = field(default_factory=dict)
    _thoughts: dict[str, str | None] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)  # ids of messages of which a piece was sent
    _called: set[str] = field(default_factory=set)  # ids of calls whose part has begun
    _complete: set[str] = field(default_factory=set)  # ids of calls whose arguments were sent
    _agents: dict[str, JsonObject] = field(default_factory=dict)  # data of sub-agents' parts
    _steps: dict[str, JsonObject] = field(default_factory=dict)  # data of steps' parts
    _approvals: OpenApprovals = field(default_factory=OpenApprovals)
    _asked: dict[Json, set[Json]] = field(default_factory=dict)  # items of approvals that were sent
    _shown: dict[Json, JsonObject] = field(default_factory=dict)  # data of approvals' parts

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        """Frames have no event name."""
        if self._is_over:
            return ()
        event_type = type_of(event)
        if event["event"]["category"] == "approval":
            self._approvals.feed(event_type, event["data"])
        chunks = [] if self._has_begun else list(self._begin(event, event_type))
        chunks += _HANDLERS.get(event_type, VercelEncoder._other)(self, event)
        return [frame(chunk) for chunk in chunks]

    def _begin(self, event: JsonObject, event_type: str) -> Iterator[JsonObject]:
        """Begin the message, or go on with it after a pause; not with what comes in a pause."""
        waits = self._run_id and event["event"]["category"] != "llm"
        if waits and event_type not in _ENDS_A_WAIT:
            return
        self._run_id, self._has_begun = event["run_id"], True
        metadata = {"runId": event["run_id"], "sessionId": event.get("session_id")}
        yield {
            "type": "start",
            "messageId": event["run_id"],
            "messageMetadata": without_none(metadata),
        }
        yield {"type": "start-step"}

    def _started(self, event: JsonObject) -> Iterator[JsonObject]:
        self._is_workflow = bool(event["data"].get("workflow"))
        yield from ()

    # Text and thoughts.

    def _streamed(self, event: JsonObject) -> Iterator[JsonObject]:
        if self._thoughts:
            yield from self._end_thoughts(event)
        data = event["data"]
        message_id, piece = data["message_id"], data["content"]
        if not piece:
            return
        if message_id not in self._texts:
            yield self._open("text", self._texts, message_id, event)
        self._said.add(message_id)
        yield {"type": "text-delta", "id": message_id, "delta": piece}

    def _message_completed(self, event: JsonObject) -> Iterator[JsonObject]:
        """If no piece of the content was sent, as with structured output, it becomes one delta."""
        yield from self._end_thoughts(event)
        data = event["data"]
        message_id, content = data["message_id"], data.get("content") or ""
        if content and message_id not in self._said:
            yield self._open("text", self._texts, message_id, event)
            yield {"type": "text-delta", "id": message_id, "delta": content}
        self._last = content
        yield from self._end("text", self._texts, message_id)
        for part in objects(data.get("parts")):
            yield from _file(_url(part), part.get("media_type"))
        for cited in objects(obj(data.get("citations")).get("urls")):
            yield from _source(cited, cited.get("url"))

    def _thought(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        reasoning_id = data["reasoning_id"]
        if data["thought"]:
            if reasoning_id not in self._thoughts:
                yield self._open("reasoning", self._thoughts, reasoning_id, event)
            yield {"type": "reasoning-delta", "id": reasoning_id, "delta": data["thought"]}
        if data.get("final"):
            yield from self._end("reasoning", self._thoughts, reasoning_id)

    def _open(
        self, kind: str, open_: dict[str, str | None], part_id: str, event: JsonObject
    ) -> JsonObject:
        open_[part_id] = _subrun(event)
        return {"type": f"{kind}-start", "id": part_id, **_spoken_by(event)}

    def _end(self, kind: str, open_: dict[str, str | None], part_id: str) -> Iterator[JsonObject]:
        if part_id in open_:
            del open_[part_id]
            yield {"type": f"{kind}-end", "id": part_id}

    def _end_thoughts(self, event: JsonObject) -> Iterator[JsonObject]:
        """When an agent sends text or calls a tool, clients would still show its open thoughts."""
        subrun = _subrun(event)
        for part_id in [each for each, of in self._thoughts.items() if of == subrun]:
            yield from self._end("reasoning", self._thoughts, part_id)

    def _close(self) -> Iterator[JsonObject]:
        """End the step with its open parts. A message that goes on after a pause is a new part."""
        for part_id in list(self._thoughts):
            yield from self._end("reasoning", self._thoughts, part_id)
        for part_id in list(self._texts):
            yield from self._end("text", self._texts, part_id)
        self._has_begun = False
        yield {"type": "finish-step"}

    # Tools.

    def _tool_args(self, event: JsonObject) -> Iterator[JsonObject]:
        """Leave out a value at a path, which comes with the whole arguments."""
        data = event["data"]
        call_id, delta = data["tool_call_id"], data.get("delta")
        if not delta or call_id in self._complete:
            return
        yield from self._end_thoughts(event)
        if call_id not in self._called:
            self._called.add(call_id)
            yield _call("start", event, call_id, data["tool"])
        yield {"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": delta}

    def _tool_call(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        if data["tool_call_id"] in self._complete:
            return
        yield from self._end_thoughts(event)
        args = data.get("args_text")
        yield self._called_with(event, data, data.get("args") if args is None else args)

    def _called_with(self, event: JsonObject, data: JsonObject, args: Json) -> JsonObject:
        call_id = data["tool_call_id"]
        self._called.add(call_id)
        self._complete.add(call_id)
        call = _call("available", event, call_id, data.get("tool") or "")
        if data.get("execution") != "client":
            # Without this field, the client runs `onToolCall`, and sends the message again as soon
            # as all calls have results.
            call["providerExecuted"] = True
        return {**call, "input": args}

    def _tool_result(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield from self._end_thoughts(event)
        if data["tool_call_id"] not in self._complete:
            yield self._called_with(event, data, {})
        call = {"toolCallId": data["tool_call_id"]}
        outcome = data.get("outcome") or "ok"
        if outcome in ("ok", "partial"):
            output = data.get("result")
            yield {"type": "tool-output-available", **call, "output": output, "dynamic": True}
        elif outcome == "rejected" and self.sdk.asks:
            yield {"type": "tool-output-denied", **call}
        else:
            text = string(data.get("error")) or outcome
            yield {"type": "tool-output-error", **call, "errorText": text, "dynamic": True}

    # Pauses.

    def _paused(self, event: JsonObject) -> Iterator[JsonObject]:
        if not self._has_begun:
            return
        for request in self._approvals.requests.values():
            if request["approval_id"] not in self._asked:
                yield from self._ask(event, request)
        yield from self._close()
        yield {"type": "finish", "finishReason": "tool-calls"}

    def _ask(self, event: JsonObject, request: JsonObject) -> Iterator[JsonObject]:
        """Ask about calls by their parts, and about all other items by one data part."""
        approval_id, items = request["approval_id"], objects(request.get("items"))
        asked = self._asked[approval_id] = set()
        rest = []
        for item in items:
            if not (self.sdk.asks and item.get("kind") in CONFIRMATIONS and _call_of(item)):
                rest.append(item)
                continue
            asked.add(item["item_id"])
            if item["tool_call_id"] not in self._complete:
                yield self._called_with(event, item, item.get("args") or {})
            yield without_none(
                {
                    "type": "tool-approval-request",
                    "approvalId": question_id(approval_id, item["item_id"]),
                    "toolCallId": item["tool_call_id"],
                    "approvalDescriptor": {"digest": request.get("digest")},
                    "reason": string(item.get("description")),
                }
            )
        if rest:
            shown = {
                "approvalId": approval_id,
                "digest": request.get("digest"),
                "status": "pending",
                "expiresAt": event["data"].get("expires_at") or request.get("expires_at"),
                "items": rest,
            }
            self._shown[approval_id] = without_none(shown)
            yield _kept("approval", approval_id, self._shown[approval_id])

    def _settled(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        approval_id = data["approval_id"]
        if self.sdk.tells_answers:
            asked = self._asked.get(approval_id, ())
            for item in objects(data.get("items")):
                if item.get("item_id") in asked:
                    yield _response(approval_id, item, data)
        if approval_id in self._shown:
            status = _SETTLED[type_of(event)]
            yield _kept("approval", approval_id, {**self._shown[approval_id], "status": status})
        yield from self._other(event)

    # Sub-agents, workflow steps, and what else has no chunk.

    def _dispatched(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        name = data.get("worker_name") or data.get("team_name")
        if (subrun_id := data.get("subrun_id")) is None:
            yield from self._other(event)
            return
        shown = {"name": name, "task": data.get("task"), "status": "running"}
        yield self._keep(self._agents, "agent", subrun_id, shown)

    def _finished(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        shown = {key: data.get(key) for key in ("status", "result", "error")}
        yield self._keep(self._agents, "agent", data["subrun_id"], shown)

    def _step_started(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        shown = {"description": data.get("description"), "status": "running"}
        yield self._keep(self._steps, "step", data["step_id"], shown)

    def _step_ended(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        shown = {
            "status": "failed" if "error" in data else "completed",
            "output": data.get("output"),
            "error": data.get("error"),
        }
        yield self._keep(self._steps, "step", data["step_id"], shown)

    def _keep(
        self, known: dict[str, JsonObject], kind: str, part_id: str, shown: JsonObject
    ) -> JsonObject:
        """Repeat the data of an earlier part with this id, which the client replaces."""
        known[part_id] = {**known.get(part_id, {}), **without_none(shown)}
        return _kept(kind, part_id, known[part_id])

    def _warned(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        shown = {key: data.get(key) for key in ("code", "message", "detail")}
        yield _kept("warning", f"{event['sequence']}", without_none(shown))

    def _retrieved(self, event: JsonObject) -> Iterator[JsonObject]:
        for document in objects(event["data"].get("documents")):
            yield from _source(document, document.get("url"))

    def _artifact(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield from _file(data.get("uri"), data.get("media_type"))
        yield from self._other(event)

    def _other(self, event: JsonObject) -> Iterator[JsonObject]:
        shown = {
            "event": type_of(event),
            "sequence": event.get("sequence"),
            "agent": (event.get("source") or {}).get("agent_name"),
            "data": event["data"],
        }
        yield {"type": "data-penstock", "data": without_none(shown), "transient": True}

    # Ends.

    def _completed(self, event: JsonObject) -> Iterator[JsonObject]:
        """Say the output of a workflow, too: the value of an expression, which no agent said."""
        data = event["data"]
        answer = data.get("summary")
        if self._is_workflow and answer and answer != self._last:
            yield {"type": "text-start", "id": "answer"}
            yield {"type": "text-delta", "id": "answer", "delta": answer}
            yield {"type": "text-end", "id": "answer"}
        yield from self._close()
        self._is_over = True
        metadata = without_none({"usage": data.get("usage"), "value": data.get("value")})
        finish: JsonObject = {"type": "finish", "finishReason": "stop"}
        yield {**finish, "messageMetadata": metadata} if metadata else finish

    def _failed(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield from self._close()
        self._is_over = True
        metadata = {"error": {"code": data.get("code") or "internal"}}
        yield {"type": "message-metadata", "messageMetadata": metadata}
        yield {"type": "error", "errorText": data.get("error") or "The run failed"}

    def _cancelled(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield from self._close()
        self._is_over = True
        yield {"type": "abort", "reason": f"{data.get('reason') or 'user_stop'}{unconfirmed(data)}"}


def error(text: str) -> Frame:
    """Return the chunk for a stream that ends before its run or leg does."""
    return frame({"type": "error", "errorText": text})


def _subrun(event: JsonObject) -> str | None:
    subrun = event.get("subrun")
    return subrun.get("id") if subrun else None


def _spoken_by(event: JsonObject) -> JsonObject:
    """Return the field that names a sub-agent; the run's own agent has none."""
    subrun, source = event.get("subrun"), event.get("source") or {}
    if not subrun:
        return {}
    named = {"agent": source.get("agent_name"), "subrun": subrun.get("id")}
    return {"providerMetadata": {"penstock": without_none(named)}}


def _call(action: str, event: JsonObject, call_id: str, tool: str) -> JsonObject:
    """Return a dynamic call, because the client's types do not have the tools of an agent."""
    chunk = {"type": f"tool-input-{action}", "toolCallId": call_id, "toolName": tool}
    return {**chunk, "dynamic": True, **_spoken_by(event)}


def _call_of(item: JsonObject) -> str | None:
    return string(item.get("tool_call_id"))


def _response(approval_id: str, item: JsonObject, decided: JsonObject) -> JsonObject:
    return without_none(
        {
            "type": "tool-approval-response",
            "approvalId": question_id(approval_id, item["item_id"]),
            "approved": item.get("decision") == "approve",
            "reason": string(item.get("note")) or string(decided.get("note")),
        }
    )


def _kept(kind: str, part_id: str, data: JsonObject) -> JsonObject:
    return {"type": f"data-penstock-{kind}", "id": part_id, "data": data}


def _url(part: JsonObject) -> Json:
    """Return the address of a file, or its content as one, of a part of a message."""
    if part.get("type") == "data" and string(part.get("data")):
        return f"data:{part.get('media_type') or ''};base64,{part['data']}"
    return part.get("uri")


def _file(url: Json, media_type: Json) -> Iterator[JsonObject]:
    if string(url):
        yield {"type": "file", "url": url, "mediaType": media_type or "application/octet-stream"}


def _source(document: JsonObject, url: Json) -> Iterator[JsonObject]:
    title = string(document.get("title"))
    if string(url):
        source = {"type": "source-url", "sourceId": document.get("id") or url, "url": url}
        yield without_none({**source, "title": title})
    elif string(document.get("id")):
        document_id = document["id"]
        source = {"type": "source-document", "sourceId": document_id, "mediaType": "text/plain"}
        yield {**source, "title": title or document_id}


def _nothing(encoder: VercelEncoder, event: JsonObject) -> Iterator[JsonObject]:
    yield from ()


Handler = Callable[[VercelEncoder, JsonObject], Iterator[JsonObject]]

# Maps a type to its handler. Any other type becomes the transient part `data-penstock`.
_HANDLERS: Final[Mapping[str, Handler]] = {
    "lifecycle.started": VercelEncoder._started,
    "lifecycle.paused": VercelEncoder._paused,
    "lifecycle.resumed": _nothing,
    "lifecycle.completed": VercelEncoder._completed,
    "lifecycle.failed": VercelEncoder._failed,
    "lifecycle.cancelled": VercelEncoder._cancelled,
    "llm.message_started": _nothing,  # a text begins with its first piece
    "llm.stream": VercelEncoder._streamed,
    "llm.message_completed": VercelEncoder._message_completed,
    "llm.reasoning": VercelEncoder._thought,
    "llm.tool_args": VercelEncoder._tool_args,
    "llm.tool_call": VercelEncoder._tool_call,
    "llm.tool_result": VercelEncoder._tool_result,
    # A policy may decide a request without a pause, so it is shown when the run pauses.
    "approval.requested": _nothing,
    "approval.decided": VercelEncoder._settled,
    "approval.expired": VercelEncoder._settled,
    "approval.withdrawn": VercelEncoder._settled,
    "dispatch.team": VercelEncoder._dispatched,
    "dispatch.worker": VercelEncoder._dispatched,
    "dispatch.finished": VercelEncoder._finished,
    "workflow.step_started": VercelEncoder._step_started,
    "workflow.step_completed": VercelEncoder._step_ended,
    "workflow.step_failed": VercelEncoder._step_ended,
    "retrieval.result": VercelEncoder._retrieved,
    "artifact.updated": VercelEncoder._artifact,
    "system.warning": VercelEncoder._warned,
    "system.error": VercelEncoder._warned,
}


def encoder(sdk: str) -> Callable[[], VercelEncoder]:
    return partial(VercelEncoder, SDKS[sdk])


DIALECT: Final = ClientDialect(
    VercelEncoder,
    stateful=True,
    headers=HEADERS,
    last=DONE,
)
