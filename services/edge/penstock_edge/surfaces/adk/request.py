"""Models of ADK clients' request bodies: a run (adk-streaming.md), a session, a query. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock_edge.surfaces.bodies import Message, document_of, validated
from penstock_edge.surfaces.errors import InvalidBody, body_error, invalid

MAX_ID_CHARACTERS: Final = 512
# The two spellings of one key; ADK reads both. A part with this key answers a request.
FUNCTION_RESPONSE: Final = ("functionResponse", "function_response")
# The keys of message parts that agents of every protocol accept.
PORTABLE: Final = frozenset({"text", *FUNCTION_RESPONSE})


class Content(BaseModel):
    """The user's message as an ADK Content object; the edge does not change the parts."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["user"]
    parts: list[dict[str, Any]] = Field(min_length=1)


class RunAgentRequest(BaseModel):
    """The body of `/run_sse` and `/run`. To start a run, an ADK server gets the whole body. The
    edge refuses a body with fields that the agent does not accept."""

    model_config = ConfigDict(extra="allow", strict=True, populate_by_name=True)

    app_name: str = Field(alias="appName", min_length=1)
    user_id: str = Field(alias="userId", min_length=1)
    session_id: str = Field(alias="sessionId", min_length=1)
    new_message: Content = Field(alias="newMessage")
    streaming: bool = False
    state_delta: dict[str, Any] | None = Field(None, alias="stateDelta")
    invocation_id: str | None = Field(None, alias="invocationId")


class CreateRequest(BaseModel):
    """The body of a request that creates a session. An ADK server also gets fields that are not
    declared here; the edge refuses those that the agent does not accept."""

    model_config = ConfigDict(extra="allow", strict=True, populate_by_name=True)

    session_id: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)] | None = Field(
        None, alias="sessionId"
    )
    state: dict[str, Any] | None = None
    events: list[dict[str, Any]] | None = None


class ChangeRequest(BaseModel):
    """The body of a request that changes a session's state; the agent must accept each key."""

    model_config = ConfigDict(populate_by_name=True)

    state_delta: dict[str, Any] = Field(alias="stateDelta")


class QueryRequest(BaseModel):
    """The body of a POST that starts a run, in the legacy pattern of adk-streaming.md."""

    model_config = ConfigDict(strict=True, extra="allow")

    query: Message


def parse(body: bytes) -> RunAgentRequest:
    document = document_of(body)
    request = validated(RunAgentRequest, document)
    _require_one_spelling(document)
    texts = [part.get("text") for part in request.new_message.parts]
    if all(isinstance(text, str) and not text.strip() for text in texts):
        text = "must not be empty or only white space"
        raise invalid("blank", ("newMessage", "parts"), text)
    return request


def text_of(request: RunAgentRequest) -> str:
    texts = (part.get("text") for part in request.new_message.parts)
    return "".join(text for text in texts if isinstance(text, str))


def require_portable(request: RunAgentRequest, *, takes_state: bool) -> None:
    """Refuse what only an ADK server could use. A workflow takes a state, as its input."""
    refused = "an agent that is no ADK agent takes no"
    errors = [
        body_error("not_portable", path_of_part(index, key), f"{refused} {key}")
        for index, part in enumerate(request.new_message.parts)
        for key, value in part.items()
        if value is not None and key not in PORTABLE
    ]
    if request.state_delta and not takes_state:
        errors.append(body_error("not_portable", ("stateDelta",), f"{refused} state"))
    if errors:
        raise InvalidBody(errors)


def path_of_part(index: int, key: str) -> tuple[str | int, ...]:
    return ("newMessage", "parts", index, key)


def _require_one_spelling(document: dict[str, Any]) -> None:
    # The edge checks only one of two spellings, and the ADK server could read the other value.
    for name, field in RunAgentRequest.model_fields.items():
        alias = field.alias or name
        if alias != name and alias in document and name in document:
            raise invalid("both_names", (alias,), f"{alias} and {name} are both given")
