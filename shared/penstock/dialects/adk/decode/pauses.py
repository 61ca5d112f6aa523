"""Turns ADK's `adk_request_*` calls into the items of a pause.

These calls have the form of tool calls, but no tool runs. The agent server waits for a
functionResponse with the same id and name as the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dialects.adk.decode.calls import Calls
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
from penstock.dialects.base import Json, JsonObject, PauseItem
from penstock.dialects.json import obj, string

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
    """Return the hint that the tool's author wrote; None if the hint is ADK's default hint."""
    begins, goes_on = _BOILERPLATE
    return None if hint and hint.startswith(begins) and goes_on in hint else hint


def _schema_of(payload: Json) -> JsonObject:
    """Return a JSON Schema whose default value is the payload, ADK's sample of the answer."""
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
    """Return the pause item for a sign-in, with only what a person needs to sign in."""
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
        args={name: value for name, value in shown.items() if value is not None},
        description="Sign in at auth_uri." if auth_uri else "A credential is needed.",
    )


REQUESTS: dict[str, Callable[[str, Any, Calls], PauseItem]] = {
    "adk_request_confirmation": _confirmation,
    "adk_request_input": _input,
    "adk_request_credential": _credential,
}
