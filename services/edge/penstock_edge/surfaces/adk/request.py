"""The body of /run_sse and /run: what adk-streaming.md asks of it, and the answers in it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.bus.records import Decided
from penstock.web.bodies import has_many_values, is_deep

REQUEST_PREFIX: Final = "adk_request_"
# The kinds that ADK's clients are asked by `adk_request_confirmation`.
CONFIRMED: Final = frozenset({"confirmation", "review"})
# ADK's ToolConfirmation forbids every other key
CONFIRMATION_KEYS: Final = frozenset({"confirmed", "payload", "hint"})
# The parts of a message that any agent can be given.
PORTABLE: Final = frozenset({"text", "functionResponse", "function_response"})


class InvalidRequest(ValueError):
    """The body cannot be served. `errors` are as FastAPI writes them: type, loc, msg."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(str(error["msg"]) for error in errors))
        self.errors = errors


class Content(BaseModel):
    """An ADK Content object; parts are kept as they are."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["user"]
    parts: list[dict[str, Any]] = Field(min_length=1)


class RunAgentRequest(BaseModel):
    """What is checked of the body, camelCase or snake_case; unknown keys go on with it."""

    model_config = ConfigDict(extra="allow", strict=True, populate_by_name=True)

    app_name: str = Field(alias="appName", min_length=1)
    user_id: str = Field(alias="userId", min_length=1)
    session_id: str = Field(alias="sessionId", min_length=1)
    new_message: Content = Field(alias="newMessage")
    streaming: bool = False
    state_delta: dict[str, Any] | None = Field(None, alias="stateDelta")
    invocation_id: str | None = Field(None, alias="invocationId")


@dataclass(frozen=True, slots=True)
class Answer:
    """A functionResponse: perhaps what a pause waits for."""

    id: str
    name: str
    response: Any

    @property
    def to_request(self) -> bool:
        """True when by its name it answers one of ADK's own requests."""
        return self.name.startswith(REQUEST_PREFIX)


def parse(body: bytes) -> RunAgentRequest:
    """Raises InvalidRequest that names the field."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _invalid("json_invalid", (), f"the body is not JSON: {error}") from error
    if is_deep(document):
        raise _invalid("too_deep", (), "the body is nested too deeply")
    try:
        request = RunAgentRequest.model_validate(document)
    except ValidationError as error:
        raise InvalidRequest(
            [
                {"type": e["type"], "loc": ["body", *e["loc"]], "msg": e["msg"]}
                for e in error.errors()
            ]
        ) from error
    for name, field in RunAgentRequest.model_fields.items():
        # we and the upstream must not read different ones
        alias = field.alias or name
        if alias != name and alias in document and name in document:
            raise _invalid("both_names", (alias,), f"{alias} and {name} are both given")
    texts = [part.get("text") for part in request.new_message.parts]
    if all(isinstance(text, str) and not text.strip() for text in texts):
        text = "must not be empty or only white space"
        raise _invalid("blank", ("newMessage", "parts"), text)
    return request


def text_of(request: RunAgentRequest) -> str:
    """The message's text, for lists of runs."""
    texts = (part.get("text") for part in request.new_message.parts)
    return "".join(text for text in texts if isinstance(text, str))


def answers_of(request: RunAgentRequest) -> list[Answer]:
    """Every functionResponse in the message. Raises InvalidRequest for one that is no object."""
    answers = []
    for index, part in enumerate(request.new_message.parts):
        for key in ("functionResponse", "function_response"):
            given = part.get(key)
            if given is None:
                continue
            if not isinstance(given, dict):
                raise _invalid("dict_type", _part(index, key), "must be an object")
            id, name = given.get("id"), given.get("name")
            answers.append(
                Answer(
                    id if isinstance(id, str) else "",
                    name if isinstance(name, str) else "",
                    given.get("response"),
                )
            )
    return answers


def require_portable(request: RunAgentRequest) -> None:
    """Raises InvalidRequest for what only an ADK agent can be given: it would be lost."""
    errors = [
        _error("not_portable", _part(index, key), f"an agent that is no ADK agent takes no {key}")
        for index, part in enumerate(request.new_message.parts)
        for key, value in part.items()
        if value is not None and key not in PORTABLE
    ]
    if request.state_delta:
        text = "an agent that is no ADK agent takes no state"
        errors.append(_error("not_portable", ("stateDelta",), text))
    if errors:
        raise InvalidRequest(errors)


def decided(answer: Answer, asked: dict[str, Any], *, as_sent: bool) -> Decided:
    """The decision that an answer is; `asked`: the item of approval.requested.

    A response must be an object in ADK, so its clients wrap any other value as `{"result": …}`.
    `as_sent`: the value goes back to an ADK server, which unwraps it by itself; it is unwrapped
    here only where the item's schema asks for something that is no object, since it could not be
    validated else. Any other upstream is given what is inside.

    Raises InvalidRequest where a confirmation does not say `confirmed`: nothing else is a yes.
    """
    response = _unwrapped(answer.response)
    if asked.get("kind", "confirmation") not in CONFIRMED:
        schema = asked.get("input_schema")
        keeps = as_sent and not _asks_for_no_object(schema)
        value = response if keeps else _bare(response, schema)
        return Decided(item_id=answer.id, decision="approve", note=None, value=value)
    where = ("newMessage", "parts", "functionResponse", "response")
    if not isinstance(response, dict) or not isinstance(response.get("confirmed"), bool):
        raise _invalid("confirmed", where, "confirmed must be true or false")
    if unknown := sorted(set(response) - CONFIRMATION_KEYS):
        raise _invalid("extra_forbidden", where, f"unknown keys: {', '.join(unknown)}")
    decision: Literal["approve", "reject"] = "approve" if response["confirmed"] else "reject"
    return Decided(item_id=answer.id, decision=decision, note=None, value=response.get("payload"))


def _asks_for_no_object(schema: Any) -> bool:
    """Whether a JSON Schema names types, and `object` is none of them."""
    types = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(types, str):
        return types != "object"
    return isinstance(types, list) and bool(types) and "object" not in types


def _bare(response: Any, schema: Any) -> Any:
    """What stands in `{"result": …}`, unless the answer has a field of that name."""
    if not isinstance(response, dict) or set(response) != {"result"}:
        return response
    fields = schema.get("properties", {}) if isinstance(schema, dict) else {}
    return response if "result" in fields else response["result"]


def _unwrapped(response: Any) -> Any:
    """ADK also takes the answer as JSON text under the one key `response`."""
    if isinstance(response, dict) and set(response) == {"response"}:
        inner = response["response"]
        if isinstance(inner, str) and not has_many_values(inner.encode()):
            try:
                value = orjson.loads(inner)
            except orjson.JSONDecodeError:
                return response
            return response if is_deep(value) else value
    return response


def _part(index: int, key: str) -> tuple[str | int, ...]:
    return ("newMessage", "parts", index, key)


def _invalid(type: str, loc: tuple[str | int, ...], text: str) -> InvalidRequest:
    return InvalidRequest([_error(type, loc, text)])


def _error(type: str, loc: tuple[str | int, ...], text: str) -> dict[str, Any]:
    return {"type": type, "loc": ["body", *loc], "msg": text}
