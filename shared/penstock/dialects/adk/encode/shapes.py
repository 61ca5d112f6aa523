"""Converts parts of the contract into the shapes of ADK's events (google-adk 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.dialects.adk.vocabulary import TOKENS
from penstock.dialects.base import Json, JsonObject, has_failed
from penstock.dialects.json import array, obj, objects, string, without_none

_TO_URLSAFE_BASE64: Final = str.maketrans("+/", "-_")

# The Python types of a partial argument's value, each with ADK's key for such a value. bool comes
# before int, because `isinstance` accepts a bool as an int.
_PARTIAL_VALUES: Final = ((bool, "boolValue"), ((int, float), "numberValue"), (str, "stringValue"))

HINT: Final = (
    "Please approve or reject the tool call {tool}() by responding with a FunctionResponse with "
    "an expected ToolConfirmation payload."
)


def usage_metadata(usage: Json) -> JsonObject:
    counts = obj(usage)
    return {theirs: counts[ours] for ours, theirs in TOKENS.items() if ours in counts}


def call_part(data: JsonObject) -> JsonObject:
    call = {"id": data["tool_call_id"], "args": obj(data.get("args")), "name": data["tool"]}
    return {"functionCall": call}


def partial_call_part(data: JsonObject) -> JsonObject | None:
    """Return None if ADK has no key for the value's type."""
    value = data.get("value")
    kind = next((name for types, name in _PARTIAL_VALUES if isinstance(value, types)), None)
    if kind is None or string(data.get("path")) is None:
        return None
    piece = {"jsonPath": data["path"], kind: value}
    call = {"id": data["tool_call_id"], "name": data["tool"], "partialArgs": [piece]}
    return {"functionCall": {**call, "willContinue": True}}


def response_part(data: JsonObject) -> JsonObject:
    # An object is the response; any other result becomes `{"result": …}`, and an unsuccessful call
    # gets `error`.
    result, error = data.get("result"), data.get("error")
    if isinstance(result, dict):
        response = dict(result)
    else:
        response = {} if result in (None, error) and error else {"result": result}
    if has_failed(data):
        response.setdefault(
            "error", error or f"The tool call was not successful: {data['outcome']}"
        )
    answer: JsonObject = {"id": data["tool_call_id"], "name": data["tool"], "response": response}
    if media := media_parts(data.get("content")):
        answer["parts"] = media
    return {"functionResponse": answer}


def media_parts(parts: Json) -> list[JsonObject]:
    """Types that ADK lacks are left out."""
    converted = (
        _MEDIA[part["type"]](part) for part in objects(parts) if part.get("type") in _MEDIA
    )
    return [part for part in converted if part]


def citation_metadata(citations: Json) -> JsonObject:
    """Return ADK's citations unchanged, of another framework's only URLs and titles."""
    cited: JsonObject = obj(citations)
    if "citations" in cited:
        return cited
    urls = [
        {"uri": each["url"], **({"title": each["title"]} if string(each.get("title")) else {})}
        for each in objects(cited.get("urls"))
        if string(each.get("url"))
    ]
    return {"citations": urls} if urls else {}


def grounding_metadata(documents: Iterable[Json]) -> JsonObject:
    """Each document becomes a chunk, and its score the confidence of a support of it."""
    found = objects(list(documents))
    supports = [
        {"groundingChunkIndices": [index], "confidenceScores": [each["score"]]}
        for index, each in enumerate(found)
        if each.get("score") is not None
    ]
    chunks = [{"retrievedContext": _retrieved(each)} for each in found]
    return {"groundingChunks": chunks, **({"groundingSupports": supports} if supports else {})}


def request_part(id: str, item: JsonObject) -> JsonObject:
    name, make_args = _REQUESTS.get(item["kind"], _INPUT)
    return {"functionCall": {"id": id, "args": make_args(id, item), "name": name}}


def is_long_running(item: JsonObject) -> bool:
    # The client runs the call itself, and ADK sends no `adk_request_*` call for it.
    return item["kind"] in ("external", "long_running") and bool(item.get("tool_call_id"))


def failure_frame(data: JsonObject, timeout_s: float, at_s: float) -> JsonObject:
    """Return ADK 2.13's form if the upstream reported the error, else one of adk-streaming.md."""
    make = _FAILURES.get(data.get("code", ""), _stream_error)
    return make(data, timeout_s, at_s)


def _confirmation_args(id: str, item: JsonObject) -> JsonObject:
    tool = item.get("tool") or item["kind"]
    original_id = item.get("tool_call_id") or item["item_id"]
    original = {"id": original_id, "args": obj(item.get("args")), "name": tool}
    hint = item.get("description") or HINT.format(tool=tool)
    return {
        "originalFunctionCall": original,
        "toolConfirmation": {"hint": hint, "confirmed": False},
    }


def _input_args(id: str, item: JsonObject) -> JsonObject:
    options = array(item.get("options"))
    schema = item.get("input_schema") or ({"enum": options} if options else {})
    asked: JsonObject = {
        "interruptId": id,
        "message": item.get("description")
        or f"Input is needed: {item.get('tool') or item['kind']}",
        "response_schema": schema,
    }
    return {**asked, "payload": item["args"]} if item.get("args") else asked


def _credential_args(id: str, item: JsonObject) -> JsonObject:
    """Secrets never reach the bus."""
    asked = obj(item.get("args"))
    credential: JsonObject = {}
    if asked.get("auth_type"):
        credential["authType"] = asked["auth_type"]
    if asked.get("auth_uri"):
        credential["oauth2"] = {"authUri": asked["auth_uri"]}
    config = {"authScheme": asked.get("auth_scheme"), "exchangedAuthCredential": credential}
    return {"functionCallId": item.get("tool_call_id") or item["item_id"], "authConfig": config}


_Request = tuple[str, Callable[[str, JsonObject], JsonObject]]
_CONFIRMATION: Final[_Request] = ("adk_request_confirmation", _confirmation_args)
_INPUT: Final[_Request] = ("adk_request_input", _input_args)

# Maps the kind of an item to the name of the `adk_request_*` call and to the function that makes
# the call's arguments. An item of any other kind becomes an input request.
_REQUESTS: Final[Mapping[str, _Request]] = {
    "confirmation": _CONFIRMATION,
    "review": _CONFIRMATION,
    "budget": _CONFIRMATION,
    "credential": ("adk_request_credential", _credential_args),
}


def _retrieved(document: JsonObject) -> JsonObject:
    return without_none(
        {
            "documentName": document.get("id"),
            "text": document.get("content"),
            "title": document.get("title"),
            "uri": document.get("url"),
        }
    )


def _data(part: JsonObject) -> JsonObject:
    data = str(part.get("data") or "").translate(_TO_URLSAFE_BASE64)
    return {"inlineData": {"data": data, "mimeType": part.get("media_type"), **_name(part)}}


def _file(part: JsonObject) -> JsonObject:
    file = {"fileUri": part.get("uri"), "mimeType": part.get("media_type"), **_name(part)}
    return {"fileData": file}


def _name(part: JsonObject) -> JsonObject:
    return {"displayName": part["name"]} if part.get("name") else {}


def _code(part: JsonObject) -> JsonObject:
    return {"executableCode": {"code": part.get("code"), "language": part.get("language")}}


def _code_result(part: JsonObject) -> JsonObject:
    result = {"outcome": part.get("outcome"), "output": part.get("output")}
    return {"codeExecutionResult": result}


_MEDIA: Final[Mapping[str, Callable[[JsonObject], JsonObject]]] = {
    "data": _data,
    "file": _file,
    "code": _code,
    "code_result": _code_result,
}


def _adk_error(data: JsonObject, _timeout_s: float, at_s: float) -> JsonObject:
    error, kind = str(data.get("error", "")), data.get("error_type") or "Error"
    message = error.removeprefix(f"{kind}: ")
    details = {"error_type": kind, "error_message": message, "timestamp": at_s}
    return {"error": f"{kind}: {message}", "error_details": details}


def _timed_out(_data: JsonObject, timeout_s: float, at_s: float) -> JsonObject:
    error = f"Request timeout after {timeout_s:g} seconds"
    return {"error": error, "error_code": "TIMEOUT", "timestamp": at_s}


def _bad_status(data: JsonObject, _timeout_s: float, at_s: float) -> JsonObject:
    status = data.get("status_code")
    return {
        "error": f"ADK upstream error: {status}",
        "status_code": status,
        "detail": data.get("detail", ""),
        "timestamp": at_s,
    }


def _stream_error(data: JsonObject, _timeout_s: float, at_s: float) -> JsonObject:
    error = data.get("error") or "The upstream was lost"
    return {"error": error, "error_code": "STREAM_ERROR", "timestamp": at_s}


_FAILURES: Final[Mapping[str, Callable[[JsonObject, float, float], JsonObject]]] = {
    "upstream_error": _adk_error,
    "timeout": _timed_out,
    "upstream_http": _bad_status,
}
