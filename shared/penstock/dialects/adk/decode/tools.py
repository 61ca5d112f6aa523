"""Decodes ADK's function calls and responses into tool events and into requests that pause a
run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from penstock.dialects.adk.decode import parts
from penstock.dialects.adk.decode.event import Event
from penstock.dialects.adk.decode.frames import (
    Actions,
    FunctionCall,
    FunctionResponse,
    PartialArg,
)
from penstock.dialects.adk.decode.pauses import REQUESTS, Call, Calls
from penstock.dialects.approvals import difference
from penstock.dialects.base import (
    MAX_OPEN,
    Draft,
    Ids,
    Json,
    JsonObject,
    LimitReached,
    Pause,
    PauseItem,
    Source,
    short,
    tool_result,
)
from penstock.dialects.json import array, has_content, obj, objects, string, verbatim
from penstock.dialects.snapshots import DICT, PART, SET, Snapshots, Table, by, of

# The name of the tool that transfers control. A call of this tool makes no tool event, because
# `transferToAgent` reports the transfer.
TRANSFER: Final = "transfer_to_agent"

_PartialValue = Literal["stringValue", "numberValue", "boolValue"]
_PARTIAL_VALUES: Final[tuple[_PartialValue, ...]] = ("stringValue", "numberValue", "boolValue")


@dataclass(slots=True)
class _Request:
    """A request that has no answer yet. `name` is the name of the `adk_request_*` call."""

    name: str
    item: PauseItem
    source: Source


class Tools(Snapshots):
    """Decodes the calls of a run, and keeps the requests that have no answer yet."""

    STORED: ClassVar[Table] = {
        "calls": ("_calls", PART),
        "ids": ("_ids", PART),
        "asks": (
            "_requests",
            by(lambda ask: ask["item"]["item_id"], of(_Request, item=of(PauseItem))),
        ),
        "approved": ("_approved", DICT),
        "expired": ("_expired", SET),
    }

    def __init__(self) -> None:
        self._calls = Calls()
        self._ids = Ids()
        self._requests: dict[str, _Request] = {}
        # maps a `Call.id` to the approved tool and arguments
        self._approved: dict[str, JsonObject] = {}
        # the `Call.id`s of calls that were refused because their approval has expired
        self._expired: set[str] = set()

    def arguments(self, call: FunctionCall, event: Event) -> None:
        """Use the id of their first piece; ADK 1.39 changes it with each."""
        if "partialArgs" not in call and "willContinue" not in call:
            return  # the call is complete, and the final event contains it again
        name = string(call.get("name"))
        streamed = event.speaker.streamed_calls
        if name or not streamed:
            upstream_id = string(call.get("id"))
            reserved = self._calls.reserve(upstream_id)
            named = short(name or "")
            streamed.append({"id": reserved, "upstream_id": upstream_id, "name": named})
            LimitReached.check(len(streamed), MAX_OPEN, "calls with incomplete arguments")
        current = streamed[-1]
        piece: PartialArg
        for piece in objects(call.get("partialArgs")):
            data = {
                "tool_call_id": current["id"],
                "tool": current["name"],
                "path": string(piece.get("jsonPath")) or "$",
                "value": next((piece[key] for key in _PARTIAL_VALUES if key in piece), None),
            }
            event.emit("llm.tool_args", data)

    def call(
        self, call: FunctionCall, streamed: list[JsonObject], message_id: str | None, event: Event
    ) -> None:
        """`streamed` has the calls of this answer with streamed arguments."""
        upstream_id = string(call.get("id"))
        name = string(call.get("name")) or ""
        if name in REQUESTS:
            self._request(name, upstream_id, obj(call.get("args")), event)
        elif name != TRANSFER and not self._is_approved_one(upstream_id, name, call, event):
            reserved = _take_streamed(streamed, upstream_id, name)
            announced = self._calls.announce(upstream_id, name, call.get("args"), reserved)
            if announced:
                long_running = array(event.raw.get("longRunningToolIds"))
                announced.long_running = upstream_id is not None and upstream_id in long_running
                event.emit("llm.tool_call", _call_data(announced, message_id))

    def _is_approved_one(
        self, upstream_id: str | None, name: str, call: FunctionCall, event: Event
    ) -> bool:
        # The server sends an approved call again before its result. If it differs from the approved
        # one, emit a warning and the new arguments.
        known = self._calls.find(upstream_id) if upstream_id else None
        if known is None or known.upstream_id != upstream_id or known.id not in self._approved:
            return False
        if self._differs(known, (name or known.name, obj(call.get("args"))), event):
            args = obj(known.args)
            data = {"tool_call_id": known.id, "status": "running", "tool": known.name, "args": args}
            event.emit("llm.tool_progress", data)
        return True

    def _differs(self, call: Call, ran: tuple[str, JsonObject], event: Event) -> bool:
        """Warn of another tool or other arguments than the approved ones. The call keeps those with
        which it runs, so that the same difference causes no second warning."""
        approved = self._approved.get(call.id)
        if approved is None:
            return False
        warning = difference(call.id, (approved["tool"], approved["args"]), ran)
        if warning is None:
            return False
        event.emit("system.warning", warning)
        call.name, call.args = ran
        self._approved[call.id] = {"tool": call.name, "args": call.args}
        return True

    def _request(self, name: str, upstream_id: str | None, args: JsonObject, event: Event) -> None:
        item_id = upstream_id or string(args.get("interruptId")) or self._ids.make("request")
        if item_id in self._requests:
            return
        item = REQUESTS[name](item_id, args, self._calls)
        if item.kind == "confirmation" and item.tool and item.tool_call_id is None:
            original_id = string(obj(args.get("originalFunctionCall")).get("id"))
            call = self._calls.announce(original_id, item.tool, item.args)
            if call:  # the server has sent no event for the call itself
                item.tool_call_id = call.id
                event.emit("llm.tool_call", _call_data(call, None) | {"pending": True})
        self._requests[item_id] = _Request(name, item, event.speaker.source)
        LimitReached.check(len(self._requests), MAX_OPEN, "open questions")

    def response(self, response: FunctionResponse, event: Event) -> None:
        """Decode a result, or the progress of a long-running call. An interim response of a call
        that waits makes no tool event (see `_is_interim`)."""
        upstream_id, name = string(response.get("id")), string(response.get("name"))
        value = response.get("response")
        if name in REQUESTS or upstream_id in self._requests:
            self._requests.pop(upstream_id or "", None)  # the server withdrew the request
        elif name == TRANSFER:
            if not event.actions.keys() & {"transferToAgent", TRANSFER}:
                event.custom(TRANSFER, value)
        elif not _is_interim(upstream_id, event.actions):
            call = self._calls.find(upstream_id, name)
            if call and call.long_running and _error_of(value) is None:
                call.long_running = False  # so that the next response counts as the result
                status = string(obj(value).get("status")) or "pending"
                data = {"tool_call_id": call.id, "status": status, "delta": verbatim(value)}
                event.emit("llm.tool_progress", data)
                return
            if call is None:
                call = Call(self._calls.reserve(upstream_id), upstream_id, name or "", None)
            else:
                # A response contains no arguments, so only the tool's name is compared.
                if call.id in self._approved and name:
                    self._differs(call, (name, self._approved[call.id]["args"]), event)
                self._approved.pop(call.id, None)
                self._calls.close(call)
            media = [
                found for part in objects(response.get("parts")) if (found := parts.media(part))
            ]
            event.emit("llm.tool_result", self._result(call, name, value, media))

    def decided(self, items: Mapping[str, JsonObject]) -> None:
        for item_id, decision in items.items():
            request = self._requests.pop(item_id, None)
            if request is None or request.item.tool_call_id is None:
                continue
            if decision.get("decision") == "reject":
                self._calls.refuse(request.item.tool_call_id)
                if decision.get("expired"):
                    self._expired.add(request.item.tool_call_id)
            elif request.item.kind == "confirmation" and request.item.tool:
                approved = {"tool": request.item.tool, "args": request.item.args or {}}
                self._approved[request.item.tool_call_id] = approved

    def refused(self, source: Source) -> list[Draft]:
        """Return results for which the upstream sent none."""
        drafts = []
        for call in self._calls.refused():
            self._calls.close(call)
            data = self._result(call, None, None, [])
            drafts.append(Draft("llm.tool_result", data, source))
        return drafts

    def _result(
        self, call: Call, name: str | None, value: Json, media: Sequence[JsonObject]
    ) -> JsonObject:
        data = _result_data(call, name, value, media)
        if call.id in self._expired:
            self._expired.discard(call.id)
            data["outcome"] = "expired"
        return data

    def pause(self, invocation_id: str) -> Pause | None:
        """Return the pause with all open requests, if any is open. Its `resume` is `{invocation_id,
        requests: [{id, name}]}`, because the answer to a request must have both."""
        open_requests = list(self._requests.values())
        if not open_requests:
            return None
        requests = [{"id": request.item.item_id, "name": request.name} for request in open_requests]
        resume = {"invocation_id": invocation_id, "requests": requests}
        return Pause([request.item for request in open_requests], resume, open_requests[0].source)

    def without_request(self, requests: JsonObject) -> JsonObject:
        """Return the entries, by call id, for which no `adk_request_*` call came."""
        requested_calls = {request.item.tool_call_id for request in self._requests.values()}
        calls = {call_id: self._calls.find(string(call_id)) for call_id in requests}
        return {
            call_id: requests[call_id]
            for call_id, call in calls.items()
            if call is None or call.id not in requested_calls
        }


def _call_data(call: Call, message_id: str | None) -> JsonObject:
    args = call.args
    data: JsonObject = {"tool": call.name, "args": obj(args), "tool_call_id": call.id}
    if message_id:
        data["message_id"] = message_id
    if args is not None and not isinstance(args, dict):
        data["args_text"] = verbatim(args)
    return data


def _result_data(
    call: Call, name: str | None, value: Json, media: Sequence[JsonObject]
) -> JsonObject:
    error = _error_of(value)
    outcome = "rejected" if call.refused else "ok" if error is None else "error"
    data = tool_result(name or call.name, call.id, value, outcome, error)
    if media:
        data["content"] = list(media)
    return data


def _take_streamed(streamed: list[JsonObject], upstream_id: str | None, name: str) -> str | None:
    for key, value in (("upstream_id", upstream_id), ("name", name)):
        for call in streamed:
            if value and call[key] == value:
                streamed.remove(call)
                return str(call["id"])
    return None


def _is_interim(call_id: str | None, actions: Actions) -> bool:
    """Return whether a response only reports that the call waits for a person."""
    confirmations = obj(actions.get("requestedToolConfirmations"))
    return call_id in confirmations or call_id in obj(actions.get("requestedAuthConfigs"))


def _error_of(value: Json) -> str | None:
    error = obj(value).get("error")
    return verbatim(error) if has_content(error) else None
