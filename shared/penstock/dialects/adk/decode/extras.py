"""Emits drafts for state, artifacts, transfers, documents, and fields outside the contract."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.dialects.adk.decode import parts
from penstock.dialects.adk.decode.event import Event
from penstock.dialects.adk.decode.frames import (
    AdkEvent,
    Content,
    GroundingMetadata,
    RequestKey,
    TransferRequest,
)
from penstock.dialects.adk.decode.redaction import redacted
from penstock.dialects.adk.decode.steps import Steps
from penstock.dialects.adk.decode.tools import TRANSFER, Tools
from penstock.dialects.adk.vocabulary import IDEMPOTENCY_KEY
from penstock.dialects.base import Json, JsonObject
from penstock.dialects.json import array, has_content, obj, string
from penstock.dialects.snapshots import AS_IS, Snapshots, Table

# The keys of an event that the decoder reads, and the keys that only identify the event. For every
# other key, the decoder emits a `custom.event`.
_EVENT_KEYS = frozenset(
    {
        "actions",
        "author",
        "branch",
        "citationMetadata",
        "content",
        "customMetadata",
        "errorCode",
        "errorMessage",
        "finishReason",
        "groundingMetadata",
        "id",
        "invocationId",
        "longRunningToolIds",
        "modelVersion",
        "nodeInfo",
        "output",
        "partial",
        "timestamp",
        "usageMetadata",
    }
)
_ACTION_KEYS = frozenset(
    {
        "artifactDelta",
        "requestedAuthConfigs",
        "requestedToolConfirmations",
        "route",
        "stateDelta",
        "transferReason",
        "transferToAgent",
        TRANSFER,
    }
)
_PART_KEYS = frozenset({"text", "thought", "functionCall", "functionResponse"}) | parts.MEDIA_KEYS
_GROUNDING_KEYS = frozenset({"groundingChunks", "groundingSupports"})
_REQUESTS: Final[tuple[RequestKey, ...]] = ("requestedToolConfirmations", "requestedAuthConfigs")


class Constants(Snapshots):
    """Reports only changes of the invocation, model and metadata, which every event repeats."""

    STORED: ClassVar[Table] = {
        "invocation_id": ("invocation_id", AS_IS),
        "model": ("_model", AS_IS),
        "metadata": ("_metadata", AS_IS),
    }

    def __init__(self) -> None:
        self.invocation_id = ""
        self._model: Json = None
        self._metadata: Json = None

    def invocation(self, raw: AdkEvent) -> JsonObject | None:
        invocation_id = string(raw.get("invocationId"))
        if invocation_id is None or invocation_id == self.invocation_id:
            return None
        self.invocation_id = invocation_id
        value: JsonObject = {"invocation_id": invocation_id}
        if has_content(raw.get("modelVersion")):
            self._model = value["model"] = raw["modelVersion"]
        return value

    def changed(self, raw: AdkEvent) -> JsonObject:
        rest: JsonObject = {}
        if raw.get("modelVersion") not in (None, self._model):
            self._model = rest["modelVersion"] = raw["modelVersion"]
        metadata = raw.get("customMetadata")
        if isinstance(metadata, dict):
            # ADK copies the request's metadata, so also the leg's key, to every event.
            metadata = {
                name: metadata[name] for name in metadata if name != IDEMPOTENCY_KEY
            } or None
        if metadata not in (None, self._metadata):
            self._metadata = rest["customMetadata"] = metadata
        return rest


def emit_state(event: Event) -> None:
    delta = [
        {"op": "add", "path": "/" + key.replace("~", "~0").replace("/", "~1"), "value": value}
        for key, value in obj(event.actions.get("stateDelta")).items()
    ]
    if delta:
        event.emit("state.delta", {"delta": delta})
    for name, version in obj(event.actions.get("artifactDelta")).items():
        data: JsonObject = {"name": name}
        if type(version) is int:
            data["version"] = version
        event.emit("artifact.updated", data)


def emit_transfer(event: Event, steps: Steps) -> None:
    """Read `transferToAgent` in ADK's events, `transfer_to_agent` in adk-streaming.md."""
    actions = event.actions
    transfer = actions.get("transferToAgent") or actions.get(TRANSFER)
    request: TransferRequest = obj(transfer)
    target = string(transfer) or string(request.get("target"))
    if target is None:
        if has_content(transfer):
            event.custom(TRANSFER, transfer)
        return
    data: JsonObject = {"to": target, "from": event.place.author}
    reason = string(actions.get("transferReason")) or string(request.get("reason"))
    if reason:
        data["reason"] = reason
    steps.transferred(target)
    event.emit("dispatch.transfer", data)


def emit_grounding(event: Event) -> None:
    grounding: GroundingMetadata = obj(event.raw.get("groundingMetadata"))
    documents = parts.documents(grounding)
    if documents:
        event.emit("retrieval.result", {"documents": documents})
    rest = {key: value for key, value in grounding.items() if key not in _GROUNDING_KEYS}
    if rest:
        event.custom("groundingMetadata", rest)


def emit_extras(event: Event, constants: Constants, tools: Tools) -> None:
    raw, actions = event.raw, event.actions
    rest: dict[str, Json] = {key: value for key, value in raw.items() if key not in _EVENT_KEYS}
    rest |= {key: value for key, value in actions.items() if key not in _ACTION_KEYS}
    rest |= {
        str(kind): redacted(tools.without_request(obj(actions.get(kind)))) for kind in _REQUESTS
    }
    rest |= constants.changed(raw)
    content = raw.get("content")
    if not isinstance(content, dict):
        rest["content"] = content
    for key, value in rest.items():
        if has_content(value):
            event.custom(key, value)
    whole: Content = obj(content)
    for part in array(whole.get("parts")):
        _emit_extras_of_part(part, event)


def _emit_extras_of_part(part: Json, event: Event) -> None:
    if not isinstance(part, dict):
        event.custom("part", part)
        return
    for key, value in part.items():
        if key not in _PART_KEYS and has_content(value):
            event.custom(key, value)
