"""Reads the decisions from the function responses that an ADK client sends (decision 0105).
Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool, ValidationError

from penstock.bus.records.approvals import Decided
from penstock.dialects.approvals import CONFIRMATIONS
from penstock.web.bodies import has_many_values, is_deep
from penstock_edge.surfaces.adk.request import FUNCTION_RESPONSE, RunAgentRequest, path_of_part
from penstock_edge.surfaces.errors import invalid

_RESPONSE: Final = ("newMessage", "parts", "functionResponse", "response")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


Text = Annotated[str, BeforeValidator(_text)]


class FunctionResponse(BaseModel):
    """A part of a message that may answer a pause. `id` is the id of the function call."""

    model_config = ConfigDict(frozen=True)

    id: Text = ""
    response: Any = None


class Confirmation(BaseModel):
    """ADK's ToolConfirmation, which forbids every other key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    confirmed: StrictBool
    payload: Any = None
    hint: Any = None


def responses_of(request: RunAgentRequest) -> list[FunctionResponse]:
    """Return every functionResponse in the message, in both spellings. An overlooked one would be
    relayed to the ADK server, which could then run a tool call that nobody has approved."""
    responses = []
    for index, part in enumerate(request.new_message.parts):
        for key in FUNCTION_RESPONSE:
            given = part.get(key)
            if given is None:
                continue
            if not isinstance(given, dict):
                raise invalid("dict_type", path_of_part(index, key), "must be an object")
            responses.append(FunctionResponse.model_validate(given))
    return responses


def decided(response: Any, item_id: str, asked: dict[str, Any], *, for_adk_server: bool) -> Decided:
    """Return the decision on an item. ADK requires an object as the response, so ADK's clients send
    any other value as `{"result": …}`, and an ADK server takes the value out itself. For an ADK
    server, this function therefore takes the value out only if the item's schema excludes objects,
    because the object would not fit it; for any other agent server, always."""
    response = _unwrapped(response)
    if asked.get("kind", "confirmation") in CONFIRMATIONS:
        return _confirmed(response, item_id)
    schema = asked.get("input_schema")
    if not for_adk_server or _excludes_objects(schema):
        response = _result(response, schema)
    return Decided(item_id=item_id, decision="approve", note=None, value=response)


def _confirmed(response: Any, item_id: str) -> Decided:
    try:
        confirmation = Confirmation.model_validate(response)
    except ValidationError as error:
        unknown = sorted(
            str(each["loc"][-1]) for each in error.errors() if each["type"] == "extra_forbidden"
        )
        if len(unknown) == error.error_count():
            text = f"unknown keys: {', '.join(unknown)}"
            raise invalid("extra_forbidden", _RESPONSE, text) from error
        raise invalid("confirmed", _RESPONSE, "confirmed must be true or false") from error
    decision: Literal["approve", "reject"] = "approve" if confirmation.confirmed else "reject"
    return Decided(item_id=item_id, decision=decision, note=None, value=confirmation.payload)


def _excludes_objects(schema: Any) -> bool:
    types = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(types, str):
        return types != "object"
    return isinstance(types, list) and bool(types) and "object" not in types


def _result(response: Any, schema: Any) -> Any:
    """If the schema has a field `result`, the response itself is the value."""
    if not isinstance(response, dict) or set(response) != {"result"}:
        return response
    fields = schema.get("properties", {}) if isinstance(schema, dict) else {}
    return response if "result" in fields else response["result"]


def _unwrapped(response: Any) -> Any:
    """Return the value in `{"response": "<JSON text>"}`, which ADK accepts, too."""
    if isinstance(response, dict) and set(response) == {"response"}:
        inner = response["response"]
        if isinstance(inner, str) and not has_many_values(inner.encode()):
            try:
                value = orjson.loads(inner)
            except orjson.JSONDecodeError:
                return response
            return response if is_deep(value) else value
    return response
