"""Keeps the open calls of a run, and turns `adk_request_*` calls into the items of a pause.

`adk_request_*` calls have the form of tool calls, but no tool runs. The agent server waits for a
functionResponse with the same id and name as the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.dialects.adk.decode.frames import (
    AuthConfig,
    AuthCredential,
    ConfirmationRequest,
    CredentialRequest,
    FunctionCall,
    InputRequest,
    OAuth2,
    ToolConfirmation,
)
from penstock.dialects.adk.decode.redaction import redacted
from penstock.dialects.base import MAX_OPEN, Ids, Json, JsonObject, LimitReached, PauseItem
from penstock.dialects.json import obj, string, without_none
from penstock.dialects.snapshots import PART, Snapshots, Table, each, of


@dataclass(slots=True)
class Call:
    """A tool call that has no result yet."""

    id: str  # unique in the run; `upstream_id` may repeat
    upstream_id: str | None
    name: str
    args: Json
    long_running: bool = False
    refused: bool = False


class Calls(Snapshots):
    """Keeps all open calls of a run, in the order in which they were announced."""

    STORED: ClassVar[Table] = {"ids": ("_ids", PART), "open": ("_open", each(of(Call)))}

    def __init__(self) -> None:
        self._ids = Ids()
        self._open: list[Call] = []

    def reserve(self, upstream_id: str | None) -> str:
        """Return an id for a call whose arguments are streamed before its announcement."""
        return self._ids.unique(upstream_id) if upstream_id else self._ids.make("call")

    def announce(
        self, upstream_id: str | None, name: str, args: Json, reserved: str | None = None
    ) -> Call | None:
        """Return None if the call is already open. Some models number their calls from `call_0` in
        every answer, so an upstream id may repeat: it belongs to a new call if the name or the
        arguments differ, or if the earlier call already has its result."""
        if upstream_id and any(
            call.upstream_id == upstream_id and call.name == name and call.args == args
            for call in self._open
        ):
            return None
        call = Call(reserved or self.reserve(upstream_id), upstream_id, name, args)
        self._open.append(call)
        LimitReached.check(len(self._open), MAX_OPEN, "calls without a result")
        return call

    def find(self, upstream_id: str | None, name: str | None = None) -> Call | None:
        """Return the open call of a response: the one with the same id, or else the oldest with the
        same name, unless both have ids and these differ."""
        if upstream_id:
            for call in self._open:
                if call.upstream_id == upstream_id:
                    return call
        return next(
            (
                call
                for call in self._open
                if (name is None and not upstream_id)
                or (call.name == name and not (upstream_id and call.upstream_id))
            ),
            None,
        )

    def refuse(self, call_id: str) -> None:
        """Take `Call.id`, not the upstream's id."""
        for call in self._open:
            if call.id == call_id:
                call.refused = True

    def close(self, call: Call) -> None:
        self._open.remove(call)

    def refused(self) -> list[Call]:
        return [call for call in self._open if call.refused]


_TYPE_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "boolean"),  # before the numbers, because a bool is an int
    ((int, float), "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def _confirmation(item_id: str, args: ConfirmationRequest, calls: Calls) -> PauseItem:
    original: FunctionCall = obj(args.get("originalFunctionCall"))
    confirmation: ToolConfirmation = obj(args.get("toolConfirmation"))
    call = calls.find(string(original.get("id")), string(original.get("name")))
    payload = confirmation.get("payload")
    return PauseItem(
        item_id=item_id,
        kind="confirmation",
        tool_call_id=call.id if call else None,
        tool=string(original.get("name")),
        args=obj(original.get("args")),
        description=_hint(string(confirmation.get("hint"))),
        input_schema=None if payload is None else _schema_of(payload),
    )


# Two parts of ADK's default hint, by which `_hint` recognises this hint. ADK uses the default hint
# if the tool's author wrote none. The default hint instructs a program and does not help a person,
# so `_hint` leaves this hint out.
_BOILERPLATE = ("Please approve or reject the tool call ", "by responding with a FunctionResponse")


def _hint(hint: str | None) -> str | None:
    """Return None if the hint is ADK's default, not one of the tool's author."""
    begins, goes_on = _BOILERPLATE
    return None if hint and hint.startswith(begins) and goes_on in hint else hint


def _schema_of(payload: Json) -> JsonObject:
    """Return a JSON Schema whose default is the payload, ADK's sample of the answer."""
    schema = _sample(payload)
    if isinstance(payload, dict) and payload:
        schema["properties"] = {key: _sample(value) for key, value in payload.items()}
    return schema


def _sample(value: Json) -> JsonObject:
    for types, name in _TYPE_NAMES:
        if isinstance(value, types):
            return {"type": name, "default": value}
    return {"default": value}


def _input(item_id: str, args: InputRequest, calls: Calls) -> PauseItem:
    payload = args.get("payload")
    schema = args.get("response_schema", args.get("responseSchema"))
    return PauseItem(
        item_id=item_id,
        kind="input",
        args=payload if isinstance(payload, dict) or payload is None else {"payload": payload},
        description=string(args.get("message")),
        input_schema=schema if isinstance(schema, dict) else None,
    )


def _credential(item_id: str, args: CredentialRequest, calls: Calls) -> PauseItem:
    """Keep only what a person needs to sign in."""
    call_id = string(args.get("functionCallId"))
    call = calls.find(call_id) if call_id else None
    config: AuthConfig = obj(args.get("authConfig"))
    exchanged, raw = config.get("exchangedAuthCredential"), config.get("rawAuthCredential")
    credential: AuthCredential = obj(exchanged) or obj(raw)
    oauth2: OAuth2 = obj(credential.get("oauth2"))
    auth_uri = string(oauth2.get("authUri"))
    shown = {
        "auth_type": string(credential.get("authType")),
        "auth_uri": auth_uri,
        "auth_scheme": redacted(config.get("authScheme")),
    }
    return PauseItem(
        item_id=item_id,
        kind="credential",
        tool_call_id=call.id if call else None,
        tool=call.name if call else None,
        args=without_none(shown),
        description="Sign in at auth_uri." if auth_uri else "A credential is needed.",
    )


REQUESTS: dict[str, Callable[[str, Any, Calls], PauseItem]] = {
    "adk_request_confirmation": _confirmation,
    "adk_request_input": _input,
    "adk_request_credential": _credential,
}
