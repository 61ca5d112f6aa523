"""Encodes canonical events into the stream responses of A2A 1.0, and of 0.3 with `older`.

A run is a task, its session is the context, and each of its messages is an artifact. The frames
have what A2A itself knows. With `extended`, which clients ask for by the extension's URI, each
event that A2A has no place for is a data part of a status message (docs/a2a-extension.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock.dialects.approvals import OpenApprovals
from penstock.dialects.base import (
    ClientDialect,
    JsonObject,
    append_text,
    frame,
    type_of,
    unconfirmed,
)
from penstock.dialects.json import dumped
from penstock.sse import Frame

EXTENSION: Final = "urn:penstock:a2a:events:v1"
CHANNEL: Final = "a2a"

SUBMITTED: Final = "TASK_STATE_SUBMITTED"
WORKING: Final = "TASK_STATE_WORKING"
INPUT_REQUIRED: Final = "TASK_STATE_INPUT_REQUIRED"
AUTH_REQUIRED: Final = "TASK_STATE_AUTH_REQUIRED"
COMPLETED: Final = "TASK_STATE_COMPLETED"
FAILED: Final = "TASK_STATE_FAILED"
CANCELED: Final = "TASK_STATE_CANCELED"
ENDED: Final = frozenset({COMPLETED, FAILED, CANCELED})
INTERRUPTED: Final = frozenset({INPUT_REQUIRED, AUTH_REQUIRED})

# The events of these categories show that the agent works on the task.
_WORK: Final = frozenset(
    {"llm", "dispatch", "workflow", "retrieval", "state", "artifact", "custom"}
)


def escaped(data: bytes) -> bytes:
    """Escape the characters at which A2A's official client for Python wrongly ends a line of SSE:
    it reads lines with `str.splitlines`, and finds a text with one of these cut off."""
    data = data.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return data.replace(b"\xc2\x85", rb"\u0085")


def message(run_id: str, context_id: str, message_id: str, *parts: JsonObject) -> JsonObject:
    return {
        "messageId": message_id,
        "contextId": context_id,
        "taskId": run_id,
        "role": "ROLE_AGENT",
        "parts": list(parts),
        "extensions": [EXTENSION],
    }


@dataclass(slots=True)
class A2aEncoder:
    """Encodes the events of one run (see `penstock.dialects.base.Encoder`)."""

    extended: bool = True
    older: bool = False
    _state: str = SUBMITTED
    # The ids of the open messages whose artifacts have begun, in order.
    _open: dict[str, bool] = field(default_factory=dict)
    _has_artifact: bool = False
    # The parts of the present pause's status, which stay in the statuses of later events.
    _asked: list[JsonObject] = field(default_factory=list)
    _approvals: OpenApprovals = field(default_factory=OpenApprovals)

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        responses = self.responses(event)
        return [
            Frame(escaped(frame(older(each) if self.older else each).data)) for each in responses
        ]

    def responses(self, event: JsonObject) -> Iterator[JsonObject]:
        """Yield the stream responses of A2A 1.0."""
        if self._state in ENDED:
            return
        event_type = type_of(event)
        self._approvals.feed(event_type, event["data"])
        handle = _HANDLERS.get(event_type)
        begins = event_type == "lifecycle.resumed" or event["event"]["category"] in _WORK
        begins = begins and self._state != WORKING
        if begins:
            self._state, self._asked = WORKING, []
        if handle is not None:
            if begins:
                yield self._status(event)
            yield from handle(self, event)
        elif self.extended:
            yield self._status(event, *self._asked, _event_part(event_type, event))
        elif begins:
            yield self._status(event)

    def _status(
        self, event: JsonObject, *parts: JsonObject, metadata: JsonObject | None = None
    ) -> JsonObject:
        status: JsonObject = {"state": self._state, "timestamp": event["timestamp"]}
        run_id, context_id = event["run_id"], event.get("session_id") or ""
        if parts:
            message_id = f"{run_id}-{event['sequence']}"
            status["message"] = message(run_id, context_id, message_id, *parts)
        update: JsonObject = {"taskId": run_id, "contextId": context_id, "status": status}
        if metadata:
            update["metadata"] = {EXTENSION: metadata}
        return {"statusUpdate": update}

    def _artifact(
        self,
        event: JsonObject,
        artifact_id: str,
        part: JsonObject,
        *,
        append: bool = False,
        last: bool = False,
        **more: Any,
    ) -> JsonObject:
        self._has_artifact = True
        update: JsonObject = {
            "taskId": event["run_id"],
            "contextId": event.get("session_id") or "",
            "artifact": {"artifactId": artifact_id, "parts": [part], **more},
        }
        if append:
            update["append"] = True
        if last:
            update["lastChunk"] = True
        return {"artifactUpdate": update}

    def _started(self, event: JsonObject) -> Iterator[JsonObject]:
        data, run_id = event["data"], event["run_id"]
        context_id = event.get("session_id") or ""
        task: JsonObject = {
            "id": run_id,
            "contextId": context_id,
            "status": {"state": self._state, "timestamp": event["timestamp"]},
        }
        if data.get("message"):
            message_id = client_message_id(data.get("idempotency_key")) or f"{run_id}-message"
            asked = message(run_id, context_id, message_id, {"text": data["message"]})
            del asked["extensions"]
            task["history"] = [{**asked, "role": "ROLE_USER"}]
        yield {"task": task}

    def _streamed(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        message_id = data["message_id"]
        begun = self._open.get(message_id, False)
        self._open[message_id] = True
        about = {} if begun else _about(event)
        yield self._artifact(event, message_id, {"text": data["content"]}, append=begun, **about)

    def _message_completed(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        begun = self._open.pop(data["message_id"], False)
        if data.get("value") is not None:
            part: JsonObject = {"data": data["value"]}
        else:
            part = {"text": "" if begun else data.get("content") or ""}
            if not begun and not part["text"]:
                return
        about = {} if begun else _about(event)
        yield self._artifact(event, data["message_id"], part, append=begun, last=True, **about)

    def _file(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        uri = data.get("uri")
        part: JsonObject = {"url": uri} if uri else {"data": data}
        part["filename"] = data["name"]
        if data.get("media_type"):
            part["mediaType"] = data["media_type"]
        yield self._artifact(event, f"file/{data['name']}", part, last=True, name=data["name"])

    def _paused(self, event: JsonObject) -> Iterator[JsonObject]:
        kinds = {item.get("kind") for _, item in self._approvals.items()}
        self._state = AUTH_REQUIRED if "credential" in kinds else INPUT_REQUIRED
        asked = [item_text(item) for _, item in self._approvals.items()]
        text = "\n".join(asked) or "The task waits for a decision."
        requests = self._approvals.requests.values()
        parts = [
            {"data": {"type": "approval.requested", "data": request}, "mediaType": JSON}
            for request in requests
        ]
        self._asked = [{"text": text}, *parts]
        yield self._status(event, *self._asked, metadata=event["data"])

    def _completed(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield from self._close(event)
        value, summary = data.get("value"), data.get("summary")
        if not self._has_artifact and (summary or value is not None):
            part = {"text": summary} if value is None else {"data": value}
            yield self._artifact(event, f"{event['run_id']}-result", part, last=True)
        usage = data.get("usage")
        yield self._end(event, COMPLETED, None, {"usage": usage} if usage else None)

    def _failed(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield from self._close(event)
        yield self._end(event, FAILED, data["error"], {"code": data.get("code")})

    def _cancelled(self, event: JsonObject) -> Iterator[JsonObject]:
        data = event["data"]
        yield from self._close(event)
        reason = data.get("reason", "user_stop")
        text = f"The task was cancelled ({reason}){unconfirmed(data)}."
        yield self._end(event, CANCELED, text, {"reason": reason})

    def _end(
        self, event: JsonObject, state: str, text: str | None, metadata: JsonObject | None
    ) -> JsonObject:
        self._state = state
        parts = [{"text": text}] if text else []
        return self._status(event, *parts, metadata=metadata)

    def _close(self, event: JsonObject) -> Iterator[JsonObject]:
        for message_id in self._open:
            yield self._artifact(event, message_id, {"text": ""}, append=True, last=True)
        self._open.clear()


def last_response(events: Sequence[JsonObject], max_bytes: int) -> bytes:
    """Return the last stream response of one run's events, as a client without the extension gets
    it; of those with at most so many bytes, or else the bare status."""
    encoder = A2aEncoder(extended=False)
    found = [response for event in events for response in encoder.responses(event)]
    for response in reversed(found):
        if len(body := orjson.dumps(response)) <= max_bytes:
            return body
    return orjson.dumps(encoder._status(events[-1]))


JSON: Final = "application/json"
Handler = Callable[[A2aEncoder, JsonObject], Iterator[JsonObject]]
_HANDLERS: Final[Mapping[str, Handler]] = {
    "lifecycle.started": A2aEncoder._started,
    "lifecycle.paused": A2aEncoder._paused,
    "lifecycle.completed": A2aEncoder._completed,
    "lifecycle.failed": A2aEncoder._failed,
    "lifecycle.cancelled": A2aEncoder._cancelled,
    "llm.message_started": lambda encoder, event: iter(()),
    "llm.stream": A2aEncoder._streamed,
    "llm.message_completed": A2aEncoder._message_completed,
    "artifact.updated": A2aEncoder._file,
}


def client_message_id(key: Any) -> str | None:
    """Return the `messageId` in the idempotency key that the surface makes of a message."""
    if not isinstance(key, str) or not key.startswith(f'["{CHANNEL}"'):
        return None
    try:
        return str(orjson.loads(key)[1])
    except (orjson.JSONDecodeError, IndexError):
        return None


def _place(event: JsonObject) -> JsonObject:
    """Return where in the run the event comes from, as far as it does not come from its agent."""
    found = {key: event[key] for key in ("subrun", "step_id") if event.get(key)}
    source = event.get("source")
    return {**found, "source": source} if found and source else found


def _about(event: JsonObject) -> JsonObject:
    source = event.get("source")
    about: JsonObject = {"name": source["agent_name"]} if source else {}
    if place := _place(event):
        about["metadata"] = {EXTENSION: place}
    return about


def _event_part(event_type: str, event: JsonObject) -> JsonObject:
    shown = {"type": event_type, "sequence": event["sequence"], "data": event["data"]}
    return {"data": {**shown, **_place(event)}, "mediaType": JSON}


def item_text(item: JsonObject) -> str:
    """Say for people what an item of an approval asks for."""
    asked: str = item.get("description") or item.get("kind") or "decision"
    if not item.get("tool"):
        return f"The task waits for an answer: {asked}"
    args = ", ".join(f"{key}={dumped(value)}" for key, value in (item.get("args") or {}).items())
    text = f"The task waits for a decision on {item['tool']}({args})"
    return f"{text}: {item['description']}" if item.get("description") else text


@dataclass(slots=True)
class TaskFold:
    """Folds a run, or stream responses of A2A 1.0, into the task, as A2A's clients do: a message of
    an earlier status goes into the history, and pieces of an artifact are appended."""

    encoder: A2aEncoder = field(default_factory=A2aEncoder)
    leg: int = 1  # the leg of the newest event
    _task: JsonObject = field(default_factory=dict)
    # The artifacts by their ids. Among the parts of one, a list has the pieces of a text.
    _artifacts: dict[str, JsonObject] = field(default_factory=dict)

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        self.leg = event.get("leg") or 1
        for response in self.encoder.responses(event):
            self.add(response)
        return ()

    @property
    def state(self) -> str | None:
        return self._task["status"]["state"] if self._task else None

    def add(self, response: JsonObject) -> None:
        [(member, body)] = response.items()
        if member == "task":
            self._task = {"history": [], **body}
            for artifact in self._task.pop("artifacts", []):
                self._add_artifact({"artifact": artifact})
        elif member == "statusUpdate":
            self._add_status(body)
        else:
            self._add_artifact(body)

    def _add_status(self, update: JsonObject) -> None:
        task = self._task
        task.setdefault("id", update["taskId"])
        task.setdefault("contextId", update["contextId"])
        before = task.get("status", {}).get("message")
        if before is not None:
            task.setdefault("history", []).append(before)
        task["status"] = update["status"]
        if "metadata" in update:
            task["metadata"] = {**task.get("metadata", {}), **update["metadata"]}

    def _add_artifact(self, update: JsonObject) -> None:
        artifact = update["artifact"]
        artifact_id = artifact["artifactId"]
        if not update.get("append") or artifact_id not in self._artifacts:
            self._artifacts[artifact_id] = {**artifact, "parts": []}
        parts = self._artifacts[artifact_id]["parts"]
        for part in artifact["parts"]:
            if part.keys() != {"text"}:
                parts.append(part)
            elif parts and isinstance(parts[-1], list):
                append_text(parts[-1], part["text"])
            elif part["text"] or not parts:
                parts.append([part["text"]])

    def task(self, *, history: int | None = None) -> JsonObject:
        """Return the task, with so many messages of its history at most."""
        task = dict(self._task)
        messages = task.pop("history", [])
        if history is not None:
            messages = messages[-history:] if history else []
        if messages:
            task["history"] = messages
        task["artifacts"] = [
            {**each, "parts": [_part(part) for part in each["parts"]]}
            for each in self._artifacts.values()
        ]
        return task


def _part(part: JsonObject | list[str]) -> JsonObject:
    return {"text": "".join(part)} if isinstance(part, list) else part


# --- A2A 0.3


def older(response: JsonObject) -> JsonObject:
    """Return a stream response of A2A 1.0 as A2A 0.3 has it."""
    [(member, body)] = response.items()
    shown = {"kind": _OLDER_KINDS[member], **_older(body)}
    if member == "statusUpdate":
        shown["final"] = body["status"]["state"] in ENDED | INTERRUPTED
    return shown


def _older(body: JsonObject) -> JsonObject:
    return {key: _OLDER[key](each) if key in _OLDER else each for key, each in body.items()}


def _older_part(part: JsonObject) -> JsonObject:
    if "text" in part:
        return {"kind": "text", **part}
    if "data" in part:
        # In 0.3, the data is always an object.
        data = part["data"] if isinstance(part["data"], dict) else {"value": part["data"]}
        return {"kind": "data", "data": data}
    file = {"uri": part["url"], "name": part.get("filename"), "mimeType": part.get("mediaType")}
    return {"kind": "file", "file": {key: value for key, value in file.items() if value}}


_OLDER_KINDS: Final[Mapping[str, str]] = {
    "task": "task",
    "statusUpdate": "status-update",
    "artifactUpdate": "artifact-update",
}
# How 0.3 has the fields that differ. Fields with values of others, such as `metadata`, do not.
_OLDER: Final[Mapping[str, Callable[[Any], Any]]] = {
    "status": _older,
    "state": lambda state: state.removeprefix("TASK_STATE_").lower().replace("_", "-"),
    "message": lambda message: {"kind": "message", **_older(message)},
    "history": lambda messages: [{"kind": "message", **_older(each)} for each in messages],
    "role": lambda role: role.removeprefix("ROLE_").lower(),
    "artifact": _older,
    "artifacts": lambda artifacts: [_older(each) for each in artifacts],
    "parts": lambda parts: [_older_part(each) for each in parts],
}


DIALECT: Final = ClientDialect(A2aEncoder, stateful=True)
