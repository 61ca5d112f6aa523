"""Models of the body of POST /vercel/{agent}, as `DefaultChatTransport` of the AI SDK sends it.
Pure.

A client sends the whole conversation again with each request, and may write anything into it. So
only the last message counts: a user's message starts a run, and an assistant's message answers a
pause, with nothing but its approval responses that have the digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from penstock.bus.records import Decided, WhenBusy
from penstock_edge.surfaces.bodies import document_of, validated
from penstock_edge.surfaces.errors import InvalidBody, body_error, invalid

MAX_ID: Final = 512
RESPONDED: Final = "approval-responded"
M = TypeVar("M", bound=BaseModel)
Trigger = Literal["submit-message", "regenerate-message"]
Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]


class _Described(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class ChatRequest(_Described):
    """The body of POST /vercel/{agent}. `id` is the chat's. The client's own field `body` may add
    `when_busy`, as of POST /v1/runs, and `input` of a workflow."""

    id: Id
    messages: Annotated[list[Any], Field(min_length=1)]
    trigger: Trigger = "submit-message"
    when_busy: WhenBusy = "queue"
    input: Any = None


class Part(_Described):
    """A part of a message. A part of a tool call has a state, and perhaps an approval."""

    type: str
    text: str | None = None
    state: str | None = None
    approval: Any = None

    @property
    def is_call(self) -> bool:
        return self.type == "dynamic-tool" or self.type.startswith("tool-")


class Message(_Described):
    """A UIMessage."""

    id: str | None = None
    role: Literal["system", "user", "assistant"]
    parts: list[Part]


class Descriptor(_Described):
    """The `approvalDescriptor` of the chunk that asked, unchanged."""

    digest: Annotated[str, Field(min_length=1)]


class Response(_Described):
    """The approval of a part that the user has answered."""

    id: Id
    approved: StrictBool
    descriptor: Descriptor
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """One request: the chat, its last message, and where the message is in the body."""

    request: ChatRequest
    message: Message
    where: tuple[str | int, ...]


def parse(body: bytes) -> Chat:
    request = validated(ChatRequest, document_of(body))
    where = ("messages", len(request.messages) - 1)
    return Chat(request, _at(where, Message, request.messages[-1]), where)


def responses_of(chat: Chat) -> list[Response]:
    """Return the approval responses of an assistant's message; none for a user's message."""
    if chat.message.role != "assistant":
        return []
    return [
        _at((*chat.where, "parts", index, "approval"), Response, part.approval)
        for index, part in enumerate(chat.message.parts)
        if part.state == RESPONDED and part.is_call
    ]


def decided(response: Response, item_id: str) -> Decided:
    decision: Literal["approve", "reject"] = "approve" if response.approved else "reject"
    return Decided(item_id=item_id, decision=decision, note=response.reason)


def text_of(chat: Chat) -> str:
    """Return the text of the user's message, which is all that an agent gets of it."""
    if chat.message.role != "user":
        text = "the last message must be the user's, or have the answer to a tool-approval-request"
        raise invalid("no_user_message", chat.where, text)
    others = [
        body_error(
            "not_portable", (*chat.where, "parts", index), f"an agent gets no {part.type[:MAX_ID]}"
        )
        for index, part in enumerate(chat.message.parts)
        if part.text is None
    ]
    if others:
        raise InvalidBody(others)
    text = "".join(part.text or "" for part in chat.message.parts)
    if not text.strip():
        raise invalid("blank", (*chat.where, "parts"), "must not be empty or only white space")
    return text


def _at(where: tuple[str | int, ...], model: type[M], value: Any) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidBody(
            body_error(each["type"], (*where, *each["loc"]), each["msg"]) for each in error.errors()
        ) from error
